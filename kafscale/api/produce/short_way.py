"""The short way of Produces that repeat earlier ones except for their records, as nearly all do.

A producer repeats the same bytes with other values in four places, and so does the broker in its replies:

    API key, version | CORRELATION ID | same (client id, acks, timeout, topic) | PARTITION | LENGTH, RECORDS | same
    size | CORRELATION ID | same (topic) | PARTITION, error code, BASE OFFSET, time, LOG START OFFSET | same

A request that the codec has decoded becomes a pattern of its connection; one that matches a pattern is not decoded, and
is appended by the usual functions (`docs/decisions/0001-plain-produce.md`). Any request that is refused, delayed or
different goes the general way. Its partition may already be enrolled in its transaction, which changes nothing there.
"""

from __future__ import annotations

import struct
import time
from typing import Final, TypeAlias

import attrs

from kafscale.api.handling.calls import Call, Peer
from kafscale.api.handling.partitions import led_partition, name_of
from kafscale.api.handling.record_checks import AT_ONCE_UNITS
from kafscale.api.handling.services import Services
from kafscale.api.produce.batches import Batch, TransactionalProduce, append_batch, begin_batch, refusal_of, refuse
from kafscale.errors import DecodeError, KafkaError
from kafscale.log.partition.partition import Partition
from kafscale.log.wal.journal import Round
from kafscale.wire import codec
from kafscale.wire.frames import SIZE_BYTES, parse_request_header, parse_response_header, request_frame, response_frame
from kafscale.wire.messages.records import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kafscale.wire.primitives import read_uvarint

PATTERNS_MAX_COUNT: Final = 4  # of a connection
LEARNED_EVERY_COUNT: Final = 8  # learning costs as much as a request, so with many topics it must be rare

_START_BYTES: Final = 8  # API key, version, correlation id
_LOG_START_OFFSET_SINCE: Final = 5


@attrs.frozen(eq=False, repr=False)
class PlainProduce:
    """A pattern of requests with one batch for one topic. `request` has no records, and partition -1."""

    request: ProduceRequest
    topic: str
    topic_id: bytes | None  # from version 13 on, instead of the name
    version: int
    client_id: str
    _head: bytes  # API key and version
    _same: bytes  # between correlation id and partition
    _start: struct.Struct  # everything up to the length of the records, or its first byte
    _tail: bytes
    _reply_head: bytes  # between correlation id and partition
    _reply: struct.Struct
    _reply_tail: bytes

    @classmethod
    def of(cls, frame: memoryview) -> PlainProduce | None:
        """Return the pattern of a valid Produce, or None if it has more than a pattern."""
        header = parse_request_header(frame, lambda _key: ProduceRequest.FLEXIBLE_SINCE)
        version, flexible = header.api_version, header.api_version >= ProduceRequest.FLEXIBLE_SINCE
        request = codec.decoder(ProduceRequest, version)(frame, header.body_offset)[0]
        if (
            request.acks not in (-1, 1)
            or len(request.topic_data) != 1
            or len(request.topic_data[0].partition_data) != 1
        ):
            return None
        topic, data = request.topic_data[0], request.topic_data[0].partition_data[0]
        parts = request_frame(header, codec.encode(request, version), flexible_header=flexible)
        if not data.records or b"".join(parts)[SIZE_BYTES:] != frame:
            return None
        records_at = next(number for number, part in enumerate(parts) if part is data.records)
        # In front of the records are the partition and their length, each a part of its own.
        start = b"".join(parts[: records_at - 2])[SIZE_BYTES:]
        reply_head, reply_tail = _around_answer(topic, version, flexible=flexible)
        data.index, data.records = -1, None
        return cls(
            request,
            topic.name,
            topic.topic_id if version > ProduceRequest.NEWEST_WITH_NAMES else None,
            version,
            header.client_id or "",
            head=start[:4],
            same=start[_START_BYTES:],
            start=struct.Struct(f">4si{len(start) - _START_BYTES}si" + ("B" if flexible else "i")),
            tail=b"".join(parts[records_at + 1 :]),
            reply_head=reply_head,
            reply=struct.Struct(f">ii{len(reply_head)}s{_answer_codes(version)}{len(reply_tail)}s"),
            reply_tail=reply_tail,
        )

    def match(self, frame: memoryview) -> tuple[int, int, memoryview] | None:
        """Return the correlation id, partition and records of a matching request."""
        position = self._start.size
        if len(frame) < position:
            return None
        head, correlation_id, same, index, length = self._start.unpack_from(frame)
        if same != self._same or head != self._head:
            return None
        if self.version >= ProduceRequest.FLEXIBLE_SINCE:
            if length >= 128:
                try:
                    length, position = read_uvarint(frame, position - 1)
                except (DecodeError, IndexError):
                    return None
            length -= 1
        end = position + length
        if length <= 0 or end + len(self._tail) != len(frame) or frame[end:] != self._tail:
            return None
        return correlation_id, index, frame[position:end]

    def reply(self, correlation_id: int, index: int, base_offset: int, log_start_offset: int) -> bytes:
        pack, size_bytes = self._reply.pack, self._reply.size - SIZE_BYTES
        if self.version < _LOG_START_OFFSET_SINCE:
            return pack(size_bytes, correlation_id, self._reply_head, index, 0, base_offset, -1, self._reply_tail)
        return pack(
            size_bytes, correlation_id, self._reply_head, index, 0, base_offset, -1, log_start_offset, self._reply_tail
        )


