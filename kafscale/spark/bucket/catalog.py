"""The catalog of a bucket: topics, their partitions and the segments of each, found by listing it.

The broker's rules apply: a `.kfs` is complete without its `.index`, an `.index` without `.kfs` does not count, a newer
segment wins over those that it covers, and late segments are left out (`kafscale.formats.resolution`). A footer is read
from the `.index`, or from the end of the `.kfs` where the `.index` is missing or damaged. The broker's checkpoint of
its metadata (`metadata`) adds what no segment tells of a topic.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from time import monotonic, sleep

import attrs

from kafscale.errors import DamagedObject, NotFound, StoreError
from kafscale.formats.footer_reading import read_footer, read_footer_with_timestamps, read_index
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN, PartitionId, Segment, fingerprint
from kafscale.formats.placements import Beginning
from kafscale.formats.resolution import NOTHING_DECIDED, Decided, Resolution, assumed_ends, resolve
from kafscale.formats.segment import EpochStart, Footer
from kafscale.formats.segment_v1 import VERSION as VERSION_1
from kafscale.formats.wal_index import LoggedBatch
from kafscale.spark.brokers.newest import FetchedTopic, NewestReader, PartitionEnds
from kafscale.spark.bucket.bucket import BlockingStore, Bucket, run
from kafscale.spark.bucket.log_objects import (
    NO_TAIL,
    DecisionReader,
    LogMemory,
    Present,
    PresentReader,
    UnflushedTail,
    begun,
)
from kafscale.spark.bucket.metadata import Metadata
from kafscale.store.base import ObjectInfo
from kafscale.store.paths import (
    NAMESPACE_DEFAULT,
    OFFSET_MAX,
    NumberedKey,
    SegmentKey,
    namespace_prefix,
    parse_segment_key,
    topic_name_prefix,
)

READS_AT_ONCE_COUNT = 32
LISTINGS_MAX_COUNT = 5  # of a topic, while segments go faster than their footers are read
RECORD_BYTES_ASSUMED = 1 << 10  # of records at brokers, where no segment tells how large a partition's are
DECISION_WAIT_SECONDS = 10.0  # for a new leader: it lists a partition, and then commits where it goes on
DECISION_LOOK_SECONDS = 0.2
BEHIND_EVERY_KEY = "\U0010ffff"

logger = logging.getLogger(__name__)


class Undecided(StoreError):
    """A partition has a new leader that has not told yet which records count."""


@attrs.frozen(kw_only=True)
class Behind:
    """Offsets that brokers have behind the segments, from `base_offset` to `end_offset` if that is larger.

    record_bytes: about the size of a record, to estimate sizes.
    """

    base_offset: int
    end_offset: int
    record_bytes: int


@attrs.frozen(kw_only=True)
class PartitionLog:
    """The segments of a partition that are read, in order of offset.

    damaged: segments that are left out. log_start_offset: records below it were deleted, though a segment may have
    them. topic_id: None for a partition that the bucket does not have. tail: the write-ahead log behind the segments.
    behind: the offsets that brokers have behind the segments, if they are asked. first_open_offset: the beginning of
    the oldest open transaction, if only committed records are read. settled_end_offset: the end of the log while a new
    leader has not told yet where it goes on.
    """

    topic: str
    partition: int
    segments: Sequence[Segment]
    damaged: Sequence[SegmentKey] = ()
    log_start_offset: int = 0
    topic_id: bytes | None = None
    tail: UnflushedTail = NO_TAIL
    behind: Behind | None = None
    first_open_offset: int | None = None
    settled_end_offset: int | None = None

    @property
    def start_offset(self) -> int:
        """Return the offset of the first record."""
        first: Sequence[Segment | LoggedBatch] = self.segments or self.tail.batches
        return max(first[0].base_offset if first else 0, self.log_start_offset)

    @property
    def earliest_offset(self) -> int:
        """Return the offset of the first record that exists or should: a damaged segment may begin before it."""
        return min([self.start_offset, *(max(key.base_offset, self.log_start_offset) for key in self.damaged)])

    @property
    def flushed_end_offset(self) -> int:
        """Return the offset behind the last record in a segment."""
        return max([self.start_offset, *(segment.last_offset + 1 for segment in self.segments)])

    @property
    def written_end_offset(self) -> int:
        """Return the offset behind the last record."""
        if self.settled_end_offset is not None:
            return max(self.start_offset, self.settled_end_offset)
        if self.behind is not None:
            return max(self.start_offset, self.behind.end_offset)
        return max(self.flushed_end_offset, self.tail.last_offset + 1 if self.tail.batches else 0)

    @property
    def end_offset(self) -> int:
        """Return the offset behind the last readable record, which is before an open transaction."""
        if self.first_open_offset is None:
            return self.written_end_offset
        return min(self.written_end_offset, max(self.first_open_offset, self.start_offset))

    def fetched_topic(self) -> FetchedTopic:
        assert self.topic_id is not None
        return FetchedTopic(name=self.topic, topic_id=self.topic_id, partition=self.partition)

    @property
    def why_it_ends(self) -> str:
        """Return the reason why nothing is read from the end on, as a sentence's end."""
        if self.end_offset < self.written_end_offset:
            return (
                f"a transaction is open from {self.end_offset} on, and only what is committed is read (isolationLevel)"
            )
        if self.settled_end_offset is not None:
            return f"a new leader has not told yet what of the partition it has behind {self.end_offset}"
        if self.behind is not None:
            return f"what brokers have ends at {self.end_offset}"
        return (
            f"what is in the bucket ends at {self.end_offset}, and records that were just produced come into it by "
            "`kafscale flush`"
        )


