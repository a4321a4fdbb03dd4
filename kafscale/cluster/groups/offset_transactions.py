"""The offsets that transactions commit, from the record on that has them until the transaction's end is durable.

A producer's transaction may commit offsets of several groups in one partition of `__consumer_offsets`: each batch of
them is told here in the step that appends it (`committed`), and so is the marker that ends the transaction (`end`). So
what is known is always what the log says, and a marker ends exactly what is before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import attrs

from kafscale.cluster.coordinator import Appended
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.coordinator.writer import RecordWriter
from kafscale.cluster.groups.common.events import LoggedOffset
from kafscale.cluster.groups.loading import LoadedGroup, LoadedGroups
from kafscale.cluster.groups.offsets import GroupOffsets, OffsetsTransaction
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue

_NOTHING = LoadedGroup()


@attrs.define(eq=False, kw_only=True, repr=False)
class OffsetTransactions:
    """The open ones of the partitions that are led here. `offsets_of` returns what a group has, and makes the group."""

    log: RecordWriter
    partition_of: Callable[[str], int]
    offsets_of: Callable[[str], GroupOffsets]
    # By partition of `__consumer_offsets`, producer id and group
    _open: dict[int, dict[int, dict[str, OffsetsTransaction]]] = attrs.field(factory=dict, init=False)

    def take_over(self, loaded: LoadedGroups) -> None:
        """Take over what the partition says of those that are open; its groups have been taken over."""
        for producer_id, by_group in loaded.pending.items():
            for group_id, pending in by_group.items():
                offsets = self.offsets_of(group_id)
                offsets.add_unstable(self._of(loaded.partition, producer_id, group_id, offsets), pending)
                committed = loaded.groups.get(group_id, _NOTHING).offsets
                for at in pending.keys() & committed.keys():
                    offsets.supersede_before(at, committed[at].logged_at)

    def committed(
        self, group_id: str, producer_id: int, offsets: Mapping[TopicPartition, OffsetCommitValue], base_offset: int
    ) -> None:
        """Note offsets that are in the log from `base_offset` on, and count if the producer's transaction commits.

        Their group must be coordinated here, and is made if it does not exist.
        """
        of_group = self.offsets_of(group_id)
        transaction = self._of(self.partition_of(group_id), producer_id, group_id, of_group)
        logged = {at: LoggedOffset(offset, base_offset + n) for n, (at, offset) in enumerate(offsets.items())}
        of_group.add_unstable(transaction, logged)

    def end(self, partition: int, producer_id: int, appended: Appended, *, is_commit: bool) -> None:
        """A producer's transaction is ended in this partition, as soon as that is durable.

        What the producer commits from now on belongs to its next transaction.
        """
        ended = self._open.get(partition, {}).pop(producer_id, {})
        if ended:
            self.log.follow(partition, appended, partial(_ended, ended.values(), is_commit))

    def resign(self, partition: int) -> None:
        """Forget those of a partition that is led elsewhere."""
        self._open.pop(partition, None)

    def _of(self, partition: int, producer_id: int, group_id: str, offsets: GroupOffsets) -> OffsetsTransaction:
        """Return what a producer's transaction has committed for a group; from now on it is open."""
        groups = self._open.setdefault(partition, {}).setdefault(producer_id, {})
        transaction = groups.get(group_id)
        if transaction is None or transaction.offsets is not offsets:  # the group was deleted meanwhile
            transaction = groups[group_id] = OffsetsTransaction(offsets)
        return transaction


def _ended(transactions: Collection[OffsetsTransaction], is_commit: bool, durable: bool) -> None:
    """The end of these is durable, or the log has failed."""
    for transaction in transactions if durable else ():
        transaction.offsets.end(transaction, is_commit=is_commit)
