"""Produce on a whole broker in memory: what is accepted, what is refused with which error, and what is stored."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio.testing

from kafscale.api.handling.calls import Call
from kafscale.api.handling.gate import Gate
from kafscale.api.handling.record_checks import FREE_HEADERS_COUNT
from kafscale.client.connection import Connection
from kafscale.cluster.registries.producer_ids import BLOCK_COUNT, IDS_PER_EPOCH
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Durability, Limits
from kafscale.errors import KafkaError
from kafscale.log.log import OPENING_SECONDS
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.tail import coalesce
from kafscale.testing.disk import MemoryDisk
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import (
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    batches,
    encode_batch,
    parse_header,
    set_max_timestamp,
)
from kafscale.wire.codec import encode
from kafscale.wire.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.record_check import NULL_KEYS_TOLD_MAX_COUNT
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records, validate
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings

TOPIC = "orders"
NO_TOPIC_ID = bytes(range(16))
NOW_MS = time.time_ns() // 1_000_000
CODECS = (compression.NONE, compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD)


def records(*values: bytes, key: bytes | None = b"k", timestamp_ms: int = NOW_MS) -> list[Record]:
    return [Record(key=key, value=value, timestamp_ms=timestamp_ms, headers=[]) for value in values]


def produce(
    batch: bytes | bytearray | None, *, acks: int = -1, topic: str = TOPIC, partition: int = 0
) -> ProduceRequest:
    view = None if batch is None else memoryview(batch)
    data = PartitionProduceData(index=partition, records=view)
    return ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])


@attrs.define(eq=False)
class Fixture:
    running: MemoryBroker
    client: Connection

    @property
    def partition(self) -> Partition:
        found = self.running.broker.services.log.partition_named(TOPIC, 0)
        assert found is not None
        return found

    async def send(self, request: ProduceRequest, version: int = 9) -> PartitionProduceResponse:
        for each in request.topic_data:
            found = self.running.broker.services.topics.get(each.name)
            each.topic_id = NO_TOPIC_ID if found is None else found.topic_id
        call = self.client.call(ProduceRequest, ProduceResponse, version=version)
        reply = await self.client.send_encoded(call, encode(request, version))
        (topic,) = (await reply.wait()).responses
        asked = request.topic_data[0]
        assert (topic.name, topic.topic_id) == ((asked.name, bytes(16)) if version < 13 else ("", asked.topic_id))
        (answer,) = topic.partition_responses
        return answer

    async def refused(self, batch: bytes | bytearray | None, version: int = 9) -> int:
        """The error code; nothing must have been stored."""
        answer = await self.send(produce(batch), version)
        assert answer.base_offset == -1
        assert self.partition.next_offset == 0
        assert self.partition.tail.size_bytes == 0
        assert self.running.broker.services.log.pool.used_bytes <= self.partition.held_bytes
        return answer.error_code

    def stored(self) -> list[memoryview]:
        slices = coalesce(self.partition.tail.batches)
        try:
            return [memoryview(bytes(batch)) for buffer in slices.buffers for batch in batches(memoryview(buffer))]
        finally:
            slices.release()


@asynccontextmanager
async def broker(limits: Limits | None = None, **configs: str) -> AsyncIterator[Fixture]:
    settings = memory_settings(limits=limits or Limits())
    async with memory_broker(memory_parts(), settings) as running:
        topic = NewTopic(
            name=TOPIC, partition_count=2, overrides={key.replace("_", "."): v for key, v in configs.items()}
        )
        await running.broker.services.topics.create([topic])
        yield Fixture(running, await running.connect())


@pytest.mark.parametrize("version", range(3, 14))
async def test_every_version_is_answered(autojump_clock: trio.testing.MockClock, version: int) -> None:
    async with broker() as it:
        answer = await it.send(produce(build_batch(records(b"a", b"b"))), version)
        assert (answer.error_code, answer.base_offset) == (error_codes.NONE, 0)
        assert (await it.send(produce(build_batch(records(b"c"))), version)).base_offset == 2


@pytest.mark.parametrize(
    ("version", "expected"), [(12, error_codes.UNKNOWN_TOPIC_OR_PARTITION), (13, error_codes.UNKNOWN_TOPIC_ID)]
)
async def test_a_topic_that_does_not_exist(autojump_clock: trio.testing.MockClock, version: int, expected: int) -> None:
    async with broker() as it:
        answer = await it.send(produce(build_batch(records(b"a")), topic="missing"), version)
        assert (answer.error_code, answer.base_offset) == (expected, -1)
        answer = await it.send(produce(build_batch(records(b"a")), partition=2), version)
        assert answer.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [12, 13])
async def test_the_gate_checks_topic_names_and_skips_unknown_topic_ids(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    asked = []

    def refuse_all(gate: Gate, call: Call, request: ProduceRequest, topic: str) -> KafkaError:
        asked.append(topic)
        return KafkaError(error_codes.TOPIC_AUTHORIZATION_FAILED)

    monkeypatch.setattr(Gate, "topic_refusal", refuse_all)
    async with broker() as it:
        answers = [await it.send(produce(build_batch(records(b"a")), topic=name), version) for name in (TOPIC, "no")]
    refused = error_codes.TOPIC_AUTHORIZATION_FAILED
    assert [each.error_code for each in answers] == [refused, refused if version < 13 else error_codes.UNKNOWN_TOPIC_ID]
    assert list(dict.fromkeys(asked)) == ([TOPIC, "no"] if version < 13 else [TOPIC])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [10, 200_000])
async def test_a_batch_is_stored_unchanged_except_base_offset_and_leader_epoch(codec: int, size: int) -> None:
    """Real time: a large compressed batch is checked in a thread."""
    async with broker() as it:
        batch = build_batch(records(*[b"%d" % number * (size // 10) for number in range(10)]), codec=codec)
        assert (await it.send(produce(batch))).error_code == error_codes.NONE
        assert (await it.send(produce(batch))).base_offset == 10
        for offset, stored in zip((0, 10), it.stored(), strict=True):
            assert stored[16:] == memoryview(batch)[16:]
            header = validate(stored)
            assert (header.base_offset, header.leader_epoch) == (offset, it.partition.leader_epoch)


async def test_several_partitions_have_errors_of_their_own(autojump_clock: trio.testing.MockClock) -> None:
    async with broker() as it:
        batch = build_batch(records(b"x"))
        broken = bytearray(batch)
        broken[-1] ^= 1
        request = produce(batch)
        for index, data in ((1, broken), (7, batch)):
            request.topic_data[0].partition_data.append(PartitionProduceData(index=index, records=memoryview(data)))
        request.topic_data += produce(batch, topic="unknown").topic_data
        response = await it.client.request(request, ProduceResponse)
        codes = [answer.error_code for topic in response.responses for answer in topic.partition_responses]
        unknown = error_codes.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [error_codes.NONE, error_codes.CORRUPT_MESSAGE, unknown, unknown]


def _with_attributes(attributes: int, **more: ProducerStamp) -> bytearray:
    return build_batch(records(b"x"), attributes=attributes, **more)  # type: ignore[arg-type]


STAMP = ProducerStamp(producer_id=1, producer_epoch=0, base_sequence=0)
REFUSED = {
    "no batch": (None, error_codes.INVALID_RECORD),
    "empty": (b"", error_codes.INVALID_RECORD),
    "two batches": (build_batch(records(b"a")) + build_batch(records(b"b")), error_codes.INVALID_RECORD),
    "cut off": (build_batch(records(b"abc"))[:-1], error_codes.INVALID_RECORD),
    "garbage": (bytes(range(100)), error_codes.CORRUPT_MESSAGE),
    "control batch": (_with_attributes(CONTROL), error_codes.INVALID_RECORD),
    "transactional, without an id": (
        _with_attributes(TRANSACTIONAL, producer=STAMP),
        error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "two hours ahead": (build_batch(records(b"x", timestamp_ms=NOW_MS + 7_200_000)), error_codes.INVALID_TIMESTAMP),
    "producer without sequence": (
        build_batch(records(b"x"), producer=ProducerStamp(producer_id=1, producer_epoch=0, base_sequence=-1)),
        error_codes.INVALID_RECORD,
    ),
}


def header_says(batch: bytearray, max_timestamp_ms: int) -> bytearray:
    with memoryview(batch) as view:
        set_max_timestamp(view, max_timestamp_ms)
    return batch


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
@pytest.mark.parametrize("told_ms", [-1, 5, pytest.param(NOW_MS + 1, id="a moment ahead"), 1 << 60])
async def test_a_client_that_lies_about_its_latest_timestamp_is_not_believed(
    autojump_clock: trio.testing.MockClock, codec: int, told_ms: int
) -> None:
    """It was: retention, ListOffsets and Spark's partition pruning went by what the header said."""
    async with broker() as it:
        for offset in range(2):  # the second may go the short way
            batch = records(b"a", b"b", timestamp_ms=NOW_MS) + records(b"c", timestamp_ms=NOW_MS - 9)
            answer = await it.send(produce(header_says(build_batch(batch, codec=codec), told_ms)))
            assert (answer.error_code, answer.base_offset) == (error_codes.NONE, 3 * offset)
        for stored in it.stored():
            assert validate(stored).max_timestamp_ms == NOW_MS
        assert {each.max_timestamp_ms for each in it.partition.tail.batches} == {NOW_MS}
        assert {each.min_timestamp_ms for each in it.partition.tail.batches} == {NOW_MS - 9}


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
@pytest.mark.parametrize(
    ("times_ms", "earliest_ms"),
    [([-1] * 12, -1), ([NOW_MS, -1, NOW_MS], -1), ([-1, -7, NOW_MS], -7), ([NOW_MS - 1] * 12, NOW_MS - 1)],
    ids=["none has one", "one has none", "earlier than none", "all alike"],
)
async def test_the_earliest_time_of_a_batch_is_that_of_a_record_without_one_too(
    autojump_clock: trio.testing.MockClock, codec: int, times_ms: list[int], earliest_ms: int
) -> None:
    async with broker() as it:
        batch = [each for time_ms in times_ms for each in records(b"v", timestamp_ms=time_ms)]
        for _ in range(3):  # the last may go the short way
            assert (await it.send(produce(build_batch(batch, codec=codec)))).error_code == error_codes.NONE
        assert {each.min_timestamp_ms for each in it.partition.tail.batches} == {earliest_ms}


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
@pytest.mark.parametrize(("off_ms", "config"), [(7_200_000, "after"), (-9_000_000, "before")])
async def test_each_record_timestamp_is_checked_regardless_of_the_batch_header(
    autojump_clock: trio.testing.MockClock, codec: int, off_ms: int, config: str
) -> None:
    async with broker(message_timestamp_before_max_ms="7200000") as it:
        mixed = records(b"a") + records(b"b", timestamp_ms=NOW_MS + off_ms) + records(b"c")
        batch = header_says(build_batch(mixed, codec=codec), NOW_MS)
        answer = await it.send(produce(batch))
        assert answer.error_code == error_codes.INVALID_TIMESTAMP
        assert f"message.timestamp.{config}.max.ms" in (answer.error_message or "")
        none = build_batch(records(b"a", timestamp_ms=-1), codec=codec)
        assert (await it.send(produce(none))).error_code == error_codes.NONE


