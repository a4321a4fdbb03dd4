"""Idempotent producers of one partition: what has been ordered, and what may come next (KIP-98, KIP-360).

A batch is checked against everything that has been *ordered*, durable or not: five requests in flight are in order
before the first of them is on disk. The last five batches of a producer are remembered, so that a retry of one of them
is recognised; older ones are forgotten only once they are durable, and the last durable one stays, so that a segment
that ends there can tell of it. So does what came before a new epoch, until that is durable.

Sequence numbers count records, from 0 to 2^31-1 and then from 0 again.

A transaction's marker is remembered among its producer's batches, so that a footer tells the epoch that it began, and
which coordinator wrote it.

How many producers are remembered is bounded: `kafscale.log.partition.producer_budget`. Those with an open transaction
go last. A segment's footer does not hold all of them, so a flush costs what has changed: `ProducerStates.for_footer`.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from types import MappingProxyType

import attrs
import trio

from kafscale.errors import KafkaError
from kafscale.formats.transactions import NO_COORDINATOR_EPOCH, NO_SEQUENCE, ProducedBatch, Producer
from kafscale.log.partition.producer_budget import BATCH_BYTES, PRODUCER_BYTES, ProducerBudget
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
)

REMEMBERED_BATCH_COUNT = 5  # as Kafka: the most requests that an idempotent producer may have in flight
SEQUENCE_COUNT = 1 << 31
NOWHERE: Mapping[int, int] = MappingProxyType({})
GAP_SECONDS = 30.0  # as Java's clients wait for an answer: one may be held up by those before it, and more be sent
UNCHANGED_MAX_COUNT = 256  # of a footer, at 43 to 139 bytes each; with 10,000 producers, 40 footers have all of them


@attrs.frozen(eq=False, repr=False)
class FooterProducers:
    """The part of the producers that a segment's footer holds: see `ProducerStates.for_footer`."""

    producers: Sequence[Producer]
    producers_from: int


@attrs.frozen(eq=False, repr=False)
class _Former:
    """A producer's state before its latest epoch, which begins at this offset."""

    until_offset: int
    producer: Producer


