"""Check the write-ahead log, on the local disk (`check_wal_files`) or in the bucket, without changing it.

Damage is what a start would refuse (`kafscale.log.wal.s3_replay`): an object with wrong content or key, and a missing
object that had been acknowledged. Objects behind a gap without that proof, or behind a fence, were never acknowledged.
"""

from __future__ import annotations

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
from kafscale.log.check.logged_batches import LoggedBatches
from kafscale.log.repair.verify_segment import Finding, Kind
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.journal import KEPT_PREFIX
from kafscale.log.wal.local_replay import NAME, Extents
from kafscale.log.wal.s3_replay import READS_AT_ONCE_COUNT
from kafscale.store.base import ObjectStore
from kafscale.store.paths import EPOCH_MAX, NumberedKey, parse_numbered_key
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.records import validate_header

CLEAN = "clean"
TORN = (
    "torn: the last write is cut off at the next start; it was not acknowledged, unless the disk has damaged it since"
)


@attrs.frozen
class CheckedEntry:
    """An entry, and the header of its batch; None where the batch is damaged or the entry holds none."""

    entry: WalEntry
    header: BatchHeader | None


def check_entry(
    entry: WalEntry, check_batch: Callable[[memoryview], BatchHeader], damage: list[Damage]
) -> CheckedEntry:
    """Check the batch of an entry that has one; add what is wrong to `damage`. `check_batch` raises KafkaError."""
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
class WalFileCheck:
    """One file, whole in memory. Go through `entries` first; then the rest is known.

    `tail` says what follows the last good entry, and is None where that is damage. `check_batch` raises KafkaError.
    """

    name: str
    content: Buffer
    check_batch: Callable[[memoryview], BatchHeader] = validate_header
    damage: list[Damage] = attrs.field(factory=list, init=False)
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
        """Tell whether anything was ever acknowledged in this log."""
        return self.header is not None and self.header.started

    def entries(self) -> Iterator[CheckedEntry]:
        """Every entry up to the first place that is none."""
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

    def _note(self, position: int, message: str) -> None:
        self.damage.append(Damage(position, message))


@attrs.frozen
class CheckedWalFile:
    """A file and its entries, all of them read."""

    check: WalFileCheck
    entries: list[CheckedEntry]


async def check_kept_files(disk: Disk) -> AsyncGenerator[CheckedWalFile, None]:
    """Every copy of a file that a start has kept aside, oldest first; one at a time is in memory. Raises OSError."""
    sizes = {name: size for name, size in (await disk.list()).items() if name.startswith(KEPT_PREFIX)}
    for name in sorted(sizes):
        check = WalFileCheck(name=name, content=await disk.read(name, 0, sizes[name]))
        yield CheckedWalFile(check, await trio.to_thread.run_sync(list, check.entries()))


async def check_wal_files(disk: Disk, extents: Extents) -> AsyncGenerator[CheckedWalFile, None]:
    """Every started file, oldest first; one at a time is in memory. Afterwards `extents` has counted what is missing.

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
class WalObjectCheck:
    """One object, whole in memory. Go through `entries` first; then the rest is known.

    `name` is its key; another name, as of a copy, is not held against what the object says. `check_batch` raises
    KafkaError.
    """

    name: str
    content: Buffer
    check_batch: Callable[[memoryview], BatchHeader] = validate_header
    damage: list[Damage] = attrs.field(factory=list, init=False)
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
        """Every entry up to the first place that is none."""
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
        """Return where the index says that entries are; nowhere, if it tells that of some only."""
        try:
            return find_index(self.name, header, self.content)
        except DamagedObject:
            return {}

    def _note(self, position: int, message: str) -> None:
        self.damage.append(Damage(position, message))


def _belongs(header: ObjectHeader, key: NumberedKey) -> bool:
    """Tell whether an object is at its place. A fence ends the epoch of its key, and is of another one."""
    epoch_fits = (header.epoch == key.epoch) is not header.is_fence
    return epoch_fits and header.number == key.number


@attrs.define(eq=False, kw_only=True, repr=False)
class S3WalCheck:
    """All objects. `run`; then `findings`, and in `batches` what the log holds.

    `listed` is what `list_log` gave; epochs behind `alone_until` are streams. `on_progress` gets bytes read.
    """

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
        """Read every object. What is missing up to `kept_until` was deleted. Raises StoreError."""
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
        """Return up to where what is missing of an epoch was deleted; of a stream, its own objects tell that."""
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
        """Tell whether an object is there, though it was not listed: a broker may write between two pages."""
        try:
            await self.store.head(name)
        except NotFound:
            return False
        return True

    async def _check_other(self, epoch: int, number: int, found: LogRun) -> None:
        """A fence, or what lies behind the end: it was not acknowledged, unless it says that what is missing was."""
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
        self.findings.append(Finding(name=name, kind=Kind.WAL_OBJECT, message=message, damage=False))

    def _damage(self, name: str, message: str, *, position: int | None = None) -> None:
        self.findings.append(Finding(name=name, kind=Kind.WAL_OBJECT, message=message, position=position))

    def _key(self, epoch: int, number: int) -> str:
        return NumberedKey(namespace=self.namespace, kind="wal", epoch=epoch, number=number).key
