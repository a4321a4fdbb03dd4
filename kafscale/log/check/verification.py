"""Verify all of a namespace. docs/how-to/verify-a-bucket.md says what is checked.

Memory is bounded: TASKS_COUNT segments are read at once in pieces; a key is kept for each object, the ends of each
segment, and 40 bytes for each batch in a log. Can run beside a live broker: the log is read before the segments are
listed, so that batches flushed meanwhile are found in both.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import pairwise

import attrs

from kafscale.concurrency.nurseries import for_each
from kafscale.errors import NotFound
from kafscale.formats.footer_reading import read_index
from kafscale.formats.manifest import FINGERPRINT_UNKNOWN, ListedSegment, PartitionId, Segment
from kafscale.formats.manifest_checkpoint import ManifestCheckpoint, MissingSegment
from kafscale.formats.resolution import NOTHING_DECIDED, resolve
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_entries import TOPIC_NAME
from kafscale.formats.wal_objects import WalPosition
from kafscale.formats.wal_runs import Listed
from kafscale.log.check.wal_check import (
    CheckedWalFile,
    LoggedBatches,
    S3WalCheck,
    SegmentsEnd,
    check_kept_files,
    check_wal_files,
)
from kafscale.log.repair.repair import Examiner
from kafscale.log.repair.verify_segment import CheckedSegment, Finding, FindingKind, check_segment
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.local_replay import Extents, ExtentStore, file_name
from kafscale.store.base import ObjectInfo, ObjectStore
from kafscale.store.paths import EPOCH_MAX, SegmentKey, namespace_prefix, parse_segment_key, topic_id_text

TASKS_COUNT = 16  # segments that are read at once, each with a piece of 4 MiB in memory
ORPHAN_GRACE_SECONDS = 3600.0  # an `.index` younger than this may be half of an upload that is under way


@attrs.frozen
class VerifiedTopic:
    """A topic in the metadata: offsets below the log start may be missing.

    Records below `lost_offsets` may have been lost with files of the local log.
    """

    name: str
    partition_count: int
    log_start_offsets: Mapping[int, int]
    lost_offsets: Mapping[int, int] = attrs.field(factory=dict)


@attrs.define(eq=False, kw_only=True, repr=False)
class Report:
    objects: int = 0
    segments: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    partitions: int = 0
    wal_objects: int = 0
    wal_entries: int = 0
    findings: list[Finding] = attrs.field(factory=list)

    def add(self, findings: Iterable[Finding]) -> None:
        self.findings = sorted(
            [*self.findings, *findings], key=lambda finding: (finding.name, finding.position or 0, finding.kind)
        )

    @property
    def is_whole(self) -> bool:
        return not any(finding.damage and not finding.repaired for finding in self.findings)


@attrs.define(eq=False, kw_only=True, repr=False)
class Verifier:
    """One run: `read_log`, `read_wal` if there is one, `list_bucket`, `read_bucket`, then `repair` if wanted.

    `topics` is the metadata, by topic id, to be set before `read_bucket`; None without metadata. It may lack recent
    changes if not `metadata_is_current`. `deleted` are ids of deleted topics. `manifests` is the last checkpoint of
    segments; `begun` tells where epochs of a partition began, with several brokers.
    """

    store: ObjectStore
    namespace: str
    topics: Mapping[bytes, VerifiedTopic] | None = None
    deleted: Collection[bytes] = ()
    metadata_is_current: bool = True
    manifests: ManifestCheckpoint = attrs.field(factory=dict)
    begun: Callable[[PartitionId], Sequence[EpochStart]] = lambda partition_id: ()
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    report: Report = attrs.field(factory=Report, init=False)
    _logs: list[LoggedBatches] = attrs.field(factory=list, init=False)
    _kept_aside: LoggedBatches = attrs.field(factory=lambda: LoggedBatches(FindingKind.WAL), init=False)
    _objects: dict[str, ObjectInfo] = attrs.field(factory=dict, init=False)
    _partitions: dict[PartitionId, list[CheckedSegment]] = attrs.field(factory=lambda: defaultdict(list), init=False)

    async def read_log(
        self,
        listed: Mapping[int, Listed],
        kept_until: WalPosition,
        on_progress: Callable[[int], None],
        *,
        is_shared: bool = False,
    ) -> None:
        """Check the log in the bucket, as listed by `list_log`. Raises StoreError.

        If the log `is_shared` by several brokers, the epoch of `kept_until` is the last of a broker alone.
        """
        check = S3WalCheck(
            store=self.store,
            namespace=self.namespace,
            listed=listed,
            alone_until=kept_until.epoch if is_shared else EPOCH_MAX,
            on_progress=on_progress,
        )
        await check.run(kept_until)
        self.report.wal_objects += sum(map(len, listed.values()))
        self.report.wal_entries += check.entry_count
        self.report.findings += check.findings
        self._logs.append(check.batches)

    async def read_wal(self, disk: Disk, noted: ExtentStore | None = None) -> None:
        """Check the log in a data directory; `noted` tells which files it must have. Raises OSError, StorageFailed."""
        batches = LoggedBatches(FindingKind.WAL)
        extents = Extents(noted, disk.location)
        async with aclosing(check_wal_files(disk, extents)) as files:
            async for file in files:
                name = f"{disk.location}/{file.check.name}"
                self.report.findings += [
                    Finding(name=name, kind=FindingKind.WAL, message=found.message, position=found.position)
                    for found in file.check.damage
                ]
                self.report.wal_entries += len(file.entries)
                _add_batches(batches, name, file)
        self._report_missing_files(extents)
        async with aclosing(check_kept_files(disk)) as files:
            async for file in files:
                _add_batches(self._kept_aside, f"{disk.location}/{file.check.name}", file)
        self._logs.append(batches)

    def _report_missing_files(self, extents: Extents) -> None:
        for number in extents.missing:
            self._damage(f"{extents.location}/{file_name(number)}", FindingKind.WAL, "is missing or empty")
        if extents.missing_count:
            message = f"at least {extents.missing_count} acknowledged entries are missing from the write-ahead log"
            self._damage(extents.location, FindingKind.WAL, message)

    async def list_bucket(self) -> int:
        """List the objects. Returns how many bytes there are to read. Raises StoreError."""
        async with aclosing(self.store.list(namespace_prefix(self.namespace))) as pages:
            async for page in pages:
                self._objects |= {info.key: info for info in page}
        self.report.objects = len(self._objects)
        return sum(info.size_bytes for info in self._objects.values())

    async def read_bucket(self, on_progress: Callable[[int], None]) -> None:
        """Check every segment, then all together. `on_progress` gets bytes read. Raises StoreError."""
        done_bytes = 0
        keys = [key for name in self._objects if (key := parse_segment_key(name)) is not None and key.kind == "kfs"]

        async def check(key: SegmentKey) -> None:
            nonlocal done_bytes
            self._take(await check_segment(self.store, key, with_marks=self._is_logged(key)))
            done_bytes += self._objects[key.key].size_bytes
            on_progress(done_bytes)

        await for_each(keys, check, tasks_count=TASKS_COUNT)
        await self._look_at_others()
        for partition_id, segments in sorted(self._partitions.items()):
            self._check_partition(partition_id, segments)
        self._check_manifests()
        self._follow_logs()
        self._look_for_unknown_batches()
        self.report.partitions = len(self._partitions)
        self._check_topics()
        self.report.add(())

    def _is_logged(self, key: SegmentKey) -> bool:
        """Tell whether a log may have the segment's batches; a merged segment may be compacted."""
        partition_id = key.topic_id, key.partition
        return not key.generation and any(partition_id in log.partitions for log in self._logs)

    def _take(self, checked: CheckedSegment) -> None:
        report = self.report
        report.segments += 1
        report.bytes += checked.size_bytes
        report.batches += checked.batch_count
        report.records += checked.record_count
        report.findings += checked.findings
        if checked.gone:
            self._note(checked.key.key, FindingKind.CHANGED, "has gone since it was listed: merged, or deleted")
        elif not checked.findings:
            checked.footer, checked.footer_bytes = None, b""  # of use for a repair only
            self._compare_with_logs(checked)
        checked.marks = None
        self._partitions[checked.key.topic_id, checked.key.partition].append(checked)

    def _note(self, name: str, kind: FindingKind, message: str) -> None:
        self.report.findings.append(Finding(name=name, kind=kind, message=message, damage=False))

    def _damage(self, name: str, kind: FindingKind, message: str) -> None:
        self.report.findings.append(Finding(name=name, kind=kind, message=message))

    # ---- other objects ------------------------------------------------------------------------------------------

    async def _look_at_others(self) -> None:
        for name, info in self._objects.items():
            key = parse_segment_key(name)
            if key is None or key.namespace != self.namespace:
                self._note(name, FindingKind.UNKNOWN_OBJECT, "is nothing that KafScale writes")
            elif key.kind == "index" and key.of_kind("kfs").key not in self._objects:
                await self._look_at_orphan(key, info)

    async def _look_at_orphan(self, key: SegmentKey, info: ObjectInfo) -> None:
        try:
            await self.store.head(key.of_kind("kfs").key)
        except NotFound:
            finding = Finding(name=info.key, kind=FindingKind.ORPHAN_INDEX, message="has no .kfs", damage=False)
            self.report.findings.append(finding)
            if self.clock_ms() - info.modified_ms < ORPHAN_GRACE_SECONDS * 1000:
                finding.message += "; it may be half of an upload that is under way"
            else:
                await self._judge_orphan(key, finding)

    async def _judge_orphan(self, key: SegmentKey, finding: Finding) -> None:
        """Report damage if no other object holds the offsets of an `.index`, unless they were deleted."""
        footer = await read_index(self.store, key.of_kind("kfs"))
        first_offset, last_offset = key.base_offset, key.base_offset if footer is None else footer.last_offset
        topic = self._topic((key.topic_id, key.partition))
        if topic is not None:
            first_offset = max(first_offset, topic.log_start_offsets.get(key.partition, 0))
        held = list(self._held((key.topic_id, key.partition)))
        is_unknown = self.topics is not None and topic is None  # the topic was deleted, or is to be adopted
        if is_unknown or _are_covered(first_offset, last_offset, held):
            finding.can_repair = True
            return
        finding.message += f", and no other object holds its offsets {first_offset} to {last_offset}"
        is_current = self.topics is not None and self.metadata_is_current
        if not is_current and held and last_offset < min(held)[0]:
            finding.message += ", unless they were deleted since the last checkpoint"
            return
        finding.damage = True
        if not any(log.kind is FindingKind.WAL for log in self._logs):
            finding.message += (
                "; with `--durability wal` its broker may still have them: stop that broker and run `kafscale verify "
                "--data-dir DIR` with its data directory"
            )
        finding.message += "; put the .kfs back from a copy, unless its upload was cut off and not acknowledged"

    def _held(self, partition_id: PartitionId) -> Iterator[tuple[int, int]]:
        for segment in self._partitions.get(partition_id, ()):
            if segment.last_offset is not None:
                yield segment.base_offset, segment.last_offset
        for log in self._logs:
            if partition_id in log.partitions:
                logged = log.partitions[partition_id]
                for base_offset, next_offset in zip(logged.base_offsets, logged.next_offsets, strict=True):
                    yield base_offset, next_offset - 1

    # ---- partitions ---------------------------------------------------------------------------------------------

    def _check_partition(self, partition_id: PartitionId, checked: Sequence[CheckedSegment]) -> None:
        if any(checked_segment.gone or checked_segment.last_offset is None for checked_segment in checked):
            return  # what is wrong has been said, and where this one ends is not known
        known = self.manifests.get(partition_id)
        decided = (
            NOTHING_DECIDED if known is None else known.decided(checked_segment.key for checked_segment in checked)
        )
        histories = {checked_segment.key: checked_segment.epochs for checked_segment in checked}
        resolution = resolve(map(_segment, checked), histories, begun=self.begun(partition_id), decided=decided)
        segments = resolution.segments
        used = {segment.key for segment in segments}
        for checked_segment in checked:
            if checked_segment.key in resolution.late:
                checked_segment.is_late = True
                self._note(checked_segment.key.key, FindingKind.LATE, self._lateness(checked_segment))
            elif checked_segment.key not in used:
                self._note(checked_segment.key.key, FindingKind.SUPERSEDED, "a newer segment covers it")
        if not segments:
            return  # all of it came too late
        topic = self._topic(partition_id)
        end = segments[0].base_offset
        if topic is not None:
            end = min(end, topic.log_start_offsets.get(partition_id[1], 0))
        before: Segment | None = None
        self._check_transactions(segments, checked)
        for segment in segments:
            if segment.base_offset > end:
                self._check_gap(partition_id, before, segment, end)
            elif segment.base_offset < end:
                self._damage(
                    segment.kfs_key,
                    FindingKind.OVERLAP,
                    f"begins at offset {segment.base_offset}, which another segment holds up to {end - 1}",
                )
            end = max(end, segment.last_offset + 1)
            before = segment

    def _check_stable_ends(self, segments: Sequence[Segment], checked: Sequence[CheckedSegment]) -> None:
        told = {checked_segment.key: checked_segment.stable_end for checked_segment in checked}
        stable_end = 0
        for segment in sorted(segments, key=lambda each: each.last_offset):
            own = told[segment.key]
            if own is not None and own < stable_end:
                what = f"is stable up to offset {own}, and a segment before it up to {stable_end}"
                self._damage(segment.kfs_key, FindingKind.FOOTER, what)
            stable_end = max(stable_end, own or 0)

    def _check_transactions(self, segments: Sequence[Segment], checked: Sequence[CheckedSegment]) -> None:
        self._check_stable_ends(segments, checked)
        told = {checked_segment.key: checked_segment.transactions for checked_segment in checked}
        for segment, following in pairwise(segments):
            before, after = told[segment.key], told[following.key]
            if before is not None and after is not None and segment.last_offset + 1 == following.base_offset:
                for message in after.going_on(before):
                    self._damage(following.kfs_key, FindingKind.FOOTER, message)

    def _lateness(self, late: CheckedSegment) -> str:
        return (
            f"its offsets {late.base_offset} to {late.last_offset} are never read: its broker wrote them after another "
            "one had taken over, whose records are others. `kafscale inspect --batches` shows them; produce "
            "again what is wanted of them, then delete this object and its .index"
        )

    def _check_gap(self, partition_id: PartitionId, before: Segment | None, segment: Segment, end: int) -> None:
        topic = self._topic(partition_id)
        message = f"offsets {end} to {segment.base_offset - 1} are missing before it"
        if topic is not None and segment.base_offset <= topic.log_start_offsets.get(partition_id[1], 0):
            return
        if before is None and not self.metadata_is_current:
            self._note(
                segment.kfs_key, FindingKind.GAP, f"{message}, unless they were deleted since the last checkpoint"
            )
            return
        if topic is not None and segment.base_offset <= topic.lost_offsets.get(partition_id[1], 0):
            message += ": what they had was lost with files of the write-ahead log, and they are not given out again"
        self._damage(segment.kfs_key, FindingKind.GAP, message)

    def _check_manifests(self) -> None:
        for partition_id, known in sorted(self.manifests.items()):
            topic = self._topic(partition_id)
            if topic is None:
                continue  # the topic may have been deleted
            found = self._partitions.get(partition_id, [])
            listed = [ListedSegment(segment.key, segment.size_bytes, None, FINGERPRINT_UNKNOWN) for segment in found]
            segments = [_segment(segment) for segment in found if segment.last_offset is not None]
            end_offset = max((segment.last_offset + 1 for segment in segments), default=0)
            for missing in known.recognise(listed).missing:
                wanted = missing.last_offset >= topic.log_start_offsets.get(partition_id[1], 0)
                if wanted and not any(map(missing.may_be_in, segments)):
                    self.report.findings.append(
                        self._gone(f"{topic.name}-{partition_id[1]}", missing, at_end=missing.base_offset >= end_offset)
                    )

    def _gone(self, name: str, missing: MissingSegment, *, at_end: bool) -> Finding:
        """Report a missing segment. At the end of the log it is always damage: deletion leaves the last segment."""
        message = f"offsets {missing.base_offset} to {missing.last_offset} had a segment, which is missing"
        if at_end:
            message += (
                " from the end of the log: consumers are led over them, and they are not given out again; to have the "
                "records back, stop the broker and put the .kfs back from a copy"
            )
        return Finding(name=name, kind=FindingKind.GAP, message=message, damage=at_end or self.metadata_is_current)

    @property
    def last_epoch(self) -> int:
        """The greatest leader epoch in segments, or -1."""
        found = [segment for partition in self._partitions.values() for segment in partition]
        return max((max(segment.key.epoch, segment.last_epoch) for segment in found), default=-1)

    def _topic(self, partition_id: PartitionId) -> VerifiedTopic | None:
        return None if self.topics is None else self.topics.get(partition_id[0])

    def _check_topics(self) -> None:
        if self.topics is None:
            return
        names = {topic_id: found[0].key.topic for (topic_id, _), found in self._partitions.items()}
        for topic_id, name in names.items():
            if topic_id not in self.topics:
                text = f"{name} ({topic_id_text(topic_id)})"
                self._note(
                    text, FindingKind.UNKNOWN_TOPIC, "is in no metadata: deleted, or to be adopted (kafscale adopt)"
                )
        for (topic_id, index), found in self._partitions.items():
            topic = self.topics.get(topic_id)
            if topic is not None and index >= topic.partition_count:
                message = f"is of partition {index}, the topic has {topic.partition_count}"
                self._note(found[0].key.key, FindingKind.UNKNOWN_TOPIC, message)

    # ---- write-ahead logs ---------------------------------------------------------------------------------------

    def _compare_with_logs(self, checked: CheckedSegment) -> None:
        partition_id = checked.key.topic_id, checked.key.partition
        for log in self._logs:
            if checked.marks and checked.last_offset is not None and partition_id in log.partitions:
                found = log.compare(partition_id, checked.marks, last_offset=checked.last_offset, key=checked.key.key)
                self.report.findings += found

    def _follow_logs(self) -> None:
        for log in self._logs:
            for partition_id in sorted(log.partitions):
                topic, end = self._topic(partition_id), self._segments_end(partition_id)
                if topic is not None and end is not None:
                    log_start_offset = topic.log_start_offsets.get(partition_id[1], 0)
                    name = f"{topic.name}-{partition_id[1]}"
                    self.report.findings += log.follow(
                        partition_id,
                        end,
                        partition=name,
                        log_start_offset=log_start_offset,
                        lost_offset=topic.lost_offsets.get(partition_id[1], 0),
                    )

    def _look_for_unknown_batches(self) -> None:
        for log in self._logs:
            if log.kind is FindingKind.WAL:
                outcome = "the next start keeps them aside, and `kafscale adopt` gives them back"
                self.report.findings += [log.unknown(batch, outcome, damage=True) for batch in self._unknown(log)]
        outcome = "they were kept aside, and `kafscale adopt` gives them back"
        kept = self._kept_aside
        self.report.findings += [kept.unknown(batch, outcome, damage=False) for batch in self._unknown(kept)]

    def _unknown(self, log: LoggedBatches) -> Sequence[PartitionId]:
        return [
            partition
            for partition in sorted(log.partitions)
            if partition[0] not in self.deleted and not self._is_known(partition)
        ]

    def _is_known(self, partition_id: PartitionId) -> bool:
        topic = self._topic(partition_id)
        return topic is not None and partition_id[1] < topic.partition_count

    def _segments_end(self, partition_id: PartitionId) -> SegmentsEnd | None:
        """Return None if the last segment may be damaged."""
        found = self._partitions.get(partition_id, [])
        if any(segment.last_offset is None for segment in found):
            return None
        known = [segment for segment in found if not segment.is_late]
        last = max(known, key=lambda each: each.last_offset or 0, default=None)
        if last is None or last.last_offset is None:
            return SegmentsEnd()
        return SegmentsEnd(offset=last.last_offset + 1, leader_epoch=last.last_epoch)

    # ---- repair -------------------------------------------------------------------------------------------------

    async def repair(self) -> None:
        """Rebuild what is possible, one after another. Raises StoreError."""
        examiner = Examiner(store=self.store)
        for checked in self._broken():
            neighbours = self._partitions[checked.key.topic_id, checked.key.partition]
            before = [neighbour.key for neighbour in neighbours if neighbour.last_offset == checked.key.base_offset - 1]
            newest = max(before, key=lambda key: (key.epoch, key.generation), default=None)
            await examiner.repair_segment(checked, newest)
        for finding in self.report.findings:
            if finding.kind is FindingKind.ORPHAN_INDEX and finding.can_repair:
                key = parse_segment_key(finding.name)
                assert key is not None
                finding.repaired = await examiner.remove_orphan(key)

    def _broken(self) -> Iterable[CheckedSegment]:
        """Return the broken segments in order of offset: the state of producers continues from one to the next."""
        broken = [
            segment
            for found in self._partitions.values()
            for segment in found
            if any(finding.can_repair for finding in segment.findings)
        ]
        return sorted(broken, key=lambda each: each.key.key)


def _add_batches(batches: LoggedBatches, name: str, file: CheckedWalFile) -> None:
    for entry in file.entries:
        if entry.header is not None:
            batches.add(name, entry.entry, entry.header)
        elif entry.entry.kind == TOPIC_NAME:
            batches.topic_names[entry.entry.topic_id] = bytes(entry.entry.data).decode()


def _are_covered(first_offset: int, last_offset: int, held: Iterable[tuple[int, int]]) -> bool:
    for first, last in sorted(held):
        if first > first_offset:
            break
        first_offset = max(first_offset, last + 1)
    return first_offset > last_offset


def _segment(checked: CheckedSegment) -> Segment:
    assert checked.last_offset is not None
    return Segment(key=checked.key, last_offset=checked.last_offset, size_bytes=checked.size_bytes, max_timestamp_ms=-1)
