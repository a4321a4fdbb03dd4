"""Transactions that are open in a partition and that no coordinator knows of: nobody would ever end them (KIP-664).

Whoever reads committed records would wait for them for ever. Enrolment is durable before the first batch, so none comes
of a crash; but where a data directory was lost (`wal`), the bucket may have the one and not the other, and so may one
that was adopted. A broker alone aborts them after a start, when its coordinators have read what there is; of several,
who leads the partition asks all coordinators (`kafscale.cluster.transactions.hanging_search`).

Nor does a coordinator end one that has only an older epoch of its producer: the partition would refuse its marker.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import attrs

from kafscale.cluster.coordinator import EndEntry, InternalLog
from kafscale.cluster.transactions.coordinators import TransactionCoordinators
from kafscale.cluster.transactions.state_records import now_ms
from kafscale.cluster.transactions.values import TopicPartition
from kafscale.errors import KafkaError
from kafscale.formats.transactions import OpenTransaction
from kafscale.log.partition.partition import Partition
from kafscale.wire.control_records import EndMarker

logger = logging.getLogger(__name__)

Enrolled = Mapping[tuple[int, TopicPartition], int]  # a producer id, and a partition: the epoch of the producer


@attrs.frozen(repr=False)
class Suspect:
    """A transaction that is open in a partition that is led here, and that perhaps nobody will end."""

    partition: Partition = attrs.field(eq=id)
    transaction: OpenTransaction

    @property
    def is_open(self) -> bool:
        is_open = self.partition.transactions.open.get(self.transaction.producer_id) == self.transaction
        return is_open and not self.partition.closed

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

    def is_known(self, enrolled: Enrolled) -> bool:
        """Tell whether a coordinator ends it, of whom all are asked."""
        at = TopicPartition(self.partition.topic, self.partition.index)
        return enrolled.get((self.transaction.producer_id, at), -1) >= self.transaction.epoch


@attrs.frozen(kw_only=True)
class Knowledge:
    """What the coordinators at one broker know: `epochs` are those of the partitions that have been read completely."""

    epochs: Mapping[int, int]
    enrolled: Enrolled


def open_in(partitions: Iterable[Partition]) -> Iterator[Suspect]:
    """Iterate over all that is open."""
    for partition in partitions:
        for each in partition.transactions.open.values():
            yield Suspect(partition, each)


def known_to(coordinators: TransactionCoordinators, producer_ids: Collection[int] | None = None) -> Knowledge:
    """Return what the coordinators that are here know, of these producers or of all."""
    enrolled = {
        (held.transaction.producer_id, at): held.transaction.producer_epoch
        for coordinator in coordinators
        for held in coordinator.held()
        if producer_ids is None or held.transaction.producer_id in producer_ids
        for at in (held.transaction.partitions | held.outstanding)
    }
    return Knowledge(epochs={each.partition: each.coordinator_epoch for each in coordinators}, enrolled=enrolled)


async def abort_hanging(internal: InternalLog, found: Sequence[Suspect]) -> None:
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
