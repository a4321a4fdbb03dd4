"""Registers topics, or partitions of topics, that the bucket or the local log holds and the metadata does not know.

Keys, last footers, and entries of the local log tell a topic's name, id, number of partitions and offsets. Its configs,
committed offsets and partitions without a record are lost. So that nothing is deleted on a guess, an adopted topic
keeps everything (`retention.ms=-1`) unless told otherwise.

If `metadata.db` was lost, or an older copy is in its place, a start keeps the files with unknown batches aside
(`kafscale.log.wal.local_files`). `UnknownBatches` puts these batches back as entries behind all others: the next start,
which knows the topics by then, replays them.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing

import attrs
import trio

from kafscale.cluster.membership.node import epoch_key
from kafscale.cluster.metadata.base import MetadataStore, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.registries.producer_ids import NEXT_BLOCK_KEY
from kafscale.cluster.registries.topic_records import KEEP_EVERYTHING
from kafscale.cluster.registries.topics import MorePartitions, NewTopic, Topic, TopicRegistry
from kafscale.concurrency.nurseries import for_each
from kafscale.errors import DamagedObject, NotFound
from kafscale.formats.footer_reading import read_footer
from kafscale.formats.manifest import ListedSegment, PartitionId
from kafscale.formats.resolution import assumed_ends
from kafscale.formats.segment import Footer
from kafscale.formats.wal_entries import TOPIC_NAME, WalEntry
from kafscale.log.bucket.listing import list_segments
from kafscale.log.bucket.restore import FOOTER_READS_MAX_COUNT
from kafscale.log.check.wal_check import CheckedEntry, WalFileCheck
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.local_files import KEPT_PREFIX
from kafscale.log.wal.local_replay import NAME, ExtentStore
from kafscale.log.wal.local_wal import Wal
from kafscale.store.base import ObjectStore
from kafscale.wire.batch_header import BatchHeader

GiveBack = Callable[[Mapping[bytes, str]], Awaitable[None]]  # of the topics with these ids and names


async def give_nothing_back(_names: Mapping[bytes, str]) -> None:
    """Do nothing, without a log on a disk."""
    await trio.lowlevel.checkpoint()


@attrs.frozen(kw_only=True)
class FoundPartition:
    """Found offsets of a partition, from `first_offset` to `next_offset` (exclusive).

    The last `batch_count` batches are in the local write-ahead log only. `producer_id_end` is above every producer id
    in its last footers and these batches, `leader_epoch` the greatest there; -1 for none.
    """

    first_offset: int
    next_offset: int
    segment_count: int = 0
    size_bytes: int = 0
    batch_count: int = 0
    producer_id_end: int = 0
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class UnknownTopic:
    """A topic that the metadata does not know, or lacks these partitions of.

    `name` is empty if it is unknown. `damage` is the reason why the topic can't be adopted, if any.
    """

    name: str
    topic_id: bytes
    versions: Sequence[int]
    partitions: Mapping[int, FoundPartition]
    damage: str | None = None

    @property
    def partition_count(self) -> int:
        """Return the least number of partitions; those behind the last one with a record have left no trace."""
        return max(self.partitions, default=0) + 1

    @property
    def segment_count(self) -> int:
        return sum(partition.segment_count for partition in self.partitions.values())


@attrs.frozen(kw_only=True)
class Adoption:
    """Outcome of the adoption of a topic, or of a dry run: `refusal` is None if it is adopted."""

    topic: UnknownTopic
    refusal: str | None


async def find_unknown_topics(
    store: ObjectStore, namespace: str, is_known: Callable[[bytes, int], bool], on_progress: Callable[[int], None]
) -> Sequence[UnknownTopic]:
    """Return unknown topics by name; `is_known` gets topic id and partition. Writes nothing. Raises StoreError."""
    listed = await list_segments(store, namespace, on_progress)
    segments: dict[bytes, dict[int, Sequence[ListedSegment]]] = defaultdict(dict)
    for (topic_id, partition), found in listed.items():
        if not is_known(topic_id, partition):
            segments[topic_id][partition] = found
    partitions: dict[PartitionId, FoundPartition] = {}
    damage: dict[bytes, str] = {}

    async def look(partition_id: PartitionId) -> None:
        try:
            partitions[partition_id] = await _look_at_partition(store, listed[partition_id])
        except DamagedObject as exc:
            damage[partition_id[0]] = str(exc)
        except NotFound as exc:
            damage[partition_id[0]] = f"{exc} has gone since it was listed: a broker is deleting it"

    wanted = [(topic_id, partition) for topic_id, found in segments.items() for partition in found]
    await for_each(wanted, look, tasks_count=min(FOOTER_READS_MAX_COUNT, len(wanted)))
    topics = [
        UnknownTopic(
            name=next(iter(found.values()))[0].key.topic,
            topic_id=topic_id,
            versions=sorted({segment.key.version for listed_of in found.values() for segment in listed_of}),
            partitions={
                index: partitions[topic_id, index] for index in sorted(found) if (topic_id, index) in partitions
            },
            damage=damage.get(topic_id),
        )
        for topic_id, found in segments.items()
    ]
    return sorted(topics, key=lambda topic: (topic.name, topic.topic_id))


async def _look_at_partition(store: ObjectStore, listed: Sequence[ListedSegment]) -> FoundPartition:
    """Read the footers of the last segments, and of merged ones, which have the end of the partition."""
    ends = assumed_ends(segment.key for segment in listed)
    footers = [
        await read_footer(store, segment.key) for segment in listed if segment.key.generation or segment.key not in ends
    ]
    return FoundPartition(
        first_offset=min(segment.key.base_offset for segment in listed),
        next_offset=1 + max(footer.last_offset for footer in footers),
        segment_count=len(listed),
        size_bytes=sum(segment.object_size_bytes for segment in listed),
        producer_id_end=1 + max(map(_last_producer_id, footers)),
        leader_epoch=max(*map(_last_leader_epoch, footers), *(segment.key.epoch for segment in listed)),
    )


def _last_producer_id(footer: Footer) -> int:
    return max((producer.producer_id for producer in footer.producers), default=-1)


def _last_leader_epoch(footer: Footer) -> int:
    return max((start.epoch for start in footer.epochs), default=footer.identity.leader_epoch)


async def adopt(
    topics: TopicRegistry,
    found: Sequence[UnknownTopic],
    overrides: Mapping[str, str],
    *,
    broker_id: int,
    give_back: GiveBack | None,
) -> Sequence[Adoption]:
    """Register topics in one transaction, without those that are refused.

    `overrides` are the configs of all of them, on top of KEEP_EVERYTHING. `give_back` is called before with the names
    of topics that can be registered; without it, this is a dry run. Raises StorageFailed.
    """
    refusals = _refusals(topics, found)
    await _register(topics, found, overrides, refusals, validate_only=True)
    if give_back is not None:
        wanted = [topic for topic in found if topic.topic_id not in refusals]
        await _make_room(topics.store, wanted, broker_id)
        await give_back({topic.topic_id: topic.name for topic in wanted})
        await _register(topics, found, overrides, refusals, validate_only=False)
    return [Adoption(topic=topic, refusal=refusals.get(topic.topic_id)) for topic in found]


async def _register(
    topics: TopicRegistry,
    found: Sequence[UnknownTopic],
    overrides: Mapping[str, str],
    refusals: dict[bytes, str],
    *,
    validate_only: bool,
) -> None:
    """Register the topics that are not refused, and add new `refusals`."""
    wanted = [topic for topic in found if topic.topic_id not in refusals]
    new = [topic for topic in wanted if topics.by_id(topic.topic_id) is None]
    larger = [topic for topic in wanted if topics.by_id(topic.topic_id) is not None]
    created = await topics.create([_new_topic(topic, overrides) for topic in new], validate_only=validate_only)
    grown = await topics.create_partitions(
        [MorePartitions(name=topic.name, partition_count=topic.partition_count) for topic in larger],
        validate_only=validate_only,
    )
    for topic, outcome in zip([*new, *larger], [*created, *grown], strict=True):
        if not isinstance(outcome, Topic):
            refusals[topic.topic_id] = str(outcome)


def _refusals(topics: TopicRegistry, found: Sequence[UnknownTopic]) -> dict[bytes, str]:
    refusals: dict[bytes, str] = {}
    counts = Counter(topic.name for topic in found)
    for topic in found:
        other = topics.get(topic.name)
        if not topic.name:
            refusals[topic.topic_id] = "its name is not known: choose it by its id, and give a name with --as"
        elif other is not None and other.topic_id != topic.topic_id:
            refusals[topic.topic_id] = (
                "a topic of this name exists; these are objects of one that was deleted"
                if topic.segment_count
                else "a topic of this name exists, which was created later: give another name with --as"
            )
        elif counts[topic.name] > 1:
            refusals[topic.topic_id] = "there are several topics of this name; choose one by its id"
        elif topic.damage is not None:
            refusals[topic.topic_id] = topic.damage
    return refusals


def _new_topic(topic: UnknownTopic, overrides: Mapping[str, str]) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.partition_count,
        overrides={**KEEP_EVERYTHING, **overrides},
        topic_id=topic.topic_id,
        log_start_offsets={
            index: partition.first_offset for index, partition in topic.partitions.items() if partition.first_offset
        },
    )


async def _make_room(store: MetadataStore, found: Sequence[UnknownTopic], broker_id: int) -> None:
    """Continue producer ids and leader epochs behind those of the footers.

    A producer that got an id which a footer remembers would be taken for that producer.
    """
    partitions = [partition for topic in found for partition in topic.partitions.values()]
    lowest = {
        NEXT_BLOCK_KEY: max((partition.producer_id_end for partition in partitions), default=0),
        epoch_key(broker_id): max((partition.leader_epoch for partition in partitions), default=-1),
    }
    puts: dict[str, bytes] = {}
    for key, value in lowest.items():
        entry = await store.get(key)
        if value > (decode(int, entry.value) if entry else (0 if key == NEXT_BLOCK_KEY else -1)):
            puts[key] = encode(value)
    if puts:
        await store.commit(Transaction(puts=puts))


Knows = Callable[[bytes, int], bool]  # whether the metadata knows a partition, by the id of its topic and its index


@attrs.frozen
class _LogFile:
    """Batches of unknown partitions in a file of the log, or in the copy of one that was kept aside."""

    is_copy: bool
    batches: Sequence[CheckedEntry]


@attrs.define(eq=False, repr=False)
class _End:
    """The end of a partition so far, while its batches are read in order."""

    first_offset: int
    next_offset: int
    batch_count: int = 0
    producer_id_end: int = 0
    leader_epoch: int = -1
    gap: str | None = None  # the missing offsets before a later batch

    def take(self, entry: WalEntry, header: BatchHeader) -> bool:
        """Append a batch if it is the next one; return whether it is."""
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
    """Batches of unknown partitions in the log on a disk: `find` them, then `give_back` those of some topics."""

    disk: Disk
    knows: Knows
    extents: ExtentStore | None = None
    _names: dict[bytes, str] = attrs.field(factory=dict, init=False)
    _begins: dict[PartitionId, int] = attrs.field(factory=dict, init=False)  # where the bucket ends, if it has any
    _kept: set[bytes] = attrs.field(factory=set, init=False)  # topics that have batches in copies

    async def find(self, in_bucket: Sequence[UnknownTopic]) -> Sequence[UnknownTopic]:
        """Return the unknown topics of the bucket, with their batches in the log, and of the log. Raises OSError."""
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
        """Append the batches of these topics to the log. Raises OSError, DamagedObject, StorageFailed."""
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
        """Yield the batches of a file that continue their partition."""
        for batch in file.batches:
            entry, header = batch.entry, batch.header
            if header is None:
                continue  # damaged: later batches don't continue the partition
            partition_id = entry.topic_id, entry.partition
            if partition_id not in ends:
                first = self._begins.get(partition_id, entry.base_offset)
                ends[partition_id] = _End(first, first)
            if ends[partition_id].take(entry, header):
                yield entry, header

    async def _files(self) -> AsyncGenerator[_LogFile, None]:
        """Yield the files, oldest first, each copy before its file; one at a time is in memory."""
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
    """Add the ends of a topic's partitions in the log to those in the bucket."""
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