PlainRequest: TypeAlias = tuple[PlainProduce, int, int, memoryview]
"""A pattern, and a request's correlation id, partition and records."""


@attrs.define(eq=False, repr=False)
class PlainProduces:
    _patterns: list[PlainProduce] = attrs.field(factory=list, init=False)
    _unlike_count: int = attrs.field(default=0, init=False)

    def learn(self, frame: memoryview) -> None:
        """Make a pattern of every LEARNED_EVERY_COUNT-th Produce that matched none."""
        if self._unlike_count % LEARNED_EVERY_COUNT == 0:
            pattern = PlainProduce.of(frame)
            if pattern is not None:
                self._patterns = [pattern, *self._patterns[: PATTERNS_MAX_COUNT - 1]]
        self._unlike_count += 1

    def match(self, frame: memoryview) -> PlainRequest | None:
        for pattern in self._patterns:
            found = pattern.match(frame)
            if found is not None:
                return pattern, *found
        return None


def _answer_codes(version: int) -> str:
    return "ihqqq" if version >= _LOG_START_OFFSET_SINCE else "ihqq"


def _around_answer(topic: TopicProduceData, version: int, *, flexible: bool) -> tuple[bytes, bytes]:
    """Return the bytes of a reply between the correlation id and the answer, and those behind the answer."""
    answer = PartitionProduceResponse(index=-1)
    of_topic = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[answer])
    response = ProduceResponse(responses=[of_topic])
    codes = _answer_codes(version)
    numbers = struct.pack(f">{codes}", -1, 0, *[-1] * (len(codes) - 2))
    # In front of them is a name, which is UTF-8 and has no such bytes, or an id, which is shorter.
    reply_head, reply_tail = b"".join(response_frame(0, codec.encode(response, version), flexible)).split(numbers)
    return reply_head[_START_BYTES:], reply_tail


@attrs.define(eq=False, repr=False)
class ProduceGroup:
    """Requests of one version in the log. `call` is the first one's; `responses` are set if the round fails."""

    call: Call
    round: Round
    replies: list[bytes] = attrs.field(factory=list, init=False)
    responses: list[ProduceResponse] = attrs.field(factory=list, init=False)
    unencoded: None = attrs.field(default=None, init=False)

    @property
    def ready(self) -> bool:
        return self.round.done

    async def wait(self) -> None:
        refusal = await refusal_of(self.round)
        if refusal is not None:
            self._refuse(refusal)

    def _refuse(self, exc: KafkaError) -> None:
        version = self.call.version
        flexible = version >= ProduceResponse.FLEXIBLE_SINCE
        for position, reply in enumerate(self.replies):
            frame = memoryview(reply)[SIZE_BYTES:]
            correlation_id, start = parse_response_header(frame, flexible_header=flexible)
            response = codec.decode(ProduceResponse, version, frame[start:])
            refuse(response.responses[0].partition_responses[0], exc)
            self.responses.append(response)
            parts = codec.encode(response, version)
            self.replies[position] = b"".join(response_frame(correlation_id, parts, flexible))