@pytest.mark.parametrize("codec", CODECS)
async def test_records_with_wrong_inner_lengths_are_refused(autojump_clock: trio.testing.MockClock, codec: int) -> None:
    """They were acknowledged: compaction of the partition stopped, and so did its consumers."""
    async with broker() as it:
        good = build_batch(records(b"value"))
        body = bytes(good[HEADER_BYTES:])
        assert body[6:8] == b"\nv"  # the value's length, doubled, and its beginning
        header = attrs.evolve(parse_header(memoryview(good)), attributes=codec)
        for wrong in (b"\x0cv", b"\x08v", b"\x01v", b"\x7ev"):
            records_ = body[:6] + wrong + body[8:]
            batch = encode_batch(header, compression.compress(codec, records_) if codec else records_)
            assert await it.refused(batch) == error_codes.INVALID_RECORD


@functools.cache
def long_batch() -> bytes:
    """60,000 records without compression, which take a second to make for each codec anew."""
    many = [Record(key=b"k" * (i % 3), value=b"v", timestamp_ms=NOW_MS + i % 7) for i in range(60_000)]
    return bytes(build_batch(many))


def compressed(batch: bytes, codec: int) -> bytearray:
    header = attrs.evolve(parse_header(memoryview(batch)), attributes=codec)
    body = batch[HEADER_BYTES:]
    return encode_batch(header, compression.compress(codec, body) if codec else body)


