"""The committed offsets of one group, and those that transactions have committed without an end yet.

Only durable offsets are shown. Changes become durable in the order in which they were submitted, and are applied here
in that order too. An offset of a transaction is unstable until the transaction's end is durable. Of several offsets for
one partition the one that is later in the log counts, whichever transaction ends first (KIP-447); so each is known by
the offset of its record in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import attrs

from kafscale.cluster.coordinator.entries import Appended
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.coordinator.writer import RecordWriter
from kafscale.cluster.groups.common.context import GroupStateBytes, LoggedOffset, offset_bytes
from kafscale.cluster.groups.loading import LoadedGroup, LoadedGroups
from kafscale.log.partition.partition import Partition
from kafscale.wire.control_records import EndMarker
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue


@attrs.define(eq=False, repr=False)
class PendingChange:
    """A submitted change of these partitions; `logged_at` has the offsets of its records once they are durable."""

    partitions: Collection[TopicPartition]
    logged_at: Sequence[int] = attrs.field(default=(), init=False)

    def placed(self, offsets: Sequence[int]) -> None:
        self.logged_at = offsets


@attrs.frozen(eq=False, repr=False)
class OffsetsTransaction:
    """Partitions for which one transaction has committed offsets of one group."""

    offsets: GroupOffsets
    partitions: set[TopicPartition] = attrs.field(factory=set)


@attrs.define(eq=False, repr=False)
class GroupOffsets:
    """The offsets that one group has committed, by topic and partition."""

    state_bytes: GroupStateBytes = attrs.field(factory=GroupStateBytes)
    by_topic: dict[str, dict[int, OffsetCommitValue]] = attrs.field(factory=dict, init=False)
    _pending: deque[PendingChange] = attrs.field(factory=deque, init=False)
    # Offsets of transactions without a durable end. None: an offset that is later in the log counts.
    _unstable: dict[TopicPartition, dict[OffsetsTransaction, LoggedOffset | None]] = attrs.field(
        factory=dict, init=False
    )

    def get(self, at: TopicPartition) -> OffsetCommitValue | None:
        partitions = self.by_topic.get(at.topic)
        return partitions.get(at.partition) if partitions is not None else None

    def __iter__(self) -> Iterator[tuple[TopicPartition, OffsetCommitValue]]:
        for topic, partitions in self.by_topic.items():
            for partition, offset in partitions.items():
                yield TopicPartition(topic, partition), offset

    def put(self, at: TopicPartition, offset: OffsetCommitValue) -> None:
        of_topic = self.by_topic.setdefault(at.topic, {})
        self.state_bytes.change(offset_bytes(offset) - offset_bytes(of_topic.get(at.partition)))
        of_topic[at.partition] = offset

    def more_bytes(self, offsets: Mapping[TopicPartition, OffsetCommitValue]) -> int:
        """Return by how many bytes these offsets would make the state grow."""
        return sum(offset_bytes(offset) - offset_bytes(self.get(at)) for at, offset in offsets.items())

    def begin(self, offsets: Collection[TopicPartition]) -> PendingChange:
        """Begin a commit of these, which is about to be submitted."""
        change = PendingChange(offsets)
        self._pending.append(change)
        return change

    def finish(self, offsets: Mapping[TopicPartition, OffsetCommitValue], durable: bool) -> None:
        """Finish the commit that was submitted first: it is durable, or lost."""
        change = self._pending.popleft()
        if durable:
            for at, offset in offsets.items():
                self.put(at, offset)
            self._supersede(change)

    def forget(self, change: PendingChange) -> None:
        """Delete offsets whose tombstones are durable, and unstable ones that are before those in the log."""
        self.remove(change.partitions)
        self._supersede(change, is_removal=True)

    def _supersede(self, change: PendingChange, *, is_removal: bool = False) -> None:
        for at, logged_at in zip(change.partitions, change.logged_at, strict=False) if self._unstable else ():
            self.supersede_before(at, logged_at, is_removal=is_removal)

    def supersede_before(self, at: TopicPartition, logged_at: int, *, is_removal: bool = False) -> None:
        """Drop unstable offsets of a partition that are before this offset of the log."""
        for transaction, logged in list(self._unstable.get(at, {}).items()):
            if logged is not None and logged.logged_at > logged_at:
                continue
            if is_removal:
                transaction.partitions.discard(at)
                self._settle(transaction, at)
            elif logged is not None:
                self.state_bytes.change(-offset_bytes(logged.offset))
                self._unstable[at][transaction] = None

    # -- Transactions ------------------------------------------------------------------------------------------------

    def add_unstable(self, transaction: OffsetsTransaction, offsets: Mapping[TopicPartition, LoggedOffset]) -> None:
        """Add offsets that a transaction has committed, which are in the log."""
        transaction.partitions.update(offsets)
        for at, logged in offsets.items():
            of_partition = self._unstable.setdefault(at, {})
            former = of_partition.get(transaction)
            self.state_bytes.change(offset_bytes(logged.offset) - offset_bytes(former.offset if former else None))
            of_partition[transaction] = logged

    def end(self, transaction: OffsetsTransaction, *, is_commit: bool) -> None:
        """End a transaction, whose marker is durable."""
        for at in transaction.partitions:
            logged = self._settle(transaction, at)
            if is_commit and logged is not None:
                self.put(at, logged.offset)
                self.supersede_before(at, logged.logged_at)
        transaction.partitions.clear()

    def _settle(self, transaction: OffsetsTransaction, at: TopicPartition) -> LoggedOffset | None:
        """Remove a transaction's unstable offset, and return it if it would count."""
        of_partition = self._unstable.get(at, {})
        logged = of_partition.pop(transaction, None)
        if not of_partition:
            self._unstable.pop(at, None)
        if logged is not None:
            self.state_bytes.change(-offset_bytes(logged.offset))
        return logged

    def is_unstable(self, at: TopicPartition) -> bool:
        return at in self._unstable

    # -- All together ------------------------------------------------------------------------------------------------

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            of_topic = self.by_topic.get(at.topic, {})
            self.state_bytes.change(-offset_bytes(of_topic.pop(at.partition, None)))
            if not of_topic:
                self.by_topic.pop(at.topic, None)

    def disown(self) -> None:
        """Free the memory of the offsets, which are deleted or on another broker; pending changes are not counted."""
        self.remove([at for at, _ in self])
        for of_partition in self._unstable.values():
            for logged in filter(None, of_partition.values()):
                self.state_bytes.change(-offset_bytes(logged.offset))
        self._unstable.clear()
        self.state_bytes = GroupStateBytes()

    def topics(self) -> set[str]:
        return self.by_topic.keys() | {at.topic for at in self.pending()}

    def known(self) -> set[TopicPartition]:
        """Return the partitions with an offset, durable or pending."""
        return {at for at, _ in self} | self.pending()

    def known_of(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return those of these with an offset, at a cost that does not grow with the group's offsets."""
        pending = self.pending()
        return {at for at in partitions if self.get(at) is not None or at in pending}

    def of_topic(self, topic: str) -> set[TopicPartition]:
        """Return the partitions of a topic with an offset, durable or pending."""
        durable = {TopicPartition(topic, partition) for partition in self.by_topic.get(topic, ())}
        return durable | {at for at in self.pending() if at.topic == topic}

    def pending(self) -> set[TopicPartition]:
        """Return the partitions with a pending commit, or one of a transaction."""
        return {at for change in self._pending for at in change.partitions}.union(self._unstable)


_NOTHING = LoadedGroup()


@attrs.define(eq=False, kw_only=True, repr=False)
class OffsetTransactions:
    """The open transactions of the partitions that are led here, by the markers and batches in the log.

    `offsets_of` returns the offsets of a group, and makes the group.
    """

    log: RecordWriter
    partition_of: Callable[[str], int]
    offsets_of: Callable[[str], GroupOffsets]
    # By partition of `__consumer_offsets`, producer id and group
    _open: dict[int, dict[int, dict[str, OffsetsTransaction]]] = attrs.field(factory=dict, init=False)

    def take_over(self, loaded: LoadedGroups) -> None:
        """Take over the open transactions of a loaded partition, after its groups."""
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
        """Note offsets that are in the log from `base_offset` on, and count if the producer's transaction commits."""
        of_group = self.offsets_of(group_id)
        transaction = self._of(self.partition_of(group_id), producer_id, group_id, of_group)
        logged = {at: LoggedOffset(offset, base_offset + n) for n, (at, offset) in enumerate(offsets.items())}
        of_group.add_unstable(transaction, logged)

    def end(self, partition: Partition, marker: EndMarker, appended: Appended) -> None:
        """End a producer's transaction, whose marker was appended; `InternalLog.on_end` calls this."""
        ended = self._open.get(partition.index, {}).pop(marker.producer_id, {})
        if ended:
            self.log.follow(partition.index, appended, partial(_ended, ended.values(), marker.is_commit))

    def resign(self, partition: int) -> None:
        self._open.pop(partition, None)

    def _of(self, partition: int, producer_id: int, group_id: str, offsets: GroupOffsets) -> OffsetsTransaction:
        """Return the transaction of a producer for a group, which is open from now on."""
        groups = self._open.setdefault(partition, {}).setdefault(producer_id, {})
        transaction = groups.get(group_id)
        if transaction is None or transaction.offsets is not offsets:  # the group was deleted meanwhile
            transaction = groups[group_id] = OffsetsTransaction(offsets)
        return transaction


def _ended(transactions: Collection[OffsetsTransaction], is_commit: bool, durable: bool) -> None:
    for transaction in transactions if durable else ():
        transaction.offsets.end(transaction, is_commit=is_commit)
