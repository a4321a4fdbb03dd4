"""Idempotent producers of one partition: check and record sequence numbers (KIP-98, KIP-360), within bounds of memory.

A batch is checked against all ordered ones, durable or not. A producer's last five batches are remembered, so that a
retry is recognised. An older one is forgotten only once it is durable; the last durable one stays, because a segment
may end with it. The state before a new epoch stays until the new epoch is durable. A transaction's marker is among its
producer's batches, so that a footer tells its epoch and coordinator. Sequence numbers wrap from 2^31-1 to 0.

Kafka remembers every producer that wrote within a day and can run out of memory (KIP-936 was never adopted). Here the
number is bounded per partition and per broker: the longest idle producer is evicted first, those with an open
transaction last. New producers are never refused. An evicted one continues as a new one; only a batch that it repeats
after the eviction would be stored twice, so evictions of recently active producers are counted and logged.
"""

from __future__ import annotations

import heapq
import logging
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs
import trio

from kafscale.config.limits import Limits
from kafscale.errors import KafkaError
from kafscale.formats.transactions import NO_COORDINATOR_EPOCH, NO_SEQUENCE, ProducedBatch, Producer
from kafscale.log.partition.transactions import Transactions
from kafscale.metrics import Counter, Metrics
from kafscale.wire.batch_header import TRANSACTIONAL, BatchHeader
from kafscale.wire.control_records import EndMarker, parse_marker
from kafscale.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
)

PRODUCER_BYTES = 500  # in memory, measured, with its places in two dictionaries and without batches
BATCH_BYTES = 160  # in memory, measured; five of them are remembered
LEFT_ENTRIES_MAX_COUNT = 1000  # in the heap, of partitions that remember nothing any more
ACTIVE_MS = 120_000  # as Java's delivery.timeout.ms: producers repeat a batch for no longer
WARNING_INTERVAL_MS = 60_000

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True, repr=False)
class ProducerBudget:
    """The bound of all partitions together. `is_withheld` tells whether an id has not been given to a producer yet."""

    partition_max_count: int = sys.maxsize
    max_count: int = sys.maxsize
    max_bytes: int = sys.maxsize
    is_withheld: Callable[[int], bool] = lambda producer_id: False
    evicted_idle_count: Counter = attrs.field(factory=Counter, init=False)
    evicted_active_count: Counter = attrs.field(factory=Counter, init=False)
    count: int = attrs.field(default=0, init=False)
    used_bytes: int = attrs.field(default=0, init=False)
    _holders: dict[ProducerStates, int] = attrs.field(factory=dict, init=False)  # the current heap entry of each
    _by_age: list[tuple[int, int, ProducerStates]] = attrs.field(factory=list, init=False)  # a heap; see `make_room`
    _entered_count: int = attrs.field(default=0, init=False)
    _warned_ms: int | None = attrs.field(default=None, init=False)

    @classmethod
    def of(cls, limits: Limits, is_withheld: Callable[[int], bool]) -> ProducerBudget:
        return cls(
            partition_max_count=limits.max_producer_ids_per_partition_count,
            max_count=limits.max_producer_ids_count,
            max_bytes=limits.max_producer_state_bytes,
            is_withheld=is_withheld,
        )

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_count or self.used_bytes >= self.max_bytes

    def register(self, metrics: Metrics) -> None:
        metrics.counts(
            "kafscale_producer_ids_evicted_total",
            "Idempotent producers forgotten for lack of memory, by state: idle or active.",
            "state",
            lambda: {"idle": self.evicted_idle_count.value, "active": self.evicted_active_count.value},
        )
        help = "Idempotent producers that partitions remember, counted once per partition."
        metrics.gauge("kafscale_producer_ids", help, lambda: self.count)
        help = "Estimated memory of the state of idempotent producers."
        metrics.gauge("kafscale_producer_state_bytes", help, lambda: self.used_bytes)

    def enter(self, holder: ProducerStates, oldest_ms: int) -> None:
        self._entered_count += 1
        self._holders[holder] = self._entered_count
        heapq.heappush(self._by_age, (oldest_ms, self._entered_count, holder))
        if len(self._by_age) > 2 * len(self._holders) + LEFT_ENTRIES_MAX_COUNT:
            self._by_age = [entry for entry in self._by_age if self._holders.get(entry[2]) == entry[1]]
            heapq.heapify(self._by_age)

    def leave(self, holder: ProducerStates) -> None:
        self._holders.pop(holder, None)

    def make_room(self, now_ms: int) -> None:
        """Evict the longest idle producers of any partition until there is room for one more.

        An entry of the heap may be outdated: the oldest producer of a partition is never older than it tells.
        """
        while self.is_full and self._by_age:
            told_ms, number, holder = self._by_age[0]
            oldest_ms = holder.oldest_ms() if self._holders.get(holder) == number else None
            if oldest_ms is None:
                heapq.heappop(self._by_age)
            elif oldest_ms > told_ms:
                heapq.heapreplace(self._by_age, (oldest_ms, number, holder))
            else:
                holder.evict_oldest(now_ms)

    def evicted(self, last_timestamp_ms: int, now_ms: int) -> None:
        if now_ms - last_timestamp_ms >= ACTIVE_MS:
            self.evicted_idle_count.value += 1
            return
        self.evicted_active_count.value += 1
        if self._warned_ms is None or now_ms - self._warned_ms >= WARNING_INTERVAL_MS:
            self._warned_ms = now_ms
            logger.warning(
                "idempotent producers were forgotten %d ms after their last batch, as there are too many of them: what "
                "they repeat is stored twice; raise --max-producer-ids-per-partition or "
                "--max-producer-state-bytes, or let clients keep their producers instead of making new ones",
                now_ms - last_timestamp_ms,
            )


