"""Requests encoded beforehand, and where the interesting bytes of their replies are.

Everything is made with the codec once; what is sent and received by the million is only cut and compared.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence

import attrs

from bench.points import TOPIC, Point
from kafscale.buffers import Buffer
from kafscale.client.consumer import IsolationLevel
from kafscale.errors import KafkaError
from kafscale.wire import codec, error_codes
from kafscale.wire.frames import RequestHeader, request_frame, response_frame
from kafscale.wire.messages.records import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kafscale.wire.records import Record, build_batch

CLIENT_ID = "bench"
PRODUCE_VERSION = 9
FETCH_VERSION = 11  # the last with topic names and without varints: every field has a fixed place
ACKS_ALL = -1
TIMEOUT_MS = 30_000
MAX_WAIT_MS = 500


def batch_of(point: Point) -> bytes:
    """One record batch of the point's size, with values that do not compress."""
    now_ms = time.time_ns() // 1_000_000
    records = [Record(value=os.urandom(point.record_bytes), timestamp_ms=now_ms) for _ in range(point.record_count)]
    return bytes(build_batch(records))


@attrs.frozen(eq=False)
class ProduceRing:
    """Produce requests one behind the other, all of one size; the correlation id of each is its place.

    There are at least as many as are in flight, so an id is never in use twice, and what is due can be sent by one call
    however many requests it is.
    """

    frames: memoryview
    count: int
    frame_bytes: int
    batch_bytes: int

    @classmethod
    def of(cls, point: Point, partitions: Sequence[int]) -> ProduceRing:
        """Make frames for as many requests as the point has in flight, to these partitions in turn."""
        batch = batch_of(point)
        count = -(-point.in_flight // len(partitions)) * len(partitions)
        frames = bytearray()
        for index in range(count):
            frames += produce_frame(index, partitions[index % len(partitions)], batch)
        return cls(memoryview(frames), count, len(frames) // count, len(batch))


def produce_frame(
    correlation_id: int,
    partition: int,
    batch: Buffer,
    *,
    version: int = PRODUCE_VERSION,
    transactional_id: str | None = None,
) -> bytes:
    """A Produce request with one batch."""
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    request = ProduceRequest(
        transactional_id=transactional_id, acks=ACKS_ALL, timeout_ms=TIMEOUT_MS, topic_data=[topic]
    )
    header = RequestHeader(ProduceRequest.API_KEY, version, correlation_id, CLIENT_ID)
    return b"".join(request_frame(header, codec.encode(request, version), flexible_header=True))


def produce_reply(error_code: int) -> bytes:
    """Return what a broker answers to such a request, but for offsets and ids."""
    partition = PartitionProduceResponse(index=0, error_code=error_code)
    response = ProduceResponse(responses=[TopicProduceResponse(name=TOPIC, partition_responses=[partition])])
    return b"".join(response_frame(0, codec.encode(response, PRODUCE_VERSION), flexible_header=True))


def produce_reply_layout() -> struct.Struct:
    """Unpacks size, correlation id and error code of a reply without an error message; as long as the reply is."""
    good, bad = produce_reply(0), produce_reply(-1)
    position = _first_difference(good, bad)
    return struct.Struct(f">ii{position - 8}xh{len(good) - position - 2}x")


def _first_difference(one: bytes | bytearray, other: bytes | bytearray) -> int:
    return next(index for index, (left, right) in enumerate(zip(one, other, strict=True)) if left != right)


def produce_error_code(reply: memoryview, version: int = PRODUCE_VERSION) -> int:
    """Return the error in a reply that is not as expected."""
    response = codec.decode(ProduceResponse, version, reply[9:])
    return response.responses[0].partition_responses[0].error_code


def explain_produce_reply(reply: memoryview) -> str:
    """The name of that error."""
    return error_codes.name(produce_error_code(reply))


@attrs.define(eq=False)
class FetchTemplate:
    """A Fetch request of one partition, into which the offset is written before it is sent."""

    frame: bytearray
    offset_position: int

    @classmethod
    def of(
        cls, partition: int, max_bytes: int, *, isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> FetchTemplate:
        frame, other = (_fetch_frame(partition, offset, max_bytes, isolation_level) for offset in (0, -1))
        return cls(bytearray(frame), _first_difference(frame, other))

    def at(self, offset: int) -> bytearray:
        """The request for what begins at `offset`."""
        struct.pack_into(">q", self.frame, self.offset_position, offset)
        return self.frame


def _fetch_frame(partition: int, offset: int, max_bytes: int, isolation_level: IsolationLevel) -> bytes:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=int(isolation_level),
        topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
    )
    header = RequestHeader(FetchRequest.API_KEY, FETCH_VERSION, partition, CLIENT_ID)
    return b"".join(request_frame(header, codec.encode(request, FETCH_VERSION), flexible_header=False))


def fetch_reply_head_bytes() -> int:
    """Return how many bytes of a reply stand before its records."""
    topic = FetchableTopicResponse(topic=TOPIC, partitions=[PartitionData(partition_index=0)])
    return sum(map(len, response_frame(0, codec.encode(FetchResponse(responses=[topic]), FETCH_VERSION), False)))


def check_fetch_head(head: memoryview) -> None:
    """Raises KafkaError for an error in the first bytes of a reply, up to its records."""
    error_code, partition_error_code = _fetch_errors.unpack_from(head)
    if error_code or partition_error_code:
        raise KafkaError(error_code or partition_error_code, "fetch")


# size, correlation id, throttle time | error | session id, count, name, count, partition | error
_fetch_errors = struct.Struct(f">12xh4x4x{2 + len(TOPIC)}x4x4xh")
