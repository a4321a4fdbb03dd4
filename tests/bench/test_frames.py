"""What is sent without the codec, and read without it, is what the codec would have made of it."""

from __future__ import annotations

import struct

import pytest

from bench.frames import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    FetchTemplate,
    ProduceRing,
    check_fetch_head,
    explain_produce_reply,
    fetch_reply_head_bytes,
    produce_reply,
    produce_reply_layout,
)
from bench.points import TOPIC, Point
from kafscale.errors import KafkaError
from kafscale.wire import codec, error_codes
from kafscale.wire.frames import FrameReader, parse_request_header, response_frame
from kafscale.wire.messages.records import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ProduceRequest,
)
from kafscale.wire.records import validate
from kafscale.wire.schema import NEVER


def test_a_ring_holds_valid_requests_for_every_partition_in_turn() -> None:
    ring = ProduceRing.of(Point(batch_bytes=1024, in_flight=5, partitions=4), range(4))
    reader = FrameReader(1 << 20)
    reader.receive_data(ring.frames)
    partitions = []
    for place, frame in enumerate(reader.next_frames()):
        header = parse_request_header(frame, lambda _key: ProduceRequest.FLEXIBLE_SINCE)
        request = codec.decode(ProduceRequest, PRODUCE_VERSION, frame[header.body_offset :])
        (data,) = request.topic_data[0].partition_data
        assert data.records is not None
        assert (header.correlation_id, len(data.records)) == (place, ring.batch_bytes)
        assert validate(data.records).record_count == 1
        partitions.append(data.index)
    assert partitions == [0, 1, 2, 3] * 2


def test_the_layout_finds_the_error_in_a_reply() -> None:
    reply = produce_reply(error_codes.MESSAGE_TOO_LARGE)
    assert produce_reply_layout().unpack(reply) == (len(reply) - 4, 0, error_codes.MESSAGE_TOO_LARGE)
    assert explain_produce_reply(memoryview(reply)) == "MESSAGE_TOO_LARGE"


def test_an_offset_is_patched_into_a_fetch() -> None:
    frame = memoryview(FetchTemplate.of(3, 1 << 20).at(1 << 40))[4:]
    header = parse_request_header(frame, lambda _key: NEVER)
    request = codec.decode(FetchRequest, FETCH_VERSION, frame[header.body_offset :])
    (wanted,) = request.topics[0].partitions
    assert (wanted.partition, wanted.fetch_offset, wanted.partition_max_bytes) == (3, 1 << 40, 1 << 20)


def test_the_head_of_a_fetch_reply_ends_where_the_records_begin() -> None:
    partition = PartitionData(partition_index=0, records=b"records")
    response = FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC, partitions=[partition])])
    frame = memoryview(b"".join(response_frame(0, codec.encode(response, FETCH_VERSION), False)))
    assert frame[fetch_reply_head_bytes() :] == b"records"
    check_fetch_head(frame)
    partition.error_code = error_codes.OFFSET_OUT_OF_RANGE
    broken = b"".join(response_frame(0, codec.encode(response, FETCH_VERSION), False))
    with pytest.raises(KafkaError, match="fetch"):
        check_fetch_head(memoryview(broken))


def test_a_point_parses_from_its_text_form() -> None:
    point = Point.parse("960KiB/5/16")
    assert (str(point), point.record_count) == ("960KiB/5/16", 15)
    with pytest.raises(ValueError, match="not enough"):
        Point.parse("960KiB")


def test_records_fill_a_batch_to_about_its_size() -> None:
    for size in (1 << 10, 16 << 10, 960 << 10):
        ring = ProduceRing.of(Point(batch_bytes=size, in_flight=1, partitions=1), [0])
        assert abs(ring.batch_bytes - size) < 100
        assert struct.unpack_from(">i", ring.frames)[0] == ring.frame_bytes - 4
