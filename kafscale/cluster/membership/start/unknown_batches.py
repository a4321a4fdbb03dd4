"""Record batches of the local write-ahead log whose topics the metadata does not know: found, and put back into it.

Where `metadata.db` was lost, or an older copy of it is in its place, a start keeps the files with such batches aside
(`kafscale.log.wal.journal`). They are put back as entries behind all others: the next start, which knows the topics
by then, replays them. Files that are still in the log are read, too, as a partition may go on in them.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing

import attrs
import trio

from kafscale.cluster.membership.start.adoption import FoundPartition, UnknownTopic
from kafscale.formats.manifest import PartitionId
from kafscale.formats.wal_entries import TOPIC_NAME, WalEntry
from kafscale.log.check.wal_check import CheckedEntry, WalFileCheck
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.journal import KEPT_PREFIX
from kafscale.log.wal.local_replay import NAME, ExtentStore
from kafscale.log.wal.local_wal import Wal
from kafscale.wire.batch_header import BatchHeader

Knows = Callable[[bytes, int], bool]  # whether the metadata knows a partition, by the id of its topic and its index


@attrs.frozen
class _LogFile:
    """A file of the log, or the copy of one that was kept aside, and the batches in it whose partitions are unknown."""

    is_copy: bool
    batches: Sequence[CheckedEntry]


@attrs.define(eq=False, repr=False)
class _End:
    """The end of a partition so far, while its batches are looked at in order."""

    first_offset: int
    next_offset: int
    batch_count: int = 0
    producer_id_end: int = 0
    leader_epoch: int = -1
    gap: str | None = None  # what is missing before a later batch

    def take(self, entry: WalEntry, header: BatchHeader) -> bool:
        """Go on with a batch if it is the next one; tell whether it is."""
        if entry.base_offset > self.next_offset and self.gap is None:
            self.gap = (
                f"partition {entry.partition} has no records at offsets {self.next_offset} to {entry.base_offset - 1}, "
                "neither in the bucket nor in the write-ahead log: bring back the missing objects or files"
            )
        if entry.base_offset != self.next_offset:
            return False
        self.next_offset = header.next_offset
        self.batch_count += 1
        self.producer_id_end = max(self.producer_id_end, header.producer_id + 1)
        self.leader_epoch = max(self.leader_epoch, entry.leader_epoch)
        return True


@attrs.define(eq=False, repr=False)
class UnknownBatches:
    """The batches of unknown partitions in the log on a disk: `find` them, then `give_back` those of some topics.

    `extents` has the note on which files the log has, where it is changed.
    """

    disk: Disk
    knows: Knows
    extents: ExtentStore | None = None
    _names: dict[bytes, str] = attrs.field(factory=dict, init=False)
    _begins: dict[PartitionId, int] = attrs.field(factory=dict, init=False)  # where the bucket ends, if it has any
    _kept: set[bytes] = attrs.field(factory=set, init=False)  # topics that have batches in copies

    async def find(self, in_bucket: Sequence[UnknownTopic]) -> Sequence[UnknownTopic]:
        """Return the unknown topics of the bucket with what the log has of them, and those of the log alone.

        Raises OSError.
        """
        by_id = {topic.topic_id: topic for topic in in_bucket}
        self._begins = {
            (topic.topic_id, index): partition.next_offset
            for topic in in_bucket
            for index, partition in topic.partitions.items()
        }
        ends: dict[PartitionId, _End] = {}
        async with aclosing(self._files()) as files:
            async for file in files:
                for entry, _ in self._next_batches(file, ends):
                    if file.is_copy:
                        self._kept.add(entry.topic_id)
        for topic_id in dict.fromkeys(topic_id for topic_id, _ in ends):
            known = by_id.get(topic_id) or UnknownTopic(
                name=self._names.get(topic_id, ""), topic_id=topic_id, versions=(), partitions={}
            )
            of_topic = {index: end for (unknown_id, index), end in ends.items() if unknown_id == topic_id}
            by_id[topic_id] = _with_log(known, of_topic)
        return sorted(by_id.values(), key=lambda topic: (topic.name, topic.topic_id))

    async def give_back(self, names: Mapping[bytes, str], segment_bytes: int) -> None:
        """Append the batches of these topics, by id, to the log. What was there before stays.

        Raises OSError, DamagedObject, StorageFailed.
        """
        wanted = self._kept & names.keys()
        if not wanted:
            return
        wal = Wal(
            disk=self.disk,
            on_durable=lambda entries: None,
            topic_name=lambda entry: names[entry.topic_id],
            extents=self.extents,
            segment_bytes=segment_bytes,
            max_bytes=sys.maxsize,
            waiting_max_count=sys.maxsize,
        )
        await wal.replay(lambda entry: True)  # all of it is needed, so nothing is deleted
        async with trio.open_nursery() as nursery:
            for task in wal.tasks:
                await nursery.start(task)
            await self._append(wal, wanted)
            nursery.cancel_scope.cancel()

    async def _append(self, wal: Wal, wanted: Collection[bytes]) -> None:
        ends: dict[PartitionId, _End] = {}
        async with aclosing(self._files()) as files:
            async for file in files:
                rounds = [
                    wal.append(
                        attrs.evolve(
                            WalEntry(
                                entry.topic_id, entry.partition, entry.leader_epoch, entry.base_offset, entry.data
                            ),
                            is_transactional=header.is_transactional,
                        )
                    )
                    for entry, header in self._next_batches(file, ends)
                    if entry.topic_id in wanted
                ]
                if rounds:
                    await rounds[-1].wait()

    def _next_batches(self, file: _LogFile, ends: dict[PartitionId, _End]) -> Iterator[tuple[WalEntry, BatchHeader]]:
        """Yield those batches of a file that go on where their partition ends so far."""
        for batch in file.batches:
            entry, header = batch.entry, batch.header
            if header is None:
                continue  # damaged: what is behind it will not go on
            partition_id = entry.topic_id, entry.partition
            if partition_id not in ends:
                first = self._begins.get(partition_id, entry.base_offset)
                ends[partition_id] = _End(first, first)
            if ends[partition_id].take(entry, header):
                yield entry, header

    async def _files(self) -> AsyncGenerator[_LogFile, None]:
        """Go through the files, oldest first, each copy before the file that it is of; one at a time is in memory."""
        sizes = {
            name: size
            for name, size in (await self.disk.list()).items()
            if NAME.fullmatch(name.removeprefix(KEPT_PREFIX))
        }
        for name in sorted(sizes, key=lambda name: (name.removeprefix(KEPT_PREFIX), not name.startswith(KEPT_PREFIX))):
            check = WalFileCheck(name=name, content=await self.disk.read(name, 0, sizes[name]))
            entries: list[CheckedEntry] = await trio.to_thread.run_sync(list, check.entries())
            self._names |= {
                checked.entry.topic_id: bytes(checked.entry.data).decode()
                for checked in entries
                if checked.entry.kind == TOPIC_NAME
            }
            batches = [
                checked
                for checked in entries
                if checked.entry.partition >= 0 and not self.knows(checked.entry.topic_id, checked.entry.partition)
            ]
            yield _LogFile(name.startswith(KEPT_PREFIX), batches)


def _with_log(topic: UnknownTopic, ends: Mapping[int, _End]) -> UnknownTopic:
    """Add what the log has of a topic to what the bucket has of it."""
    partitions = dict(topic.partitions)
    damage = topic.damage
    for index, end in ends.items():
        in_bucket = partitions.get(index, FoundPartition(first_offset=end.first_offset, next_offset=end.first_offset))
        partitions[index] = attrs.evolve(
            in_bucket,
            next_offset=end.next_offset,
            batch_count=end.batch_count,
            producer_id_end=max(in_bucket.producer_id_end, end.producer_id_end),
            leader_epoch=max(in_bucket.leader_epoch, end.leader_epoch),
        )
        damage = damage or end.gap
    return attrs.evolve(topic, partitions=dict(sorted(partitions.items())), damage=damage)