@pytest.mark.parametrize("codec", CODECS)
async def test_a_batch_that_takes_long_is_checked_in_pieces_and_others_are_answered_meanwhile(codec: int) -> None:
    async with broker() as it:
        other = await it.running.connect()
        batch = compressed(long_batch(), codec)
        reply = await it.client.send(produce(batch), ProduceResponse)
        call = other.call(ProduceRequest, ProduceResponse, version=9)
        answered = await (await other.send_encoded(call, encode(produce(build_batch(records(b"x"))), 9))).wait()
        assert answered.responses[0].partition_responses[0].base_offset == 0
        assert (await reply.wait()).responses[0].partition_responses[0].base_offset == 1


async def test_batches_of_one_request_share_a_decompressed_size_limit() -> None:
    limits = Limits(max_decompressed_bytes=20 << 20, max_decompressed_request_bytes=30 << 20)
    async with broker(limits) as it:
        bomb = build_batch(records(bytes(18 << 20)), codec=compression.ZSTD)
        request = produce(bomb)
        request.topic_data[0].partition_data *= 3
        response = await it.client.request(request, ProduceResponse)
        codes = [answer.error_code for answer in response.responses[0].partition_responses]
        assert codes == [error_codes.NONE, error_codes.MESSAGE_TOO_LARGE, error_codes.MESSAGE_TOO_LARGE]
        assert (await it.send(produce(bomb))).base_offset == 1


