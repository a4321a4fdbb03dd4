"""Transactions that are open in a partition and that no coordinator knows of: nobody would ever end them (KIP-664).

Whoever reads committed records would wait for them for ever. Enrolment is durable before the first batch, so none comes
of a crash; but where a data directory was lost (`wal`), the bucket may have the one and not the other, and so may one
that was adopted. They are aborted after a start, when all coordinators have read what there is.

Nor does a coordinator end one that has only an older epoch of its producer: the partition would refuse its marker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import attrs

from kafscale.cluster.coordination.state_records import now_ms
from kafscale.cluster.internal import EndEntry, InternalLog
from kafscale.cluster.transactions.coordinators import TransactionCoordinators
from kafscale.cluster.transactions.values import TopicPartition
from kafscale.errors import KafkaError
from kafscale.formats.transactions import OpenTransaction
from kafscale.log.partition.partition import Partition
from kafscale.wire.control_records import EndMarker

logger = logging.getLogger(__name__)


@attrs.frozen(eq=False, repr=False)
class Hanging:
    """A transaction that nobody will end."""

    partition: Partition
    transaction: OpenTransaction

    @property
    def is_open(self) -> bool:
        return self.partition.transactions.open.get(self.transaction.producer_id) == self.transaction

    @property
    def marker(self) -> EndMarker:
        """The marker that aborts it, which says no more than what the partition knows already."""
        producer = self.partition.producers.producers.get(self.transaction.producer_id)
        known_epoch = -1 if producer is None else producer.coordinator_epoch
        return EndMarker(
            producer_id=self.transaction.producer_id,
            producer_epoch=self.transaction.epoch,
            coordinator_epoch=max(0, self.transaction.coordinator_epoch, known_epoch),
            is_commit=False,
        )


def find_hanging(partitions: Iterable[Partition], coordinators: TransactionCoordinators) -> Sequence[Hanging]:
    """Find them, where all coordinators are here and have read what there is."""
    epochs = {
        (held.transaction.producer_id, at): held.transaction.producer_epoch
        for coordinator in coordinators
        for held in coordinator.held()
        for at in (held.transaction.partitions | held.outstanding)
    }
    return [
        Hanging(partition, each)
        for partition in partitions
        for each in partition.transactions.open.values()
        if epochs.get((each.producer_id, TopicPartition(partition.topic, partition.index)), -1) < each.epoch
    ]


async def abort_hanging(internal: InternalLog, found: Iterable[Hanging]) -> None:
    """Abort those that are still open."""
    for each in found:
        if not each.is_open:
            continue
        logger.warning(
            "%s: the transaction of producer %d from offset %d on is aborted, as no coordinator knows of it",
            each.partition,
            each.transaction.producer_id,
            each.transaction.first_offset,
        )
        try:
            await internal.append([EndEntry(each.partition, each.marker)], now_ms())
        except KafkaError as exc:
            logger.warning("%s: it can't be: %s", each.partition, exc)