@attrs.frozen
class _Found:
    """A `.kfs` in the listing, and the size of its `.index`: 0 without one."""

    key: SegmentKey
    kfs: ObjectInfo
    index_size_bytes: int


@attrs.define(eq=False, repr=False)
class Catalog:
    """Looks into a bucket. Keeps footers while listings of their topic show the same objects.

    committed_only: partitions end at the last stable offset, and plans leave out aborted transactions.
    with_log: partitions include the write-ahead log behind their segments.
    brokers: tell the topics, the ends of partitions, and the records behind the segments.
    """

    bucket: Bucket
    namespace: str = NAMESPACE_DEFAULT
    committed_only: bool = False
    with_log: bool = False
    brokers: NewestReader | None = None
    log_memory: LogMemory = attrs.field(factory=LogMemory)
    _present: Present | None = attrs.field(default=None, init=False)
    _reader: PresentReader = attrs.field(init=False)
    _decisions: DecisionReader = attrs.field(init=False)
    _found: dict[SegmentKey, _Found] = attrs.field(factory=dict, init=False)
    _footers: dict[SegmentKey, Footer] = attrs.field(factory=dict, init=False)
    _settled_ends: dict[PartitionId, int] = attrs.field(factory=dict, init=False)  # as of the last time that each was
    _gone: set[SegmentKey] = attrs.field(factory=set, init=False)  # since they were listed

    def __attrs_post_init__(self) -> None:
        self._reader = PresentReader(self.bucket, self.namespace, self.with_log, self.log_memory)
        self._decisions = DecisionReader(self.bucket, self.namespace)

    @property
    def present(self) -> Present:
        """Return metadata and log as of the first call, or of the last `look_again`. Raises StoreError."""
        if self._present is None:
            self._present = self._reader.read()
        return self._present

    @property
    def metadata(self) -> Metadata:
        return self.present.metadata

    @property
    def log_contents(self) -> Mapping[NumberedKey, memoryview]:
        return self.log_memory.contents

    def look_again(self) -> None:
        self._present = None

    def topics(self) -> Sequence[str]:
        """Return the names of all topics, in order. Takes a listing for each topic, unless brokers tell."""
        if self.brokers is not None:
            return sorted(self.brokers.topics())
        deleted = {deletion.name for deletion in self.metadata.deletions.values()}
        listed = [name for name in self._listed_topics() if name not in deleted or self._list(name)[1]]
        return sorted({*listed, *self.metadata.topics})

    def _listed_topics(self) -> Sequence[str]:
        prefix = namespace_prefix(self.namespace)
        names: list[str] = []
        after = ""
        while (info := next(iter(self.bucket.list(prefix, after)), None)) is not None:
            name = info.key.removeprefix(prefix).partition("/")[0]
            after = f"{prefix}{name}/{BEHIND_EVERY_KEY}"
            names.append(name)
        return names

    def partitions(self, topic: str) -> Mapping[int, PartitionLog]:
        """Return the partitions of a topic, with segments or without; none for an unknown topic. Raises StoreError.

        A segment that the broker deletes meanwhile is replaced by newer ones or expired: then the topic is listed
        again.
        """
        for _ in range(LISTINGS_MAX_COUNT):
            logs = self._list_partitions(topic)
            if not self._gone:
                break
        return logs

    def _list_partitions(self, topic: str) -> Mapping[int, PartitionLog]:
        metadata, write_ahead_log = self.metadata, self.present.log  # before the listing, which has what is trimmed
        newest = None if self.brokers is None else self.brokers.look(topic)
        if self.brokers is not None and newest is None:
            self._gone.clear()
            return {}
        topic_id, by_partition, beginnings = self._list_settled(topic, None if newest is None else newest.topic_id)
        known = metadata.topics.get(topic)
        if known is not None and topic_id not in (None, known.topic_id):
            known = None
        if known is not None:
            topic_id = known.topic_id
        indexes = {*by_partition, *range(known.partition_count if known is not None else 0)}
        logged: dict[int, Sequence[LoggedBatch]] = {}
        if topic_id is not None and self.with_log:
            logged = {index: write_ahead_log.batches((topic_id, index)) for index in indexes}
        begun_at = {index: [*begun(logged.get(index, ()))] for index in by_partition}
        for index in by_partition.keys() & beginnings.keys():
            begun_at[index] += beginnings[index].begun
        found = self._assemble(topic, by_partition, begun_at)
        starts = known.log_start_offsets if known is not None else {}
        logs: dict[int, PartitionLog] = {}
        for index in sorted(indexes) if newest is None else newest.partitions:
            log = found.get(index) or PartitionLog(topic=topic, partition=index, segments=())
            log = attrs.evolve(log, topic_id=topic_id, log_start_offset=starts.get(index, 0))
            if newest is None:
                log = self._with_tail(log, logged.get(index, ()))
            else:
                log = self._with_newest(log, newest.partitions[index])
            logs[index] = self._settled(log, beginnings.get(index))
        return logs

    def _list_settled(
        self, topic: str, of_id: bytes | None
    ) -> tuple[bytes | None, Mapping[int, Sequence[_Found]], Mapping[int, Beginning]]:
        """List a topic, and look afterwards where the epochs of its partitions have begun.

        While a partition changes its leader, the listing may have segments that the next leader has not found. So the
        topic is listed again when that leader has told where it goes on. A partition that this catalog has seen before
        ends where it did then.
        """
        give_up_at = monotonic() + DECISION_WAIT_SECONDS
        while True:
            topic_id, by_partition = self._list(topic, of_id)
            some_id = topic_id or (known.topic_id if (known := self.metadata.topics.get(topic)) else b"")
            beginnings = self._reader.beginnings(some_id)
            undecided = [
                index
                for index, beginning in beginnings.items()
                if index in by_partition and not beginning.is_decided and (some_id, index) not in self._settled_ends
            ]
            if not undecided:
                return topic_id, by_partition, beginnings
            if monotonic() >= give_up_at:
                raise Undecided(
                    f"partition {min(undecided)} of topic '{topic}' has a new leader that has not told yet which "
                    "records count: try again when its broker serves"
                )
            sleep(DECISION_LOOK_SECONDS)

    def _settled(self, log: PartitionLog, beginning: Beginning | None) -> PartitionLog:
        if beginning is None or log.topic_id is None:
            return log
        partition_id = (log.topic_id, log.partition)
        if beginning.is_decided:
            self._settled_ends[partition_id] = log.written_end_offset
            return log
        settled_end = self._settled_ends.get(partition_id)
        return log if settled_end is None else attrs.evolve(log, settled_end_offset=settled_end)

    def _with_newest(self, log: PartitionLog, ends: PartitionEnds) -> PartitionLog:
        log = attrs.evolve(log, log_start_offset=max(log.log_start_offset, ends.log_start_offset))
        last = self._last_footer(log.segments)
        record_bytes = RECORD_BYTES_ASSUMED
        if last is not None:
            record_bytes = max(1, last.identity.body_bytes // (last.last_offset + 1 - last.identity.base_offset))
        behind = Behind(base_offset=log.flushed_end_offset, end_offset=ends.high_watermark, record_bytes=record_bytes)
        is_open = self.committed_only and ends.last_stable_offset < ends.high_watermark
        return attrs.evolve(log, behind=behind, first_open_offset=ends.last_stable_offset if is_open else None)

    def _with_tail(self, log: PartitionLog, logged: Sequence[LoggedBatch]) -> PartitionLog:
        last = self._last_footer(log.segments) if logged or self.committed_only else None
        if logged and log.flushed_end_offset == max(log.start_offset, 0 if last is None else last.last_offset + 1):
            log = attrs.evolve(log, tail=UnflushedTail.of(logged, last, log.log_start_offset))
        if not self.committed_only:
            return log
        is_open = log.tail.open_transactions if log.tail.batches else last.open_transactions if last else ()
        first_open_offset = min((transaction.first_offset for transaction in is_open), default=None)
        return attrs.evolve(log, first_open_offset=first_open_offset)

    def _assemble(
        self,
        topic: str,
        by_partition: Mapping[int, Sequence[_Found]],
        begun_at: Mapping[int, Sequence[EpochStart]],
    ) -> dict[int, PartitionLog]:
        tried: set[SegmentKey] = set()
        assemblies = [
            _Assembly(
                index, found, self._footers, tried, assumed_ends(object_.key for object_ in found), begun_at[index]
            )
            for index, found in by_partition.items()
        ]
        resolved = self._resolve(assemblies, tried)
        if any(resolution.late for _, resolution in resolved):
            self._decisions.look()
            resolved = self._resolve([assembly.decided_by(self._decisions) for assembly in assemblies], tried)
        return {
            pair.partition: PartitionLog(
                topic=topic,
                partition=pair.partition,
                segments=resolution.segments,
                damaged=pair.damaged(),
            )
            for pair, resolution in resolved
        }

    def _resolve(
        self, assemblies: Sequence[_Assembly], tried: set[SegmentKey]
    ) -> Sequence[tuple[_Assembly, Resolution]]:
        wanted = {
            object_.key
            for one in assemblies
            for object_ in one.found
            if object_.key.generation or object_.key not in one.ends
        }
        while True:
            self.footers(wanted)
            tried |= wanted
            resolved = [(assembly, assembly.resolve()) for assembly in assemblies]
            wanted = {key for _, resolution in resolved for key in resolution.unread} - tried
            if not wanted:
                return resolved

    def _last_footer(self, segments: Sequence[Segment]) -> Footer | None:
        for segment in sorted(segments, key=lambda each: each.last_offset, reverse=True):
            footer = self.footers([segment.key]).get(segment.key)
            if footer is not None:
                return footer
        return None

    def footers(self, keys: Iterable[SegmentKey], *, with_timestamps: bool = False) -> Mapping[SegmentKey, Footer]:
        """Read footers in parallel, and return the intact ones. Raises StoreError.

        with_timestamps: read a segment of version 1 as a whole, as its footer has no times.
        """
        wanted = [key for key in keys if not self._is_known(key, with_timestamps)]
        if wanted:
            with ThreadPoolExecutor(min(READS_AT_ONCE_COUNT, len(wanted))) as threads:
                self._read_footers(wanted, threads, with_timestamps)
        return self._footers

    def _is_known(self, key: SegmentKey, with_timestamps: bool) -> bool:
        footer = self._footers.get(key)
        if footer is None or not with_timestamps:
            return footer is not None
        return footer.identity.max_timestamp_ms != MAX_TIMESTAMP_UNKNOWN

    def _read_footers(self, keys: Sequence[SegmentKey], threads: Executor, with_timestamps: bool) -> None:
        def read(key: SegmentKey) -> Footer | None:
            try:
                return self._read_footer(key, with_timestamps)
            except NotFound as exc:
                logger.debug("a segment has been deleted since it was listed: %s", exc)
                self._gone.add(key)
            except DamagedObject as exc:
                logger.warning("a segment can't be read: %s", exc)
            return None

        for key, footer in zip(keys, threads.map(read, keys), strict=True):
            if footer is not None:
                self._footers[key] = footer

    def _read_footer(self, key: SegmentKey, with_timestamps: bool) -> Footer:
        """Read the footer of a segment. Raises NotFound, DamagedObject, StoreError.

        A flush that was killed can leave the `.index` of an attempt whose `.kfs` was replaced. Where the end of a
        `.kfs` is damaged, its `.index` still tells where batches are; each batch is checked when it is read.
        """
        store, found = BlockingStore(self.bucket), self._found.get(key)
        if found is None:
            raise NotFound(f"{key.key} is of an earlier listing: the newest has it no more")
        if key.version == VERSION_1:
            return run((read_footer_with_timestamps if with_timestamps else read_footer)(store, key))
        footer = run(read_index(store, key)) if found.index_size_bytes else None
        if footer is not None and footer.end_position + found.index_size_bytes == found.kfs.size_bytes:
            return footer
        try:
            return run(read_footer(store, key))
        except DamagedObject:
            if footer is None or footer.end_position > found.kfs.size_bytes:
                raise
            return footer

    def _list(self, topic: str, of_id: bytes | None = None) -> tuple[bytes | None, Mapping[int, Sequence[_Found]]]:
        index_sizes: dict[str, int] = {}
        by_id: dict[bytes, dict[int, list[_Found]]] = defaultdict(lambda: defaultdict(list))
        before = {key: found for key, found in self._found.items() if key.topic == topic}
        self._gone.clear()
        for info in self.bucket.list(topic_name_prefix(topic, namespace=self.namespace)):
            key = parse_segment_key(info.key)
            if key is None:
                continue
            if key.kind == "index":  # comes before its .kfs
                index_sizes[info.key] = info.size_bytes
            else:
                found = self._found[key] = _Found(key, info, index_sizes.pop(key.of_kind("index").key, 0))
                by_id[key.topic_id][key.partition].append(found)
        for key, known in before.items():
            if self._found[key] is known:  # was not listed now
                del self._found[key]
            if self._found.get(key) != known:
                self._footers.pop(key, None)
        if of_id is not None:
            return of_id, by_id.get(of_id, {})
        kept = [topic_id for topic_id in by_id if topic_id not in self.metadata.deletions]
        if not kept:
            return None, {}
        newest = max(kept, key=lambda topic_id: _last_modified_ms(by_id[topic_id]))
        return newest, by_id[newest]


def _last_modified_ms(partitions: Mapping[int, Sequence[_Found]]) -> int:
    return max(object_.kfs.modified_ms for found in partitions.values() for object_ in found)


@attrs.frozen(eq=False, repr=False)
class _Assembly:
    """One partition, assembled from its listed objects and the footers that have been read."""

    partition: int
    found: Sequence[_Found]
    footers: Mapping[SegmentKey, Footer]
    tried: Collection[SegmentKey]  # those that are not in `footers` are damaged
    ends: Mapping[SegmentKey, int]
    begun: Sequence[EpochStart]  # as the write-ahead log and the placements tell
    decided: Decided = NOTHING_DECIDED

    def decided_by(self, decisions: DecisionReader) -> _Assembly:
        if not self.found:
            return self
        keys = [object_.key for object_ in self.found]
        return attrs.evolve(self, decided=decisions.decided((keys[0].topic_id, self.partition), keys))

    def resolve(self) -> Resolution:
        segments = [self._segment(object_) for object_ in self.found if not self._is_damaged(object_.key)]
        histories = {
            object_.key: self.footers[object_.key].epochs for object_ in self.found if object_.key in self.footers
        }
        damaged = [key for key in self.damaged() if not key.generation]
        known = [*self.begun, *(EpochStart(key.epoch, key.base_offset) for key in damaged)]
        return resolve(segments, histories, begun=known, decided=self.decided)

    def damaged(self) -> Sequence[SegmentKey]:
        return [
            object_.key for object_ in self.found if self._is_damaged(object_.key) and not self._came_late(object_.key)
        ]

    def _came_late(self, key: SegmentKey) -> bool:
        return any(start.epoch > key.epoch and start.start_offset <= key.base_offset for start in self.begun)

    def _is_damaged(self, key: SegmentKey) -> bool:
        return key in self.tried and key not in self.footers and (key.generation > 0 or key not in self.ends)

    def _segment(self, each: _Found) -> Segment:
        footer = self.footers.get(each.key)
        return Segment(
            key=each.key,
            last_offset=self.ends.get(each.key, OFFSET_MAX) if footer is None else footer.last_offset,
            size_bytes=each.kfs.size_bytes if footer is None else footer.identity.body_bytes,
            max_timestamp_ms=MAX_TIMESTAMP_UNKNOWN if footer is None else footer.identity.max_timestamp_ms,
            fingerprint=fingerprint(each.kfs.size_bytes, each.kfs.etag),
        )