async def test_the_number_of_headers_of_a_request_is_bounded() -> None:
    """Empty ones compress a thousandfold, and each is looked at."""
    count = FREE_HEADERS_COUNT // 3
    bomb = build_batch([Record(headers=[("", None)] * count, timestamp_ms=NOW_MS)], codec=compression.ZSTD)
    plain = build_batch([Record(headers=[("", None)] * 4 * count, timestamp_ms=NOW_MS)])
    async with broker() as it:
        request = produce(bomb)
        request.topic_data[0].partition_data *= 5
        response = await it.client.request(request, ProduceResponse)
        codes = [answer.error_code for answer in response.responses[0].partition_responses]
        assert codes == [error_codes.NONE] * 3 + [error_codes.MESSAGE_TOO_LARGE] * 2
        assert (await it.send(produce(plain))).base_offset == 3


@pytest.mark.parametrize("name", REFUSED)
async def test_invalid_batches_are_not_stored(autojump_clock: trio.testing.MockClock, name: str) -> None:
    async with broker() as it:
        batch, expected = REFUSED[name]
        assert await it.refused(batch) == expected


async def test_acks_that_do_not_exist_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with broker() as it:
        answer = await it.send(produce(build_batch(records(b"x")), acks=2))
        assert answer.error_code == error_codes.INVALID_REQUIRED_ACKS
        assert it.partition.next_offset == 0