REMEMBERED_BATCH_COUNT = 5  # as Kafka: the most requests that an idempotent producer may have in flight
SEQUENCE_COUNT = 1 << 31
GAP_SECONDS = 30.0  # as Java's clients wait for an answer: one may be held up by those before it, and more be sent
UNCHANGED_MAX_COUNT = 256  # of a footer, at 43 to 139 bytes each; with 10,000 producers, 40 footers have all of them


@attrs.frozen(eq=False, repr=False)
class FooterProducers:
    producers: Sequence[Producer]
    producers_from: int


@attrs.define(eq=False, repr=False)
class ProducerStates:
    """Producers of one partition that are remembered, the longest idle one first.

    The footer of each segment holds the producers that wrote in it, and UNCHANGED_MAX_COUNT others, first those whose
    latest state is in the oldest footer. So a flush costs what has changed, and the footers of few segments, from
    `kept_from` on, hold all producers.

    Clients of a partition that was just opened were refused a moment ago and have several batches under way. If the
    third came first, and began an unknown producer, the two before it would come behind it. So until `opening_until` an
    unknown producer may only begin with sequence 0; a known one that has written nothing since is told to retry a gap,
    because OUT_OF_ORDER_SEQUENCE_NUMBER would make librdkafka resend everything in a new epoch. A batch that came early
    stays `is_early`, however long its request waits.
    """

    budget: ProducerBudget = attrs.field(factory=ProducerBudget)
    transactions: Transactions = attrs.field(factory=Transactions)
    producers: OrderedDict[int, Producer] = attrs.field(factory=OrderedDict, init=False)
    opening_until: float = attrs.field(default=-math.inf, init=False)  # trio's clock
    opening_offset: int = attrs.field(default=0, init=False)  # the next one when it was opened
    kept_in: OrderedDict[int, int] = attrs.field(factory=OrderedDict, init=False)  # by id, that of `kept`
    _former: dict[int, list[tuple[int, Producer]]] = attrs.field(factory=dict, init=False)  # states before an offset

    def is_early(self, header: BatchHeader) -> bool:
        """Tell whether an earlier batch of this producer may have been refused before the partition was opened."""
        if not header.base_sequence:
            return False
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return self._is_opening()
        is_silent = bool(producer.batches) and producer.batches[-1].last_offset < self.opening_offset
        return is_silent and self._is_opening(GAP_SECONDS)

    def open(self, until: float, next_offset: int) -> None:
        """Begin to serve clients; `until` is a time of trio's clock."""
        self.opening_until, self.opening_offset = until, next_offset

    def check(self, header: BatchHeader, *, is_early: bool = False) -> ProducedBatch | None:
        """Check whether this batch may be appended: None if so, or the earlier batch that it repeats.

        Raises KafkaError INVALID_PRODUCER_EPOCH (older epoch), OUT_OF_ORDER_SEQUENCE_NUMBER (a gap),
        INVALID_PRODUCER_ID_MAPPING (withheld id) or NOT_LEADER_OR_FOLLOWER (early). An unknown producer may begin with
        any sequence, a new epoch of a known one begins at 0.
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
        is_ahead = (header.base_sequence - expected) % SEQUENCE_COUNT < SEQUENCE_COUNT // 2
        if is_ahead and (is_early or self.is_early(header)):
            return _too_early()
        return _out_of_order(header, expected)

    def _is_opening(self, more_seconds: float = 0.0) -> bool:
        return self.opening_until > -math.inf and trio.current_time() < self.opening_until + more_seconds

    def record(self, header: BatchHeader, base_offset: int, now_ms: int, *, durable_before: int) -> None:
        """Remember an ordered batch. Offsets below `durable_before` are durable."""
        producer = self.producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            self._keep_former(header.producer_id, base_offset, durable_before)
            producer = self._begin_epoch(header.producer_id, header.producer_epoch, now_ms)
        else:
            self.producers.move_to_end(header.producer_id)
        last_offset = base_offset + header.last_offset_delta
        batch = ProducedBatch(header.base_sequence, header.last_sequence, base_offset, last_offset)
        self._remember(producer, batch, now_ms, durable_before)

    def take(
        self, header: BatchHeader, data: memoryview, base_offset: int, now_ms: int, *, durable_before: int
    ) -> None:
        """Record a batch, and the transaction that it opens, continues or ends. Raises CorruptBatch."""
        if not header.attributes & TRANSACTIONAL:
            self.record(header, base_offset, now_ms, durable_before=durable_before)
        elif not header.is_control:
            self.record(header, base_offset, now_ms, durable_before=durable_before)
            coordinator_epoch = self.producers[header.producer_id].coordinator_epoch
            self.transactions.take_data(header, base_offset, coordinator_epoch)
        elif (marker := parse_marker(data, header)) is not None:
            ended = self.transactions.take_marker(marker, base_offset)
            goes_on = ended is not None and ended.epoch == marker.producer_epoch
            self.record_marker(marker, base_offset, now_ms, goes_on=goes_on, durable_before=durable_before)

    def record_marker(self, marker: EndMarker, offset: int, now_ms: int, *, goes_on: bool, durable_before: int) -> None:
        """Remember the end of a transaction.

        `goes_on`: it had the marker's epoch, so sequence numbers continue. In a new epoch they begin at 0.
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
        """Keep the state before a new epoch until that is durable.

        If the new epoch is lost, a footer of a segment that ends before it must still recognise repeated batches.
        """
        self._drop_former(producer_id, durable_before)
        producer = self.producers.get(producer_id)
        if producer is not None and producer.batches:
            self.budget.used_bytes += _memory_bytes(producer)
            self._former.setdefault(producer_id, []).append((offset, producer))

    def _drop_former(self, producer_id: int, before_offset: int) -> None:
        former = self._former.get(producer_id)
        while former and former[0][0] < before_offset:
            self.budget.used_bytes -= _memory_bytes(former.pop(0)[1])
        if not former:
            self._former.pop(producer_id, None)

    def _begin_epoch(self, producer_id: int, epoch: int, now_ms: int) -> Producer:
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
        """Note a batch that was refused before its check: the producer sends it again, and later ones must wait."""
        producer_id = header.producer_id
        if is_early or self.is_early(header):
            return  # those before it may have been refused, too, before the partition was opened
        if header.has_producer_id and producer_id not in self.producers and not self.budget.is_withheld(producer_id):
            self._make_room(now_ms)
            self._add(Producer(producer_id, header.producer_epoch, [], now_ms, due_sequence=header.base_sequence))

    # ---- forgetting ---------------------------------------------------------------------------------------------

    def _add(self, producer: Producer) -> None:
        """Add a producer as the most recent one, replacing one with the same id."""
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
        """Return the longest idle producer, of those without an open transaction if there are any."""
        for producer_id, producer in self.producers.items():
            if producer_id not in self.transactions.open:
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
        while len(self.producers) >= self.budget.partition_max_count:
            self.evict_oldest(now_ms)
        if self.budget.is_full:
            self.budget.make_room(now_ms)

    def oldest_ms(self) -> int | None:
        oldest = self._oldest()
        return None if oldest is None else oldest.last_timestamp_ms

    def evict_oldest(self, now_ms: int) -> None:
        oldest = self._oldest()
        assert oldest is not None
        self.budget.evicted(self._forget(oldest).last_timestamp_ms, now_ms)

    def expire(self, before_ms: int) -> None:
        """Forget producers not heard of since `before_ms` (`producer.id.expiration.ms`, KIP-854)."""
        while (oldest := self._oldest()) is not None and oldest.last_timestamp_ms < before_ms:
            if oldest.producer_id in self.transactions.open:
                return
            self._forget(oldest)

    def clear(self) -> None:
        """Forget all producers, in new dictionaries: a caller may hold the old ones."""
        for producer in self.producers.values():
            self._release(producer)
        for producer_id in list(self._former):
            self._drop_former(producer_id, sys.maxsize)
        self.budget.leave(self)
        self.producers, self.kept_in = OrderedDict(), OrderedDict()

    # ---- footers ------------------------------------------------------------------------------------------------

    def snapshot(self, before_offset: int) -> Sequence[Producer]:
        copies = (self._copy(producer, before_offset) for producer in self.producers.values())
        return [copy for copy in copies if copy.batches]

    def for_footer(self, first_offset: int, end_offset: int, *, heard_since_ms: int = 0) -> FooterProducers:
        """Return the producers for the footer of a segment from `first_offset` to `end_offset` (exclusive).

        These wrote in it, and some others, so that the oldest footers need not be read any more. The footers of
        segments that hold `producers_from` or come after it have all producers.
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
        for until_offset, former in self._former.get(producer.producer_id, ()):
            if until_offset >= before_offset:
                return _copy(former, before_offset)
        return _copy(producer, before_offset)

    def kept(self, producer_ids: Iterable[int], base_offset: int) -> None:
        """Note that the footer of the segment at `base_offset` holds the latest state of these producers."""
        for producer_id in producer_ids:
            if producer_id in self.producers:
                self.kept_in[producer_id] = base_offset
                self.kept_in.move_to_end(producer_id)

    @property
    def kept_from(self) -> int | None:
        """Footers of segments that hold this offset or come after it are needed; None if no footer is."""
        return next(iter(self.kept_in.values()), None)

    def still_needed(self, producers: Iterable[Producer], first_offset: int, last_offset: int) -> Sequence[Producer]:
        """Select the producers whose latest state is in a footer of these segments (both offsets inclusive)."""
        return [
            producer
            for producer in producers
            if first_offset <= self.kept_in.get(producer.producer_id, -1) <= last_offset
        ]

    def restore(self, producers: Collection[Producer], kept_in: Mapping[int, int] | None = None) -> None:
        """Begin with a snapshot; `kept_in` has, by producer id, the segment whose footer holds it."""
        self.clear()
        in_order = sorted(producers, key=lambda each: each.last_timestamp_ms)
        for producer in in_order:
            self._make_room(in_order[-1].last_timestamp_ms)
            self._add(attrs.evolve(producer, batches=producer.batches[:]))
        for producer_id, base_offset in sorted((kept_in or {}).items(), key=lambda each: each[1]):
            self.kept([producer_id], base_offset)


def _memory_bytes(producer: Producer) -> int:
    return PRODUCER_BYTES + BATCH_BYTES * min(len(producer.batches), REMEMBERED_BATCH_COUNT)


def _copy(producer: Producer, before_offset: int) -> Producer:
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