@attrs.define(eq=False, repr=False)
class _Allowed:
    """A pattern that the gate allows, with its partitions that this broker leads."""

    call: Call
    transactional: bool
    partitions: dict[int, Partition] = attrs.field(factory=dict, init=False)


@attrs.define(eq=False, repr=False)
class ShortWay:
    """The short way of one connection: its patterns, and the group that may still grow.

    Answers of the gate are kept from one `interrupt` to the next: nothing is awaited meanwhile.
    """

    services: Services
    peer: Peer
    _patterns: PlainProduces = attrs.field(factory=PlainProduces, init=False)
    _allowed: dict[PlainProduce, _Allowed] = attrs.field(factory=dict, init=False)
    _group: ProduceGroup | None = attrs.field(default=None, init=False)

    def learn(self, frame: memoryview) -> None:
        self._patterns.learn(frame)

    def interrupt(self) -> None:
        """End the group, after an await or another request."""
        self._group = None
        self._allowed.clear()

    def take(self, frame: memoryview) -> ProduceGroup | None:
        """Append a request and return its group; None if it must take the general way and is not in the log."""
        plain = self._patterns.match(frame)
        if plain is None:
            return None
        pattern, correlation_id, index, records = plain
        allowed = self._allowed.get(pattern) or self._ask(pattern, correlation_id)
        if allowed is None:
            return None
        try:
            partition = allowed.partitions.get(index)
            if partition is None:
                partition = led_partition(self.services, pattern.topic, index, topic_id=pattern.topic_id)
                allowed.partitions[index] = partition
            if partition.config.log_append_time:  # the reply has the time, a pattern has not
                return None
            batch = begin_batch(
                self.services,
                partition,
                records,
                version=pattern.version,
                units=AT_ONCE_UNITS,
                transactional=allowed.transactional,
            )
            if not batch.is_checked or (allowed.transactional and not self._is_enrolled(pattern, batch)):
                return None
            if not append_batch(batch, time.time_ns() // 1_000_000, is_enrolled=allowed.transactional):
                return None
        except KafkaError:
            return None
        group, round = self._group, batch.round
        if round is None:  # it repeats a durable batch
            return None
        if group is None or group.round is not round or group.call.version != pattern.version:
            group = self._group = ProduceGroup(allowed.call, round)
        group.replies.append(pattern.reply(correlation_id, index, batch.base_offset, partition.log_start_offset))
        return group

    def _is_enrolled(self, pattern: PlainProduce, batch: Batch) -> bool:
        """Tell whether the partition is enrolled in the batch's transaction, if it has one. Raises KafkaError."""
        header, transactional_id = batch.header, pattern.request.transactional_id
        if not header.is_transactional:
            return True
        if batch.partition.transactions.has_open(header.producer_id, header.producer_epoch):
            return True
        assert transactional_id is not None
        return TransactionalProduce(self.services, transactional_id, pattern.version).enrol_alone(batch)

    def _ask(self, pattern: PlainProduce, correlation_id: int) -> _Allowed | None:
        """Ask the gate, once for all requests of a pattern, unless the log is full."""
        call = Call(ProduceResponse.API_KEY, pattern.version, correlation_id, pattern.client_id, self.peer)
        topic = pattern.topic if pattern.topic_id is None else name_of(self.services, pattern.topic_id)
        if self.services.log.journal.is_full or not self.services.gate.takes_plain(call, pattern.request, topic):
            return None
        self._allowed[pattern] = allowed = _Allowed(call, pattern.request.transactional_id is not None)
        return allowed
