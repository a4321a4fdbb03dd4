"""Idempotent producers of one partition: what has been ordered, and what may come next (KIP-98, KIP-360).

A batch is checked against everything that has been *ordered*, durable or not: five requests in flight are in order
before the first of them is on disk. The last five batches of a producer are remembered, so that a retry of one of them
is recognised; older ones are forgotten only once they are durable, and the last durable one stays, so that a segment
that ends there can tell of it.

Sequence numbers count records, from 0 to 2^31-1 and then from 0 again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import attrs

from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER
from kafscale.wire.records import BatchHeader

REMEMBERED_BATCH_COUNT = 5  # as Kafka: the most requests that an idempotent producer may have in flight
SEQUENCE_COUNT = 1 << 31


@attrs.define(eq=True)
class ProducedBatch:
    """A batch that was ordered: its sequence numbers and the offsets it got."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@attrs.define(eq=True)
class Producer:
    """One producer id: its epoch, its latest batches (oldest first) and when it was last heard of.

    `due_sequence` is that of a batch which was refused or taken back and will be sent again, of a producer without
    batches.
    """

    producer_id: int
    epoch: int
    batches: deque[ProducedBatch]
    last_timestamp_ms: int
    due_sequence: int | None = None


@attrs.define(eq=False)
class ProducerStates:
    """All producers that wrote to one partition and have not expired."""

    producers: dict[int, Producer] = attrs.field(factory=dict, init=False)

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """Whether this batch may be appended now: None if so, the earlier batch if it is a duplicate.

        Raises KafkaError INVALID_PRODUCER_EPOCH (older epoch) or OUT_OF_ORDER_SEQUENCE_NUMBER (a gap). A producer
        that is not known, or no longer, may begin anywhere, but not behind a batch of it that was refused; a new epoch
        of a known one begins at 0.
        """
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return None
        sequence = header.base_sequence
        if header.producer_epoch != producer.epoch:
            if header.producer_epoch < producer.epoch:
                raise KafkaError(
                    INVALID_PRODUCER_EPOCH,
                    f"producer {header.producer_id} has epoch {producer.epoch}, this batch has {header.producer_epoch}",
                )
            if sequence != 0:
                raise _out_of_order(header, expected=0)
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
        raise _out_of_order(header, expected)

    def record(self, header: BatchHeader, base_offset: int, now_ms: int, *, durable_before: int) -> None:
        """Remember a batch that was ordered. What lies below offset `durable_before` can't be taken back any more."""
        producer = self.producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = Producer(header.producer_id, header.producer_epoch, deque(), now_ms)
            self.producers[header.producer_id] = producer
        batches = producer.batches
        last_offset = base_offset + header.last_offset_delta
        batches.append(ProducedBatch(header.base_sequence, header.last_sequence, base_offset, last_offset))
        producer.last_timestamp_ms = now_ms
        while len(batches) > REMEMBERED_BATCH_COUNT and batches[1].last_offset < durable_before:
            batches.popleft()

    def refuse(self, header: BatchHeader, now_ms: int) -> None:
        """A batch is refused before it is checked, and its producer will send it again: what comes behind it waits."""
        if header.has_producer_id and header.producer_id not in self.producers:
            self.producers[header.producer_id] = Producer(
                header.producer_id, header.producer_epoch, deque(), now_ms, due_sequence=header.base_sequence
            )

    def expect_again(self, before: Iterable[Producer], first_offset: int) -> None:
        """What these producers wrote from an offset on was taken back, and they will send it again, unless it is here.

        What comes behind the first of it waits, also of a producer that would be taken for a new one now.
        """
        for producer in before:
            taken_back = (each.base_sequence for each in producer.batches if each.base_offset >= first_offset)
            due_sequence = next(taken_back, producer.due_sequence)
            if due_sequence is not None and producer.producer_id not in self.producers:
                self.producers[producer.producer_id] = attrs.evolve(
                    producer, batches=deque(), due_sequence=due_sequence
                )

    def expire(self, before_ms: int) -> None:
        """Forget producers not heard of since `before_ms` (`producer.id.expiration.ms`, KIP-854)."""
        expired = [p.producer_id for p in self.producers.values() if p.last_timestamp_ms < before_ms]
        for producer_id in expired:
            del self.producers[producer_id]

    def snapshot(self, before_offset: int, *, heard_since_ms: int = 0) -> Sequence[Producer]:
        """The state as it was before `before_offset` (exclusive), for a segment's footer; without expired producers."""
        copies = []
        for producer in self.producers.values():
            if producer.last_timestamp_ms >= heard_since_ms:
                batches = [batch for batch in producer.batches if batch.last_offset < before_offset]
                if batches:
                    copies.append(_copy(producer, batches[-REMEMBERED_BATCH_COUNT:]))
        return copies

    def restore(self, producers: Iterable[Producer]) -> None:
        """Begin with the state of a snapshot, which stays as it is."""
        self.producers = {producer.producer_id: _copy(producer, producer.batches) for producer in producers}


def _copy(producer: Producer, batches: Iterable[ProducedBatch]) -> Producer:
    return Producer(producer.producer_id, producer.epoch, deque(batches), producer.last_timestamp_ms)


def _out_of_order(header: BatchHeader, expected: int) -> KafkaError:
    return KafkaError(
        OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was due",
    )