async def test_a_batch_larger_than_the_topic_allows_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with broker(max_message_bytes="500") as it:
        assert await it.refused(build_batch(records(bytes(500)))) == error_codes.MESSAGE_TOO_LARGE
        assert (await it.send(produce(build_batch(records(bytes(300)))))).error_code == error_codes.NONE


async def test_a_batch_that_unpacks_to_too_much_is_refused() -> None:
    """Real time: it is found in a thread."""
    async with broker(Limits(max_decompressed_bytes=1 << 20), max_message_bytes=str(1 << 20)) as it:
        for size in (2 << 20, 1 << 26):
            bomb = build_batch(records(bytes(size)), codec=compression.ZSTD)
            assert await it.refused(bomb) == error_codes.MESSAGE_TOO_LARGE


async def test_zstd_needs_version_7(autojump_clock: trio.testing.MockClock) -> None:
    async with broker() as it:
        batch = build_batch(records(b"x"), codec=compression.ZSTD)
        assert await it.refused(batch, version=6) == error_codes.UNSUPPORTED_COMPRESSION_TYPE
        assert (await it.send(produce(batch), 7)).error_code == error_codes.NONE


@pytest.mark.parametrize("codec", [compression.NONE, compression.GZIP])
async def test_a_compacted_topic_accepts_no_record_without_a_key(
    autojump_clock: trio.testing.MockClock, codec: int
) -> None:
    async with broker(cleanup_policy="compact") as it:
        mixed = records(b"a") + records(b"b", b"c", key=None) + records(b"d")
        answer = await it.send(produce(build_batch(mixed, codec=codec)))
        assert answer.error_code == error_codes.INVALID_RECORD
        assert [each.batch_index for each in answer.record_errors] == [1, 2]
        assert "without key in topic partition" in str(answer.record_errors[0].batch_index_error_message)
        many = await it.send(produce(build_batch(records(b"a", key=None) * 1000, codec=codec)))
        assert len(many.record_errors) == NULL_KEYS_TOLD_MAX_COUNT
        assert (await it.send(produce(build_batch(records(b"a", b"b"), codec=codec)))).error_code == error_codes.NONE


@pytest.mark.parametrize("off_ms", [7_200_000, -9_000_000, None])
async def test_invalid_keys_and_timestamps_are_refused_in_batches_of_a_learned_shape(
    autojump_clock: trio.testing.MockClock, off_ms: int | None
) -> None:
    """Records of a known shape are not looked at one by one, but their keys and times are judged."""
    async with broker(message_timestamp_before_max_ms="7200000", cleanup_policy="compact") as it:
        good = build_batch(records(b"a", b"b", key=b"k"))
        wrong = records(b"a", b"b", key=b"k" if off_ms else None, timestamp_ms=NOW_MS + (off_ms or 0))
        expected = error_codes.INVALID_TIMESTAMP if off_ms else error_codes.INVALID_RECORD
        for _ in range(4):
            assert (await it.send(produce(good))).error_code == error_codes.NONE
            assert (await it.send(produce(build_batch(wrong)))).error_code == expected
        shapes = it.running.broker.services.record_checks.shapes
        batch = memoryview(good)
        assert shapes.times(parse_header(batch), batch, needs_keys=True) is not None


@pytest.mark.parametrize("codec", [compression.NONE, compression.LZ4])
async def test_log_append_time_is_the_brokers(autojump_clock: trio.testing.MockClock, codec: int) -> None:
    async with broker(message_timestamp_type="LogAppendTime") as it:
        answer = await it.send(produce(build_batch(records(b"a", b"b", timestamp_ms=5), codec=codec)))
        assert answer.log_append_time_ms >= NOW_MS
        (stored,) = it.stored()
        assert validate(stored).is_log_append_time
        assert [record.timestamp_ms for record in iterate_records(stored)] == [answer.log_append_time_ms] * 2
        stored = it.partition.tail.batches[0]
        assert stored.max_timestamp_ms == stored.min_timestamp_ms == answer.log_append_time_ms


