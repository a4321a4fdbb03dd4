"""Whether a file of the write-ahead log is whole, and whether the files together are. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject, KafkaError
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
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.extent import Extents
from kafscale.log.wal.kept_aside import KEPT_PREFIX
from kafscale.log.wal.local_replay import NAME
from kafscale.wire.records import BatchHeader, validate_header

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
