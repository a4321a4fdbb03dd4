"""The short way of Produces that repeat earlier ones except for their records, as nearly all do.

A request that matches a pattern of its connection (`kafscale.api.produce.patterns`) is not decoded. The same functions
as for any other append it, in one call, and its reply is made at once. The requests of one read that become durable
together have one place in the queue, one wait and one buffer to send. With 64 in flight a request of 1 KiB takes 26 us
of CPU instead of 69, one of 16 KiB on 16 partitions 65 instead of 107 (`docs/decisions/0001-plain-produce.md`).

Any request that is refused, delayed or different goes the general way. Its partition may already be enrolled in its
transaction, which changes nothing there.
"""

from __future__ import annotations

import time

import attrs

from kafscale.api.handling.calls import Call, Peer
from kafscale.api.handling.partitions import led_partition, name_of
from kafscale.api.handling.record_checks import AT_ONCE_UNITS
from kafscale.api.handling.services import Services
from kafscale.api.produce.batches import Batch, TransactionalProduce, append_batch, begin_batch, refusal_of, refuse
from kafscale.api.produce.patterns import PlainProduce, PlainProduces
from kafscale.errors import KafkaError
from kafscale.log.partition.partition import Partition
from kafscale.log.wal.journal import Round
from kafscale.wire import codec
from kafscale.wire.frames import SIZE_BYTES, parse_response_header, response_frame
from kafscale.wire.messages.records import ProduceResponse


@attrs.define(eq=False, repr=False)
class ProduceGroup:
    """Requests of one version in the log, and their replies, which may be sent when `round` is done.

    `call` is that of the first request. `responses` are set if the round fails.
    """

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
        """Learn the pattern of a Produce that has taken the general way."""
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
        if self.services.log.is_full or not self.services.gate.takes_plain(call, pattern.request, topic):
            return None
        self._allowed[pattern] = allowed = _Allowed(call, pattern.request.transactional_id is not None)
        return allowed