async def test_a_producers_duplicates_gaps_and_older_epochs(autojump_clock: trio.testing.MockClock) -> None:
    def stamped(epoch: int, sequence: int) -> ProduceRequest:
        stamp = ProducerStamp(producer_id=9, producer_epoch=epoch, base_sequence=sequence)
        return produce(build_batch(records(b"x", b"y"), producer=stamp))

    async with broker() as it:
        assert [(await it.send(stamped(0, sequence))).base_offset for sequence in (0, 2, 4)] == [0, 2, 4]
        assert [(await it.send(stamped(0, sequence))).base_offset for sequence in (0, 2, 4)] == [0, 2, 4]
        assert (await it.send(stamped(0, 8))).error_code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await it.send(stamped(1, 2))).error_code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await it.send(stamped(1, 0))).base_offset == 6
        assert (await it.send(stamped(0, 6))).error_code == error_codes.INVALID_PRODUCER_EPOCH
        assert it.partition.next_offset == 8


@pytest.mark.parametrize("before_count", [0, 1])
@pytest.mark.parametrize("record_count", [1, 2])
async def test_a_retried_batch_is_acknowledged_only_after_the_original_is_durable(
    autojump_clock: trio.testing.MockClock, before_count: int, record_count: int
) -> None:
    def stamped(sequence: int, count: int) -> ProduceRequest:
        stamp = ProducerStamp(producer_id=9, producer_epoch=0, base_sequence=sequence)
        return produce(build_batch(records(*[b"v"] * count), producer=stamp))

    sync_seconds = 5.0
    parts = memory_parts()
    assert isinstance(parts.disk, MemoryDisk)
    async with memory_broker(parts, memory_settings()) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        first, second = await running.connect(), await running.connect()
        for sequence in range(before_count):
            await first.request(stamped(sequence, 1), ProduceResponse)
        parts.disk.sync_seconds = sync_seconds
        sent_at = trio.current_time()
        await first.send(stamped(before_count, record_count), ProduceResponse)
        await trio.sleep(1)
        retried = await second.send(stamped(before_count, record_count), ProduceResponse)
        answer = (await retried.wait()).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (error_codes.NONE, before_count)
        assert trio.current_time() - sent_at >= sync_seconds


