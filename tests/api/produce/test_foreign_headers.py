"""Batches of verbatim copiers and odd clients are answered as Apache Kafka answers them, and stored in good order."""

from __future__ import annotations

import struct

import attrs
import pytest
import trio
import trio.testing

from kafscale.log.log import OPENING_SECONDS
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import DELETE_HORIZON, LOG_APPEND_TIME, encode_batch, parse_header
from kafscale.wire.messages.records import ProduceResponse
from kafscale.wire.records import Record, build_batch, iterate_records, validate
from tests.api.produce.foreign_frames import Foreign
from tests.api.produce.foreign_headers import COUNT, NOW_MS, foreign_headers, header_of, raw_record, sealed
from tests.api.produce.test_produce import broker, produce

HEADERS = foreign_headers()


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
async def test_each_batch_header_gets_the_error_code_of_the_table(
    autojump_clock: trio.testing.MockClock, header: Foreign
) -> None:
    async with broker() as it:
        await trio.sleep(OPENING_SECONDS)
        answer = await it.send(produce(header.frame))
        assert error_codes.name(answer.error_code) == error_codes.name(header.expected)
        assert it.partition.next_offset == (0 if header.expected else COUNT)
        for stored in it.stored():
            assert validate(stored).attributes in compression.NAMES
            assert [each.offset for each in iterate_records(stored)] == list(range(COUNT))


@pytest.mark.parametrize("attributes", [LOG_APPEND_TIME, DELETE_HORIZON, 0x80, 0x7F00, -0x8000])
@pytest.mark.parametrize("codec", [compression.NONE, compression.LZ4])
async def test_a_copied_batch_loses_reserved_bits_and_takes_its_records_max_timestamp(
    autojump_clock: trio.testing.MockClock, attributes: int, codec: int
) -> None:
    """A delete horizon of a client's would have compaction drop tombstones by it."""
    async with broker() as it:
        for _ in range(2):  # the second may go the short way
            sent = sealed(codec=codec, attributes=attributes | codec, max_timestamp_ms=NOW_MS + 7)
            assert (await it.send(produce(sent))).error_code == error_codes.NONE
        for stored in it.stored():
            assert parse_header(stored).attributes == codec
            assert [each.timestamp_ms for each in iterate_records(stored)] == [NOW_MS] * COUNT
        assert {each.max_timestamp_ms for each in it.partition.tail.batches} == {NOW_MS}


async def test_a_topic_with_log_append_time_refuses_batches_already_marked_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with broker(message_timestamp_type="LogAppendTime") as it:
        assert await it.refused(sealed(attributes=LOG_APPEND_TIME)) == error_codes.INVALID_TIMESTAMP
        assert (await it.send(produce(sealed(attributes=DELETE_HORIZON)))).error_code == error_codes.NONE
        (stored,) = it.stored()
        assert parse_header(stored).attributes == LOG_APPEND_TIME


@pytest.mark.parametrize("count", [3, 10_000])
@pytest.mark.parametrize("wrong_at", ["the first", "the last"])
async def test_records_without_offset_deltas_get_offsets_of_their_own(count: int, wrong_at: str) -> None:
    """Real time: the larger one is renumbered in steps."""
    deltas = [0] * count if wrong_at == "the first" else [*range(count - 1), 0]
    stamps = [number % 200 for number in range(count)]  # of one and two bytes, so that they are checked one by one
    raw = b"".join(
        raw_record(delta, stamp=stamp, rest=b"\2k" + b"\x0a%05d" % number + b"\2\2h\2v")
        for number, (delta, stamp) in enumerate(zip(deltas, stamps, strict=True))
    )
    header = header_of(record_count=count, last_offset_delta=count - 1)
    async with broker() as it:
        for offset in (0, count):
            answer = await it.send(produce(encode_batch(header, raw)))
            assert (answer.error_code, answer.base_offset) == (error_codes.NONE, offset)
        for base_offset, stored in zip((0, count), it.stored(), strict=True):
            validate(stored)
            found = list(iterate_records(stored))
            assert [each.offset for each in found] == list(range(base_offset, base_offset + count))
            assert [each.value for each in found] == [b"%05d" % number for number in range(count)]
            assert [each.timestamp_ms - NOW_MS for each in found] == stamps
            assert {(each.key, *each.headers) for each in found} == {(b"k", ("h", b"v"))}


async def test_a_renumbered_batch_is_stored_beside_pooled_batches_of_the_same_frame() -> None:
    """Such a frame is received into the pool, and its other batches stay there."""
    async with broker() as it:
        request = produce(build_batch([Record(value=bytes(300_000), timestamp_ms=NOW_MS)]))
        request.topic_data[0].partition_data += produce(sealed((0, 0, 0)), partition=1).topic_data[0].partition_data
        await it.client.request(request, ProduceResponse)
        other = it.running.broker.services.log.partition_named("orders", 1)
        assert other is not None
        assert (it.partition.next_offset, other.next_offset) == (1, COUNT)
        (large,) = it.stored()
        assert validate(large).record_count == 1


@pytest.mark.parametrize("raw", [b"", raw_record(0), raw_record(0) + b"\x7f\0\0", raw_record(0) + b"\x80" * 30])
async def test_a_batch_that_can_not_be_renumbered_is_an_invalid_record(
    autojump_clock: trio.testing.MockClock, raw: bytes
) -> None:
    async with broker() as it:
        assert await it.refused(encode_batch(header_of(), raw_record(7) + raw)) == error_codes.INVALID_RECORD


async def test_a_producer_without_epoch_may_send_any_sequence_and_duplicates_are_detected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def copied(sequence: int, epoch: int = -1) -> bytes:
        return sealed(producer_id=5, producer_epoch=epoch, base_sequence=sequence)

    async with broker() as it:
        await trio.sleep(OPENING_SECONDS)
        offsets = [(await it.send(produce(copied(sequence)))).base_offset for sequence in (5, 100, 5, 3, 3)]
        assert offsets == [0, 3, 0, 6, 6]
        assert (await it.send(produce(copied(17, epoch=0)))).base_offset == 9
        assert (await it.send(produce(copied(20)))).error_code == error_codes.INVALID_PRODUCER_EPOCH


async def test_bytes_behind_a_batch_do_not_count_for_its_size(autojump_clock: trio.testing.MockClock) -> None:
    usual = sealed()
    async with broker(max_message_bytes=str(len(usual))) as it:
        behind = usual + struct.pack(">qi", 0, 5000) + bytes(5)
        assert (await it.send(produce(behind))).error_code == error_codes.NONE
        larger = attrs.evolve(header_of(), record_count=1, last_offset_delta=0)
        too_large = encode_batch(larger, raw_record(0, rest=b"\1\x80\2" + bytes(128) + b"\0"))
        assert (await it.send(produce(too_large))).error_code == error_codes.MESSAGE_TOO_LARGE