@attrs.define(eq=False, repr=False)
class ProducerStates:
    """All producers that wrote to one partition and were not forgotten, the one that has been idle for longest first.

    The footer of each segment holds those that wrote in it, and UNCHANGED_MAX_COUNT of the others, those first whose
    latest state is in the oldest footer. So a flush costs what has changed, and the footers of few segments, from
    `kept_from` on, have all of them.

    `with_transaction` has the ids of those with an open transaction.

    A partition that has just been opened was refused to its clients a moment ago, and they have several batches under
    way: were the third the first to come, and taken for the beginning of a producer that is not known, then the two
    before it would come behind it. So until `opening_until` such a producer begins with its sequence 0, or later. And
    what comes until then stays `is_early`, however long its request waits for something.

    One that is known, but has appended nothing since, is told to try again, too, where it leaves a gap. If that were
    OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka would take a new epoch and send again in it all that has no answer yet,
    even what other partitions have in their logs already.
    """

    budget: ProducerBudget = attrs.field(factory=ProducerBudget)
    with_transaction: Container[int] = ()
    producers: OrderedDict[int, Producer] = attrs.field(factory=OrderedDict, init=False)
    opening_until: float = attrs.field(default=-math.inf, init=False)  # trio's clock
    opening_offset: int = attrs.field(default=0, init=False)  # the next one when it was opened
    kept_in: OrderedDict[int, int] = attrs.field(factory=OrderedDict, init=False)  # by id, that of `kept`
    _former: dict[int, list[_Former]] = attrs.field(factory=dict, init=False)  # by id, oldest first

    def is_early(self, header: BatchHeader) -> bool:
        """Tell whether this batch may have come before another one of its producer that was refused."""
        if not header.base_sequence:
            return False
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return self._is_opening()
        is_silent = bool(producer.batches) and producer.batches[-1].last_offset < self.opening_offset
        return is_silent and self._is_opening(GAP_SECONDS)

    def open(self, until: float, next_offset: int) -> None:
        """Begin to serve clients: until then (trio's clock) a batch may come whose predecessors were refused before."""
        self.opening_until, self.opening_offset = until, next_offset

    def check(self, header: BatchHeader, *, is_early: bool = False) -> ProducedBatch | None:
        """Check whether this batch may be appended now: None if so, the earlier batch if it is a duplicate.

        Raises KafkaError INVALID_PRODUCER_EPOCH (older epoch), OUT_OF_ORDER_SEQUENCE_NUMBER (a gap),
        INVALID_PRODUCER_ID_MAPPING (its id will be another's) or NOT_LEADER_OR_FOLLOWER (see above). A producer that is
        not known, or no longer, may begin anywhere, but not behind a batch of it that was refused; a new epoch of a
        known one begins at 0.
        """
        producer = self.producers.get(header.producer_id)
        if producer is None:
            if self.budget.is_withheld(header.producer_id):
                raise KafkaError(
                    INVALID_PRODUCER_ID_MAPPING,
                    f"producer id {header.producer_id} is yet to be given out: the client needs a new producer",
                )
            if is_early or self.is_early(header):
                raise _too_early()
            return None
        sequence = header.base_sequence
        if header.producer_epoch != producer.epoch:
            if header.producer_epoch < producer.epoch:
                raise KafkaError(
                    INVALID_PRODUCER_EPOCH,
                    f"producer {header.producer_id} has epoch {producer.epoch}, this batch has {header.producer_epoch}",
                )
            if sequence != 0 and producer.epoch >= 0:
                raise self._gap(header, 0, is_early=is_early)
            return None
        if not producer.batches:
            if producer.due_sequence not in (None, sequence):
                raise _out_of_order(header, expected=producer.due_sequence or 0)
            return None
        expected = (producer.batches[-1].last_sequence + 1) % SEQUENCE_COUNT
        if sequence == expected:
            return None
        last_sequence = header.last_sequence
        for batch in producer.batches:
            if batch.base_sequence == sequence and batch.last_sequence == last_sequence:
                return batch
        if producer.epoch < 0:  # a copier left it out: any sequence goes, as in Kafka
            return None
        raise self._gap(header, expected, is_early=is_early)

    def _gap(self, header: BatchHeader, expected: int, *, is_early: bool) -> KafkaError:
        """Return the error for a batch that is not the next one: it may be retried if the ones before it may come."""
        is_ahead = (header.base_sequence - expected) % SEQUENCE_COUNT < SEQUENCE_COUNT // 2
        if is_ahead and (is_early or self.is_early(header)):
            return _too_early()
        return _out_of_order(header, expected)

    def _is_opening(self, more_seconds: float = 0.0) -> bool:
        return self.opening_until > -math.inf and trio.current_time() < self.opening_until + more_seconds

    def record(self, header: BatchHeader, base_offset: int, now_ms: int, *, durable_before: int) -> None:
        """Remember a batch that was ordered. What lies below offset `durable_before` can't be taken back any more."""
        producer = self.producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            self._keep_former(header.producer_id, base_offset, durable_before)
            producer = self._begin_epoch(header.producer_id, header.producer_epoch, now_ms)
        else:
            self.producers.move_to_end(header.producer_id)
        last_offset = base_offset + header.last_offset_delta
        batch = ProducedBatch(header.base_sequence, header.last_sequence, base_offset, last_offset)
        self._remember(producer, batch, now_ms, durable_before)

    def record_marker(self, marker: EndMarker, offset: int, now_ms: int, *, goes_on: bool, durable_before: int) -> None:
        """Remember the end of a transaction.

        `goes_on` says that it had the same epoch, so that sequence numbers go on where they were, known or forgotten.
        In a new epoch they begin at 0.
        """
        producer_id, epoch = marker.producer_id, marker.producer_epoch
        producer = self.producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            is_forgotten = producer is None and goes_on
            self._keep_former(producer_id, offset, durable_before)
            producer = self._begin_epoch(producer_id, epoch, now_ms)
            producer.coordinator_epoch = marker.coordinator_epoch
            if is_forgotten:
                return
        else:
            self.producers.move_to_end(producer_id)
            producer.coordinator_epoch = marker.coordinator_epoch
        last_sequence = producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE
        self._remember(producer, ProducedBatch(NO_SEQUENCE, last_sequence, offset, offset), now_ms, durable_before)

    def _keep_former(self, producer_id: int, offset: int, durable_before: int) -> None:
        """Keep the state before a new epoch, which begins at this offset, until that is durable.

        A footer may be written meanwhile whose segment ends before: if the new epoch is lost then, a batch that the
        producer sends again has to be recognised.
        """
        self._drop_former(producer_id, durable_before)
        producer = self.producers.get(producer_id)
        if producer is not None and producer.batches:
            self.budget.used_bytes += _memory_bytes(producer)
            self._former.setdefault(producer_id, []).append(_Former(offset, producer))

    def _drop_former(self, producer_id: int, before_offset: int) -> None:
        """Drop the states of a producer before epochs that begin below an offset."""
        former = self._former.get(producer_id)
        while former and former[0].until_offset < before_offset:
            self.budget.used_bytes -= _memory_bytes(former.pop(0).producer)
        if not former:
            self._former.pop(producer_id, None)

    def _begin_epoch(self, producer_id: int, epoch: int, now_ms: int) -> Producer:
        """Add a producer that is new, or has a new epoch."""
        before = self.producers.get(producer_id)
        if before is None:
            self._make_room(now_ms)
        coordinator_epoch = NO_COORDINATOR_EPOCH if before is None else before.coordinator_epoch
        producer = Producer(producer_id, epoch, [], now_ms, coordinator_epoch=coordinator_epoch)
        self._add(producer)
        return producer

    def _remember(self, producer: Producer, batch: ProducedBatch, now_ms: int, durable_before: int) -> None:
        batches = producer.batches
        batches.append(batch)
        producer.last_timestamp_ms = now_ms
        if len(batches) <= REMEMBERED_BATCH_COUNT:
            self.budget.used_bytes += BATCH_BYTES
        while len(batches) > REMEMBERED_BATCH_COUNT and batches[1].last_offset < durable_before:
            del batches[0]

    def refuse(self, header: BatchHeader, now_ms: int, *, is_early: bool = False) -> None:
        """A batch is refused before it is checked, and its producer will send it again: what comes behind it waits."""
        producer_id = header.producer_id
        if is_early or self.is_early(header):
            return  # those before it may have been refused, too, before the partition was opened
        if header.has_producer_id and producer_id not in self.producers and not self.budget.is_withheld(producer_id):
            self._make_room(now_ms)
            self._add(Producer(producer_id, header.producer_epoch, [], now_ms, due_sequence=header.base_sequence))

    # ---- forgetting ---------------------------------------------------------------------------------------------

    def _add(self, producer: Producer) -> None:
        """Add a producer as the one heard of last, in place of another one with its id if there is one."""
        producer_id = producer.producer_id
        if producer_id in self.producers:
            self._release(self.producers[producer_id])
        elif not self.producers:
            self.budget.enter(self, producer.last_timestamp_ms)
        self.producers[producer_id] = producer
        self.producers.move_to_end(producer_id)
        self.budget.count += 1
        self.budget.used_bytes += _memory_bytes(producer)

    def _release(self, producer: Producer) -> None:
        self.budget.count -= 1
        self.budget.used_bytes -= _memory_bytes(producer)

    def _oldest(self) -> Producer | None:
        """Return the one that has been idle for longest, of those without an open transaction if there is any."""
        for producer_id, producer in self.producers.items():
            if producer_id not in self.with_transaction:
                return producer
        return next(iter(self.producers.values()), None)

    def _forget(self, producer: Producer) -> Producer:
        del self.producers[producer.producer_id]
        self.kept_in.pop(producer.producer_id, None)
        self._drop_former(producer.producer_id, sys.maxsize)
        self._release(producer)
        if not self.producers:
            self.budget.leave(self)
        return producer

    def _make_room(self, now_ms: int) -> None:
        """Make room for one more producer."""
        while len(self.producers) >= self.budget.partition_max_count:
            self.evict_oldest(now_ms)
        if self.budget.is_full:
            self.budget.make_room(now_ms)

    def oldest_ms(self) -> int | None:
        """Return when the producer that has been idle for longest was last heard of, or None."""
        oldest = self._oldest()
        return None if oldest is None else oldest.last_timestamp_ms

    def evict_oldest(self, now_ms: int) -> None:
        """Forget the one that has been idle for longest, for want of room."""
        oldest = self._oldest()
        assert oldest is not None
        self.budget.evicted(self._forget(oldest).last_timestamp_ms, now_ms)

    def expire(self, before_ms: int) -> None:
        """Forget producers not heard of since `before_ms` (`producer.id.expiration.ms`, KIP-854)."""
        while (oldest := self._oldest()) is not None and oldest.last_timestamp_ms < before_ms:
            if oldest.producer_id in self.with_transaction:
                return
            self._forget(oldest)

    def clear(self) -> None:
        """Forget all of them, in new dictionaries: a caller may hold those of before."""
        for producer in self.producers.values():
            self._release(producer)
        for producer_id in list(self._former):
            self._drop_former(producer_id, sys.maxsize)
        self.budget.leave(self)
        self.producers, self.kept_in = OrderedDict(), OrderedDict()

    # ---- footers ------------------------------------------------------------------------------------------------

    def snapshot(self, before_offset: int) -> Sequence[Producer]:
        """The state as it was before `before_offset` (exclusive)."""
        copies = (self._copy(producer, before_offset) for producer in self.producers.values())
        return [copy for copy in copies if copy.batches]

    def for_footer(self, first_offset: int, end_offset: int, *, heard_since_ms: int = 0) -> FooterProducers:
        """Return what the footer of a segment with the offsets from `first_offset` to `end_offset` (exclusive) is to
        hold.

        The producers that wrote in it, and some others, of which the oldest footers need not be read any more then.
        The state of all of them is in the footers of the segments that hold `producers_from` or come after it.
        """
        self.expire(heard_since_ms)
        for producer_id in list(self._former):
            self._drop_former(producer_id, end_offset)
        written = self._written_since(first_offset, end_offset)
        others: list[Producer] = []
        producers_from = first_offset
        for producer_id, base_offset in self.kept_in.items():
            if producer_id not in written:
                copy = self._copy(self.producers[producer_id], end_offset)
                if len(others) == UNCHANGED_MAX_COUNT or not copy.batches:
                    producers_from = base_offset
                    break
                others.append(copy)
        return FooterProducers([*others, *reversed(written.values())], producers_from)

    def _written_since(self, first_offset: int, end_offset: int) -> dict[int, Producer]:
        """Return the producers with a batch in this range, the latest first, as they were at its end."""
        written = {}
        for producer in reversed(self.producers.values()):
            if producer.batches:
                if producer.batches[-1].last_offset < first_offset:
                    break
                copy = self._copy(producer, end_offset)
                if copy.batches and copy.batches[-1].last_offset >= first_offset:
                    written[producer.producer_id] = copy
        return written

    def _copy(self, producer: Producer, before_offset: int) -> Producer:
        """Return a copy of a producer as it was before this offset, if need be with a former epoch."""
        for former in self._former.get(producer.producer_id, ()):
            if former.until_offset >= before_offset:
                return _copy(former.producer, before_offset)
        return _copy(producer, before_offset)

    def kept(self, producer_ids: Iterable[int], base_offset: int) -> None:
        """The footer of the segment that begins here holds the latest state of these."""
        for producer_id in producer_ids:
            if producer_id in self.producers:
                self.kept_in[producer_id] = base_offset
                self.kept_in.move_to_end(producer_id)

    @property
    def kept_from(self) -> int | None:
        """The segments that hold this offset or come after it have footers that are needed; None if none is."""
        return next(iter(self.kept_in.values()), None)

    def still_needed(self, producers: Iterable[Producer], first_offset: int, last_offset: int) -> Sequence[Producer]:
        """Return those of the producers whose latest state is in a footer of this range of segments (both ends
        inclusive).
        """
        return [
            producer
            for producer in producers
            if first_offset <= self.kept_in.get(producer.producer_id, -1) <= last_offset
        ]

    def restore(self, producers: Collection[Producer], kept_in: Mapping[int, int] = NOWHERE) -> None:
        """Begin with the state of a snapshot, which stays as it is. `kept_in` has, by id, whose footer holds it.

        What that does not have is in no footer.
        """
        self.clear()
        in_order = sorted(producers, key=lambda each: each.last_timestamp_ms)
        for producer in in_order:
            self._make_room(in_order[-1].last_timestamp_ms)
            self._add(attrs.evolve(producer, batches=producer.batches[:]))
        for producer_id, base_offset in sorted(kept_in.items(), key=lambda each: each[1]):
            self.kept([producer_id], base_offset)


def _memory_bytes(producer: Producer) -> int:
    return PRODUCER_BYTES + BATCH_BYTES * min(len(producer.batches), REMEMBERED_BATCH_COUNT)


def _copy(producer: Producer, before_offset: int) -> Producer:
    """Return a copy of a producer as it was before this offset."""
    batches = producer.batches[-REMEMBERED_BATCH_COUNT:]
    if batches and batches[-1].last_offset >= before_offset:
        batches = [batch for batch in producer.batches if batch.last_offset < before_offset][-REMEMBERED_BATCH_COUNT:]
    return Producer(
        producer.producer_id,
        producer.epoch,
        batches,
        producer.last_timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
    )


def _too_early() -> KafkaError:
    return KafkaError(NOT_LEADER_OR_FOLLOWER, "what was sent before this may have been refused: try again")


def _out_of_order(header: BatchHeader, expected: int) -> KafkaError:
    return KafkaError(
        OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was due",
    )