async def test_a_producer_with_an_id_from_another_cluster_starts_at_any_sequence(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its bucket was wiped or restored: INVALID_PRODUCER_ID_MAPPING ended Java's producer."""

    async def answer(fixture: Fixture, producer_id: int, sequence: int) -> tuple[int, int]:
        batch = build_batch(records(b"x"), producer=ProducerStamp(producer_id, 0, sequence))
        found = await fixture.send(produce(batch))
        return found.error_code, found.base_offset

    parts = memory_parts()
    async with memory_broker(parts) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        fixture = Fixture(running, await running.connect())
        assert await answer(fixture, 0, 57) == (error_codes.NOT_LEADER_OR_FOLLOWER, -1)  # others may be under way
        await trio.sleep(OPENING_SECONDS)
        for offset, producer_id in enumerate((0, 1 << 62, IDS_PER_EPOCH - 1)):
            assert await answer(fixture, producer_id, 57) == (error_codes.NONE, offset)
        assert await answer(fixture, 0, 57) == (error_codes.NONE, 0)
        assert await answer(fixture, 0, 59) == (error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    async with memory_broker(parts) as running:
        fixture = Fixture(running, await running.connect())
        assert await answer(fixture, 0, 57) == (error_codes.NONE, 0)
        assert await answer(fixture, 0, 58) == (error_codes.NONE, 3)


async def test_a_producer_id_not_yet_allocated_from_the_block_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its owner's first batch would be taken for the repeated one of a client that made the id up, and dropped."""
    async with broker() as it:
        allocate = it.running.broker.services.producer_ids.allocate
        given = await allocate()
        ahead = build_batch(records(b"x"), producer=ProducerStamp(given + 1, 0, 0))
        assert await it.refused(ahead) == error_codes.INVALID_PRODUCER_ID_MAPPING
        beyond = build_batch(records(b"x"), producer=ProducerStamp(given + BLOCK_COUNT, 0, 0))
        assert (await it.send(produce(beyond))).error_code == error_codes.NONE
        ids = {await allocate() for _ in range(BLOCK_COUNT + 1)}
        assert given + 1 in ids
        assert given + BLOCK_COUNT not in ids
        assert (await it.send(produce(ahead))).base_offset == 1


async def test_refused_and_duplicate_batches_hold_no_chunk_of_an_idle_partition(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with broker() as fixture:
        log = fixture.running.broker.services.log
        batch = build_batch(records(b"v"), producer=ProducerStamp(7, 0, 0))
        assert (await fixture.send(produce(batch))).base_offset == 0
        await log.flusher.flush_all()
        assert log.pool.used_bytes == 0
        assert (await fixture.send(produce(batch))).base_offset == 0
        gap = build_batch(records(b"v"), producer=ProducerStamp(7, 0, 5))
        assert (await fixture.send(produce(gap))).error_code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert log.pool.used_bytes == 0


async def test_a_batch_after_one_refused_for_lack_of_memory_is_out_of_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with broker() as fixture:
        pool = fixture.running.broker.services.log.pool
        held = await pool.acquire(pool.size_bytes)
        first, second = [
            await fixture.client.send(
                produce(build_batch(records(value), producer=ProducerStamp(7, 0, sequence))), ProduceResponse
            )
            for sequence, value in enumerate((b"a", b"b"))
        ]
        refused = (await first.wait()).responses[0].partition_responses[0]
        held.release()
        assert refused.error_code == error_codes.KAFKA_STORAGE_ERROR
        behind = (await second.wait()).responses[0].partition_responses[0]
        assert behind.error_code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
        for sequence, value in enumerate((b"a", b"b")):
            again = build_batch(records(value), producer=ProducerStamp(7, 0, sequence))
            assert (await fixture.send(produce(again))).base_offset == sequence


@pytest.mark.parametrize("finds_room", [True, False])
async def test_a_second_batch_that_waits_while_a_partition_opens_is_not_taken_as_first(
    autojump_clock: trio.testing.MockClock, finds_room: bool
) -> None:
    """Of seed 38937: the first was refused a moment before the partition was opened, and refused for ever behind it."""
    async with broker() as fixture:
        pool = fixture.running.broker.services.log.pool
        held = await pool.acquire(pool.size_bytes)
        first, second = [
            produce(build_batch(records(value), producer=ProducerStamp(7, 0, sequence)))
            for sequence, value in enumerate((b"a", b"b"))
        ]
        waiting = await fixture.client.send(second, ProduceResponse)
        await trio.sleep(2 * OPENING_SECONDS)
        if finds_room:
            held.release()
        refused = (await waiting.wait()).responses[0].partition_responses[0]
        expected = error_codes.NOT_LEADER_OR_FOLLOWER if finds_room else error_codes.KAFKA_STORAGE_ERROR
        assert refused.error_code == expected
        if not finds_room:
            held.release()
        assert [(await fixture.send(each)).base_offset for each in (first, second)] == [0, 1]


async def test_under_segment_durability_the_reply_comes_with_the_objects(
    autojump_clock: trio.testing.MockClock,
) -> None:
    parts = memory_parts()
    async with memory_broker(parts, memory_settings(durability=Durability.SEGMENT)) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        client = await running.connect()
        await client.request(produce(build_batch(records(b"x"))), ProduceResponse)
        keys = [info.key async for page in parts.store.list("default/") for info in page]
        assert [key.rpartition(".")[2] for key in keys] == ["index", "kfs"]
