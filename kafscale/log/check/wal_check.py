"""Check the write-ahead log, on the local disk (`check_wal_files`) or in the bucket, without changing it.

Damage is what a start would refuse (`kafscale.log.wal.s3_replay`): an object with wrong content or key, and a missing
object that had been acknowledged. Objects behind a gap without that proof, or behind a fence, were never acknowledged.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.concurrency.nurseries import for_each
from kafscale.errors import DamagedObject, KafkaError, NotFound
from kafscale.formats.manifest import PartitionId
from kafscale.formats.segment_check import Damage
from kafscale.formats.wal_entries import (
    FILE_HEADER_BYTES,
    RECORD_BATCH,
    FileHeader,
    WalEntry,
    decode_file_header,
    find_proof,
    is_torn,
    is_zero,
    scan,
)
from kafscale.formats.wal_index import Span, find_index
from kafscale.formats.wal_objects import HEADER_BYTES, ObjectHeader, WalPosition, decode_header
from kafscale.formats.wal_runs import Listed, LogEpoch, LogRun, find_run
from kafscale.log.repair.verify_segment import BatchMark, Finding, FindingKind
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.local_files import KEPT_PREFIX
from kafscale.log.wal.local_replay import NAME, Extents
from kafscale.log.wal.s3_replay import READS_AT_ONCE_COUNT
from kafscale.store.base import ObjectStore
from kafscale.store.paths import EPOCH_MAX, NumberedKey, parse_numbered_key, topic_id_text
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.records import validate_header

WRITTEN_ANEW = "; a broker that took over has written it anew"


@attrs.define(eq=False, repr=False)
class LoggedPartition:
    """The batches of one partition, in the order of the log."""

    base_offsets: array[int] = attrs.field(factory=lambda: array("q"), init=False)
    next_offsets: array[int] = attrs.field(factory=lambda: array("q"), init=False)
    leader_epochs: array[int] = attrs.field(factory=lambda: array("i"), init=False)
    crcs: array[int] = attrs.field(factory=lambda: array("I"), init=False)
    sources: array[int] = attrs.field(factory=lambda: array("I"), init=False)
    positions: array[int] = attrs.field(factory=lambda: array("Q"), init=False)

    def sort(self) -> None:
        columns = [getattr(self, field.name) for field in attrs.fields(LoggedPartition)]
        rows = list(zip(*columns, strict=True))
        order = sorted(range(len(rows)), key=lambda at: (self.leader_epochs[at], self.base_offsets[at]))
        if order != list(range(len(rows))):
            for place, column in enumerate(columns):
                column[:] = array(column.typecode, [rows[at][place] for at in order])

    @property
    def first_offset(self) -> int:
        return min(self.base_offsets)


@attrs.frozen(kw_only=True)
class SegmentsEnd:
    offset: int = 0
    leader_epoch: int = -1


@attrs.define(eq=False, repr=False)
class LoggedBatches:
    """The batches of one log. `kind` is that of its findings."""

    kind: FindingKind = FindingKind.WAL_OBJECT
    partitions: defaultdict[PartitionId, LoggedPartition] = attrs.field(
        factory=lambda: defaultdict(LoggedPartition), init=False
    )
    topic_names: dict[bytes, str] = attrs.field(factory=dict, init=False)  # by id, as far as the log tells them
    _names: list[str] = attrs.field(factory=list, init=False)

    def add(self, name: str, entry: WalEntry, header: BatchHeader) -> None:
        if not self._names or self._names[-1] != name:
            self._names.append(name)
        partition = self.partitions[entry.topic_id, entry.partition]
        partition.base_offsets.append(entry.base_offset)
        partition.next_offsets.append(header.next_offset)
        partition.leader_epochs.append(entry.leader_epoch)
        partition.crcs.append(header.crc)
        partition.sources.append(len(self._names) - 1)
        partition.positions.append(entry.position)

    def put_in_order(self) -> None:
        for partition in self.partitions.values():
            partition.sort()

    def compare(
        self, partition_id: PartitionId, marks: Mapping[int, BatchMark], *, last_offset: int, key: str
    ) -> Iterator[Finding]:
        """Compare with a segment, whose batches have these `marks`. Of different epochs the later counts."""
        logged = self.partitions[partition_id]
        first_offset, last_epoch = min(marks), max(mark.leader_epoch for mark in marks.values())
        begin = bisect_left(logged.base_offsets, first_offset)  # offsets ascend, except superseded ones
        for at in range(begin, bisect_right(logged.base_offsets, last_offset, begin)):
            base_offset = logged.base_offsets[at]
            mark = marks.get(base_offset)
            if mark is not None and mark.crc == logged.crcs[at]:
                continue
            epoch = last_epoch if mark is None else mark.leader_epoch
            what = "no batch there" if mark is None else "another batch there"
            message = f"offset {base_offset}: {key} has {what}"
            if epoch > logged.leader_epochs[at]:
                message += WRITTEN_ANEW
            elif epoch < logged.leader_epochs[at]:
                message += "; an earlier broker wrote that too late, and the next start leaves it out"
            yield self._finding(logged, at, message, damage=epoch == logged.leader_epochs[at])

    def follow(
        self,
        partition_id: PartitionId,
        end: SegmentsEnd,
        *,
        partition: str,
        log_start_offset: int,
        lost_offset: int = 0,
    ) -> Iterator[Finding]:
        """Check that the log continues where the segments end. `partition` is its name for messages."""
        logged = self.partitions[partition_id]
        next_offset = end.offset
        for at, base_offset in enumerate(logged.base_offsets):
            if next_offset < base_offset <= log_start_offset:
                next_offset = base_offset
            elif base_offset < next_offset <= end.offset and logged.leader_epochs[at] > end.leader_epoch:
                next_offset = base_offset  # what the segments have from here on is late
            problem = None
            if base_offset > next_offset:
                what = "objects" if base_offset > lost_offset else "records were lost with files of this log that"
                problem = f"goes on at offset {base_offset}, but {next_offset} is the next; {what} are missing"
            elif base_offset < next_offset < logged.next_offsets[at]:
                last_offset = logged.next_offsets[at] - 1
                problem = f"has offsets {base_offset} to {last_offset}, of which only the first are there already"
            if problem is not None:
                damage = end.leader_epoch <= logged.leader_epochs[at]
                message = f"{partition} {problem}" + ("" if damage else WRITTEN_ANEW)
                yield self._finding(logged, at, message, damage=damage)
            next_offset = max(next_offset, logged.next_offsets[at])

    def unknown(self, partition_id: PartitionId, outcome: str, *, damage: bool) -> Finding:
        logged = self.partitions[partition_id]
        topic_id, index = partition_id
        topic = f"{self.topic_names.get(topic_id, 'a topic whose name is not known')} ({topic_id_text(topic_id)})"
        offsets = f"offsets {logged.first_offset} to {max(logged.next_offsets) - 1}"
        return Finding(
            name=self._names[logged.sources[0]],
            kind=self.kind,
            message=f"{len(logged.crcs)} record batches, {offsets}, are of partition {index} of {topic}, which the "
            f"metadata does not know, as it was lost or is an older copy; {outcome}",
            position=logged.positions[0],
            damage=damage,
        )

    def _finding(self, logged: LoggedPartition, at: int, message: str, *, damage: bool) -> Finding:
        return Finding(
            name=self._names[logged.sources[at]],
            kind=self.kind if damage else FindingKind.SUPERSEDED,
            message=message,
            position=logged.positions[at],
            damage=damage,
        )


CLEAN = "clean"
TORN = (
    "torn: the last write is cut off at the next start; it was not acknowledged, unless the disk has damaged it since"
)


@attrs.frozen
class CheckedEntry:
    """An entry, and the header of its batch; None if the batch is damaged or the entry has none."""

    entry: WalEntry
    header: BatchHeader | None


def check_entry(
    entry: WalEntry, check_batch: Callable[[memoryview], BatchHeader], damage: list[Damage]
) -> CheckedEntry:
    """Check the batch of an entry; add faults to `damage`. `check_batch` raises KafkaError."""
    if entry.kind != RECORD_BATCH:
        return CheckedEntry(entry, None)
    where = f"the batch at byte {entry.position}"
    try:
        header = check_batch(memoryview(entry.data))
    except KafkaError as exc:
        damage.append(Damage(entry.position, f"{where}: {exc}"))
        return CheckedEntry(entry, None)
    if header.base_offset != entry.base_offset:
        damage.append(
            Damage(entry.position, f"the base offset of {where} is {header.base_offset}, not {entry.base_offset}")
        )
    return CheckedEntry(entry, header)


@attrs.define(eq=False, kw_only=True, repr=False)
class _WholeCheck:
    """A file or object, whole in memory. Iterate over `entries` first. `check_batch` raises KafkaError."""

    name: str
    content: Buffer
    check_batch: Callable[[memoryview], BatchHeader] = validate_header
    damage: list[Damage] = attrs.field(factory=list, init=False)

    def _note(self, position: int, message: str) -> None:
        self.damage.append(Damage(position, message))


@attrs.define(eq=False, kw_only=True, repr=False)
class WalFileCheck(_WholeCheck):
    """One file. `tail` tells what follows the last good entry, None for damage."""

    header: FileHeader | None = attrs.field(init=False)
    end: int = attrs.field(default=FILE_HEADER_BYTES, init=False)
    next_sequence: int = attrs.field(default=0, init=False)
    tail: str | None = attrs.field(default=CLEAN, init=False)

    def __attrs_post_init__(self) -> None:
        try:
            self.header = decode_file_header(self.name, self.content)
        except DamagedObject as exc:
            self.header = None
            self._note(0, str(exc).removeprefix(f"{self.name}: "))
            return
        if self.header is not None:
            self.next_sequence = self.header.sequence
        elif not is_zero(bytes(self.content), FILE_HEADER_BYTES):
            self._note(0, "the file's header is damaged")

    @property
    def started(self) -> bool:
        return self.header is not None and self.header.started

    def entries(self) -> Iterator[CheckedEntry]:
        """Yield every entry up to the first invalid place."""
        if self.header is None:
            return
        for entry in scan(memoryview(self.content), self.end, salt=self.header.salt):
            if entry.sequence != self.next_sequence:
                self._note(
                    self.end,
                    f"the sequence number of the entry at byte {self.end} is {entry.sequence}, not "
                    f"{self.next_sequence}",
                )
            self.end, self.next_sequence = entry.end, entry.sequence + 1
            yield check_entry(entry, self.check_batch, self.damage)
        self._look_at_tail(self.header)

    def _look_at_tail(self, header: FileHeader) -> None:
        tail = bytes(memoryview(self.content)[self.end :])
        if is_zero(tail, 0):
            return
        if find_proof(tail, 0, sequence=self.next_sequence, salt=header.salt) is not None:
            self.tail = None
            self._note(self.end, f"entry {self.next_sequence} was acknowledged and is damaged")
        elif is_torn(tail, 0, sequence=self.next_sequence):
            self.tail = TORN


@attrs.frozen
class CheckedWalFile:
    check: WalFileCheck
    entries: list[CheckedEntry]


async def check_kept_files(disk: Disk) -> AsyncGenerator[CheckedWalFile, None]:
    """Check every copy of a file that a start has kept aside, oldest first, one at a time in memory. Raises OSError."""
    sizes = {name: size for name, size in (await disk.list()).items() if name.startswith(KEPT_PREFIX)}
    for name in sorted(sizes):
        check = WalFileCheck(name=name, content=await disk.read(name, 0, sizes[name]))
        yield CheckedWalFile(check, await trio.to_thread.run_sync(list, check.entries()))


async def check_wal_files(disk: Disk, extents: Extents) -> AsyncGenerator[CheckedWalFile, None]:
    """Check every started file, oldest first, one at a time in memory. Then `extents` has counted missing entries.

    Raises OSError, StorageFailed.
    """
    sizes = {name: size for name, size in (await disk.list()).items() if NAME.fullmatch(name)}
    await extents.compare_files(disk, sizes)
    first_sequence: int | None = None
    before: WalFileCheck | None = None
    for name in sorted(sizes):
        check = WalFileCheck(name=name, content=await disk.read(name, 0, sizes[name]))
        entries = await trio.to_thread.run_sync(list, check.entries())
        if not check.started and not check.damage:
            continue
        if before is not None and check.header is not None:
            if (count := check.header.sequence - before.next_sequence) != 0:
                assert before.header is not None
                what = f"begins with entry {check.header.sequence}, but {before.next_sequence} follows {before.name}"
                if extents.take_gap(before.header.number, check.header.number, count):
                    what += "; files between the two are missing"
                check.damage.append(Damage(0, what))
            elif before.tail is TORN:
                check.damage.append(
                    Damage(0, f"was written after entry {before.next_sequence} of {before.name}, which is damaged")
                )
        yield CheckedWalFile(check, entries)
        before = check
        if check.header is not None and first_sequence is None:
            first_sequence = check.header.sequence
    extents.count_ends(first_sequence, 0 if before is None else before.next_sequence - 1)


@attrs.define(eq=False, kw_only=True, repr=False)
class WalObjectCheck(_WholeCheck):
    """One object. `name` is its key; any other name, as of a copy, is not compared."""

    header: ObjectHeader | None = attrs.field(default=None, init=False)
    entry_count: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        try:
            self.header = decode_header(self.name, self.content)
        except DamagedObject as exc:
            self._note(0, str(exc).removeprefix(f"{self.name}: "))
            return
        key = parse_numbered_key(self.name)
        if key is not None and not _belongs(self.header, key):
            self._note(0, f"says that it is object {self.header.number} of epoch {self.header.epoch}")

    def entries(self) -> Iterator[CheckedEntry]:
        if self.header is None:
            return
        end, header = HEADER_BYTES, self.header
        index, spans = self._index(header), dict[PartitionId, Span]()
        for entry in scan(memoryview(self.content), end, salt=header.salt):
            if entry.sequence != header.sequence + self.entry_count:
                break
            self.entry_count += 1
            if index is not None and entry.kind == RECORD_BATCH:
                partition_id = entry.topic_id, entry.partition
                before = spans.get(partition_id, Span(end, end, 0, entry.sequence))
                spans[partition_id] = attrs.evolve(before, end=entry.end, entry_count=before.entry_count + 1)
            end = entry.end
            yield check_entry(entry, self.check_batch, self.damage)
        size_bytes = HEADER_BYTES + header.body_bytes
        if (self.entry_count, end, len(self.content)) != (header.entry_count, size_bytes, size_bytes):
            self._note(
                end,
                f"entry {header.sequence + self.entry_count} is damaged: the object has {len(self.content)} bytes, and "
                f"should have {size_bytes} with {header.entry_count} entries",
            )
        elif index not in (None, spans):
            self._note(HEADER_BYTES, "the index does not tell where the entries are")

    def _index(self, header: ObjectHeader) -> Mapping[PartitionId, Span] | None:
        """Return where the index locates entries; nothing if it is incomplete."""
        try:
            return find_index(self.name, header, self.content)
        except DamagedObject:
            return {}


def _belongs(header: ObjectHeader, key: NumberedKey) -> bool:
    """Tell whether an object is at its place. A fence ends the epoch of its key, and is of another one."""
    epoch_fits = (header.epoch == key.epoch) is not header.is_fence
    return epoch_fits and header.number == key.number


@attrs.define(eq=False, kw_only=True, repr=False)
class S3WalCheck:
    """All `listed` objects. Epochs behind `alone_until` are streams. `on_progress` gets bytes read."""

    store: ObjectStore
    namespace: str
    listed: Mapping[int, Listed]
    alone_until: int = EPOCH_MAX
    on_progress: Callable[[int], None] = lambda done_bytes: None
    findings: list[Finding] = attrs.field(factory=list, init=False)
    batches: LoggedBatches = attrs.field(factory=LoggedBatches, init=False)
    entry_count: int = attrs.field(default=0, init=False)
    _read_bytes: int = attrs.field(default=0, init=False)

    async def run(self, kept_until: WalPosition) -> None:
        """Read every object. Objects up to `kept_until` may have been deleted. Raises StoreError."""
        for epoch, numbers in sorted(self.listed.items()):
            found = find_run(epoch, numbers, await self._kept_until(epoch, numbers, kept_until))
            await self._check_run(epoch, found.numbers)
            for number, following in pairwise(found.numbers):
                if following > number + 1:
                    self._note(self._key(epoch, number), "is not needed: what follows it has been deleted")
            behind = [found.end] if found.has_fence else []
            for number in [*found.late_fences, *behind, *found.leftover]:
                await self._check_other(epoch, number, found)
        self.batches.put_in_order()

    async def _kept_until(self, epoch: int, numbers: Listed, kept_until: WalPosition) -> WalPosition:
        """Return up to where objects of an epoch may have been deleted; a stream's own objects tell it."""
        if epoch <= self.alone_until:
            return kept_until
        with suppress(DamagedObject, NotFound):  # which is found when it is read, or no object of the stream any more
            return WalPosition(epoch, await LogEpoch(self.store, self.namespace, epoch).told_number(numbers))
        return WalPosition(epoch, min(numbers) - 1)

    async def _check_run(self, epoch: int, numbers: Sequence[int]) -> None:
        next_number, next_sequence = 0, 0  # of the object and the entry behind those that were read
        for start in range(0, len(numbers), READS_AT_ONCE_COUNT):
            group = {number: self._key(epoch, number) for number in numbers[start : start + READS_AT_ONCE_COUNT]}
            contents = await self._read_all(list(group.values()))
            for number, name in group.items():
                if name not in contents:
                    continue  # deleted since it was listed, as it is no longer needed
                check = WalObjectCheck(name=name, content=contents[name])
                entries = await trio.to_thread.run_sync(list, check.entries())
                if check.header is not None:
                    if number == next_number and check.header.sequence != next_sequence:
                        check.damage.append(
                            Damage(0, f"begins with entry {check.header.sequence}, but {next_sequence} follows")
                        )
                    next_number, next_sequence = number + 1, check.header.sequence + check.header.entry_count
                self._take(check, entries)

    async def _has_come(self, name: str) -> bool:
        """Tell whether an unlisted object exists: a broker may write between two pages."""
        try:
            await self.store.head(name)
        except NotFound:
            return False
        return True

    async def _check_other(self, epoch: int, number: int, found: LogRun) -> None:
        """Check a fence, or an object behind the end, which was not acknowledged unless its header proves it."""
        name = self._key(epoch, number)
        contents = await self._read_all([name])
        if name not in contents:
            return
        check = WalObjectCheck(name=name, content=contents[name])
        self._take(check, [])
        if check.header is None:
            return
        if number <= found.end:
            if not check.header.is_fence:
                self._damage(name, "cut off behind the header", position=HEADER_BYTES)
            elif number < found.end:
                self._note(name, "is a fence that came late")
        elif not found.has_fence and check.header.durable_number >= found.end:
            missing = self._key(epoch, found.end)
            if await self._has_come(missing):
                self._note(name, f"follows {missing}, which came while the log was listed")
            else:
                self._damage(missing, f"is missing: it had been acknowledged when {name} was written")
        else:
            self._note(name, "has not been acknowledged")

    async def _read_all(self, names: Sequence[str]) -> Mapping[str, Buffer]:
        contents: dict[str, Buffer] = {}

        async def read(name: str) -> None:
            with suppress(NotFound):
                contents[name] = (await self.store.get(name)).data

        await for_each(names, read, tasks_count=READS_AT_ONCE_COUNT)
        self._read_bytes += sum(map(len, contents.values()))
        self.on_progress(self._read_bytes)
        return contents

    def _take(self, check: WalObjectCheck, entries: Sequence[CheckedEntry]) -> None:
        for found in check.damage:
            self._damage(check.name, found.message, position=found.position)
        self.entry_count += len(entries)
        for entry in entries:
            if entry.header is not None:
                self.batches.add(check.name, entry.entry, entry.header)

    def _note(self, name: str, message: str) -> None:
        self.findings.append(Finding(name=name, kind=FindingKind.WAL_OBJECT, message=message, damage=False))

    def _damage(self, name: str, message: str, *, position: int | None = None) -> None:
        self.findings.append(Finding(name=name, kind=FindingKind.WAL_OBJECT, message=message, position=position))

    def _key(self, epoch: int, number: int) -> str:
        return NumberedKey(namespace=self.namespace, kind="wal", epoch=epoch, number=number).key
