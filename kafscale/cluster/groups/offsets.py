"""The committed offsets of one group: those that are durable, and which are on their way to be.

Only what is durable is ever shown. Changes become durable in the order in which they were submitted, and are applied
here in that order too.

What a transaction has committed is unstable until its end is durable: it may come to nothing. Of several offsets for
one partition the one that is later in the log counts, whichever transaction ends first (KIP-447); so each is known by
the offset that its record has in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import attrs

from kafscale.cluster.coordinator import Appended
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.coordinator.writer import RecordWriter
from kafscale.cluster.groups.common.events import LoggedOffset
from kafscale.cluster.groups.common.settings import GroupStateBytes, offset_bytes
from kafscale.cluster.groups.loading import LoadedGroup, LoadedGroups
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue


@attrs.define(eq=False, repr=False)
class PendingChange:
    """A submitted change of these partitions; `logged_at` has its offsets in the log once it is durable."""

    partitions: Collection[TopicPartition]
    logged_at: Sequence[int] = attrs.field(default=(), init=False)

    def placed(self, offsets: Sequence[int]) -> None:
        self.logged_at = offsets


@attrs.frozen(eq=False, repr=False)
class OffsetsTransaction:
    """Partitions for which one transaction has committed offsets of one group, whose `offsets` these are."""

    offsets: GroupOffsets
    partitions: set[TopicPartition] = attrs.field(factory=set)


@attrs.define(eq=False, repr=False)
class GroupOffsets:
    """The offsets that one group has committed, by topic and partition."""

    state_bytes: GroupStateBytes = attrs.field(factory=GroupStateBytes)
    by_topic: dict[str, dict[int, OffsetCommitValue]] = attrs.field(factory=dict, init=False)
    _pending: deque[PendingChange] = attrs.field(factory=deque, init=False)
    # What transactions have committed that are not ended, or not durably. None: one later in the log counts.
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
        """A commit of these is about to be submitted."""
        change = PendingChange(offsets)
        self._pending.append(change)
        return change

    def finish(self, offsets: Mapping[TopicPartition, OffsetCommitValue], durable: bool) -> None:
        """The longest-submitted commit is durable, or lost."""
        change = self._pending.popleft()
        if durable:
            for at, offset in offsets.items():
                self.put(at, offset)
            self._supersede(change)

    def forget(self, change: PendingChange) -> None:
        """The records that take these back are durable; they take back what is unstable and before them, too."""
        self.remove(change.partitions)
        self._supersede(change, is_removal=True)

    def _supersede(self, change: PendingChange, *, is_removal: bool = False) -> None:
        """Drop offsets that transactions have committed in these partitions before this change."""
        for at, logged_at in zip(change.partitions, change.logged_at, strict=False) if self._unstable else ():
            self.supersede_before(at, logged_at, is_removal=is_removal)

    def supersede_before(self, at: TopicPartition, logged_at: int, *, is_removal: bool = False) -> None:
        """Drop offsets that transactions have committed there before this offset of the log."""
        for transaction, logged in list(self._unstable.get(at, {}).items()):
            if logged is not None and logged.logged_at > logged_at:
                continue
            if is_removal:
                transaction.partitions.discard(at)
                self._settle(transaction, at)
            elif logged is not None:
                self.state_bytes.change(-offset_bytes(logged.offset))
                self._unstable[at][transaction] = None

    # -- What transactions commit ------------------------------------------------------------------------------------

    def add_unstable(self, transaction: OffsetsTransaction, offsets: Mapping[TopicPartition, LoggedOffset]) -> None:
        """A transaction has committed these, which is in the log."""
        transaction.partitions.update(offsets)
        for at, logged in offsets.items():
            of_partition = self._unstable.setdefault(at, {})
            former = of_partition.get(transaction)
            self.state_bytes.change(offset_bytes(logged.offset) - offset_bytes(former.offset if former else None))
            of_partition[transaction] = logged

    def end(self, transaction: OffsetsTransaction, *, is_commit: bool) -> None:
        """The end of a transaction is durable."""
        for at in transaction.partitions:
            logged = self._settle(transaction, at)
            if is_commit and logged is not None:
                self.put(at, logged.offset)
                self.supersede_before(at, logged.logged_at)
        transaction.partitions.clear()

    def _settle(self, transaction: OffsetsTransaction, at: TopicPartition) -> LoggedOffset | None:
        """Forget what is unstable here of one transaction, and return it if it would count."""
        of_partition = self._unstable.get(at, {})
        logged = of_partition.pop(transaction, None)
        if not of_partition:
            self._unstable.pop(at, None)
        if logged is not None:
            self.state_bytes.change(-offset_bytes(logged.offset))
        return logged

    def is_unstable(self, at: TopicPartition) -> bool:
        """Tell whether a transaction has committed an offset there whose end is not durable."""
        return at in self._unstable

    # -- All together ------------------------------------------------------------------------------------------------

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            of_topic = self.by_topic.get(at.topic, {})
            self.state_bytes.change(-offset_bytes(of_topic.pop(at.partition, None)))
            if not of_topic:
                self.by_topic.pop(at.topic, None)

    def disown(self) -> None:
        """Free the memory of the offsets, which are deleted or led elsewhere; changes on their way do not count."""
        self.remove([at for at, _ in self])
        for of_partition in self._unstable.values():
            for logged in filter(None, of_partition.values()):
                self.state_bytes.change(-offset_bytes(logged.offset))
        self._unstable.clear()
        self.state_bytes = GroupStateBytes()

    def topics(self) -> set[str]:
        """Return the topics that have offsets, or will have some, or may have."""
        return self.by_topic.keys() | {at.topic for at in self.pending()}

    def known(self) -> set[TopicPartition]:
        """Every partition that has an offset, or will have one once what was submitted is durable."""
        return {at for at, _ in self} | self.pending()

    def known_of(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Find those of these that are known, at a cost that does not grow with all that the group has."""
        pending = self.pending()
        return {at for at in partitions if self.get(at) is not None or at in pending}

    def of_topic(self, topic: str) -> set[TopicPartition]:
        """Return the partitions of this topic that have an offset, durable or on its way to be."""
        durable = {TopicPartition(topic, partition) for partition in self.by_topic.get(topic, ())}
        return durable | {at for at in self.pending() if at.topic == topic}

    def pending(self) -> set[TopicPartition]:
        """Return the partitions that will have another offset, or may have: what transactions commit included."""
        return {at for change in self._pending for at in change.partitions}.union(self._unstable)


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
