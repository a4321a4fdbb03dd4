"""The committed offsets of one group: those that are durable, and which are on their way to be.

Only what is durable is ever shown. Changes become durable in the order in which they were submitted, and are applied
here in that order too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs

from kafscale.cluster.groups.records import OffsetAndMetadata, TopicPartition
from kafscale.cluster.groups.state_bytes import GroupStateBytes, offset_bytes


@attrs.define(eq=False)
class GroupOffsets:
    """The offsets that one group has committed, by topic and partition."""

    state_bytes: GroupStateBytes = attrs.field(factory=GroupStateBytes)
    by_topic: dict[str, dict[int, OffsetAndMetadata]] = attrs.field(factory=dict, init=False)
    _pending: deque[Collection[TopicPartition]] = attrs.field(factory=deque, init=False)

    def get(self, at: TopicPartition) -> OffsetAndMetadata | None:
        partitions = self.by_topic.get(at.topic)
        return partitions.get(at.partition) if partitions is not None else None

    def __iter__(self) -> Iterator[tuple[TopicPartition, OffsetAndMetadata]]:
        for topic, partitions in self.by_topic.items():
            for partition, offset in partitions.items():
                yield TopicPartition(topic, partition), offset

    def put(self, at: TopicPartition, offset: OffsetAndMetadata) -> None:
        of_topic = self.by_topic.setdefault(at.topic, {})
        self.state_bytes.change(offset_bytes(offset) - offset_bytes(of_topic.get(at.partition)))
        of_topic[at.partition] = offset

    def more_bytes(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> int:
        """Return by how many bytes these offsets would make the state grow."""
        return sum(offset_bytes(offset) - offset_bytes(self.get(at)) for at, offset in offsets.items())

    def begin(self, offsets: Collection[TopicPartition]) -> None:
        """A commit of these has been submitted."""
        self._pending.append(offsets)

    def finish(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], durable: bool) -> None:
        """The longest-submitted commit is durable, or lost."""
        self._pending.popleft()
        if durable:
            for at, offset in offsets.items():
                self.put(at, offset)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            of_topic = self.by_topic.get(at.topic, {})
            self.state_bytes.change(-offset_bytes(of_topic.pop(at.partition, None)))
            if not of_topic:
                self.by_topic.pop(at.topic, None)

    def disown(self) -> None:
        """Nobody keeps these any more: what they took is free, and what is on its way does not count."""
        self.remove([at for at, _ in self])
        self.state_bytes = GroupStateBytes()

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
        return durable | {at for commit in self._pending for at in commit if at.topic == topic}

    def pending(self) -> set[TopicPartition]:
        return {at for commit in self._pending for at in commit}
