"""Read the local log at a start: hand over entries in order, cut off a torn tail, refuse damage, find missing files.

One file is in memory at a time. A note in the metadata (`WalExtent`) names the files that the log must have. It is
written when a file is made, before files are deleted, and at a stop. Missing files stay in it until partitions go on
behind the offsets that these may have held (`settle`). One loss can't be found: a last file cut between two entries
after a kill looks like a torn write.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import attrs
import trio

from kafscale.errors import DamagedObject
from kafscale.formats.wal_entries import (
    FILE_HEADER_BYTES,
    TOPIC_NAME,
    FileHeader,
    WalFile,
    decode_file_header,
    find_proof,
    is_torn,
    is_zero,
    scan,
)
from kafscale.log.wal.disk import NO_SPACE_ERRORS, Disk
from kafscale.log.wal.journal import Handle


@attrs.frozen(kw_only=True)
class WalExtent:
    """A note: the numbers of the files that the log must have, and of the last one ever made.

    Entries up to `sequence`, and perhaps more, were acknowledged; those from `first_sequence` on are in these files.
    `lost` are settled missing files with a later one in the log: entries between the two may be missing.
    """

    files: Sequence[int] = ()
    last_number: int = 0
    first_sequence: int = 1
    sequence: int = 0
    lost: Sequence[int] = ()


class ExtentStore(Protocol):
    """Storage of the note. Both methods raise StorageFailed."""

    async def read(self) -> WalExtent | None:
        """Return the last note; None in a new data directory or one of an earlier version."""

    async def write(self, extent: WalExtent) -> None:
        """Keep a note durably. Raises StorageFull."""


def file_name(number: int) -> str:
    return f"wal-{number:020d}.log"


@attrs.define(eq=False, repr=False)
class Extents:
    """The note of one log: compared at a start, written whenever files come and go."""

    store: ExtentStore | None
    location: str  # of the disk, for messages
    missing: list[int] = attrs.field(factory=list, init=False)  # files that are missing or empty, not settled yet
    missing_count: int = attrs.field(default=0, init=False)  # entries that are known to be missing
    _known: WalExtent | None = attrs.field(default=None, init=False)
    _noted: WalExtent = attrs.field(factory=WalExtent, init=False)

    @property
    def has_lost(self) -> bool:
        """Tell whether acknowledged entries are known to be missing, unsettled."""
        return bool(self.missing or self.missing_count)

    async def load(self) -> None:
        if self.store is not None:
            self._known = await self.store.read()
        self._noted = self._known or WalExtent()

    async def compare_files(self, disk: Disk, names: Iterable[str]) -> None:
        """Load the note and compare it with the files of these names. Raises OSError, DamagedObject, StorageFailed."""
        await self.load()
        headers: dict[int, FileHeader | None] = {}
        for name in names:
            content = await disk.read(name, 0, FILE_HEADER_BYTES)
            headers[int(name[4:24])] = decode_file_header(f"{self.location}/{name}", content)
        self.compare(headers)

    def compare(self, headers: Mapping[int, FileHeader | None]) -> None:
        """Compare the note with the existing files, by number; the header is None if a file holds zeros."""
        known = self._known
        if known is None:
            return
        started = [number for number, header in headers.items() if header is not None and header.started]
        if max(started, default=0) > known.last_number or max(headers, default=0) > known.last_number + 1:
            logger.warning(
                "metadata.db knows files of the write-ahead log up to %s, and there is %s in %s: it is an older copy, "
                "and what was changed since is lost, unless an earlier version of KafScale has run in between",
                file_name(known.last_number),
                file_name(max(headers)),
                self.location,
            )
            self._known = None
            return
        self.missing = [number for number in known.files if headers.get(number) is None]

    @property
    def next_number(self) -> int:
        """The number of the next file, as far as the note tells."""
        return self._noted.last_number + 1

    def take_gap(self, before: int, after: int, entry_count: int) -> bool:
        """Count missing entries between two files of these numbers; False if no file is missing between them.

        A settled file is not counted again. It may also have come back.
        """
        if any(before <= number <= after for number in self._noted.lost):
            return True
        between = range(before + 1, after)
        self.missing = sorted({*self.missing, *between})
        self.missing_count += max(0, entry_count) if between else 0
        return bool(between)

    def count_ends(self, first: int | None, end: int) -> None:
        """Count entries that are missing before `first` (None without files) and behind `end`."""
        known = self._known
        if known is None or not known.files:
            return
        if first is None:
            self.missing_count += known.sequence - known.first_sequence + 1
            return
        if known.files[0] in self.missing:
            self.missing_count += max(0, first - known.first_sequence)
        self.missing_count += max(0, known.sequence - end)

    def report(self, last_name: str) -> None:
        """Tell the user what is missing. `last_name` is the last existing file."""
        if not self.has_lost:
            return
        logger.error(
            "the write-ahead log in %s is not whole: %s: %s acknowledged entries are lost, unless segments have them. "
            "Their offsets are not given out again: each partition goes on 2^31 offsets behind the last one that it "
            "has, in a later leader epoch",
            self.location,
            ", ".join(f"{file_name(number)} is missing or empty" for number in self.missing)
            or f"{last_name} has been cut off",
            f"at least {self.missing_count}" if self.missing_count else "an unknown number of",
        )

    async def note(self, files: Iterable[int], *, first_sequence: int, sequence: int, last_number: int) -> None:
        """Note which files there are, and the last durable entry. Raises StorageFailed, StorageFull."""
        if self.store is None:
            return
        noted = sorted({*files, *self.missing})
        known = self._known if self.has_lost else None
        extent = WalExtent(
            files=noted,
            last_number=max(last_number, self._noted.last_number),
            first_sequence=first_sequence if known is None else min(first_sequence, known.first_sequence),
            sequence=sequence if known is None else max(sequence, known.sequence),
            lost=[number for number in self._noted.lost if noted and number > noted[0]],
        )
        if extent != self._noted:
            await self.store.write(extent)
            self._noted = extent

    async def settle(self) -> None:
        """Remove missing files from the note, as partitions go on behind them. Raises StorageFailed, StorageFull."""
        files = [number for number in self._noted.files if number not in self.missing]
        lost = sorted({*self._noted.lost, *self.missing})
        self.missing, self.missing_count = [], 0
        self._known = None
        extent = attrs.evolve(self._noted, files=files, lost=[file for file in lost if files and file > files[0]])
        if self.store is not None:
            await self.store.write(extent)
        self._noted = extent


SLICE_BYTES = 256 * 1024  # between two checkpoints: about 0.1 ms of checksums and, with small entries, 1 ms of handling
NAME = re.compile(r"wal-(\d{20})\.log")
SPARE_PREFIX = "spare-"  # of a file that is not needed any more, and kept to be used again

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class FilesReplay:
    """One pass over the files of a disk. Afterwards: the files that hold entries, and the numbers to go on with."""

    disk: Disk
    handle: Handle
    on_progress: Callable[[int], None] | None = None
    extents: Extents = attrs.field(factory=lambda: Extents(None, ""))
    files: list[WalFile] = attrs.field(factory=list, init=False)
    topic_names: dict[bytes, str] = attrs.field(factory=dict, init=False)  # by id, as far as entries tell them
    next_number: int = attrs.field(default=1, init=False)
    next_sequence: int = attrs.field(default=1, init=False)
    _torn: str | None = attrs.field(default=None, init=False)  # where the last file's tail is torn
    _group_start: int = attrs.field(default=FILE_HEADER_BYTES, init=False)  # of the last group of the last file
    _entry_count: int = attrs.field(default=0, init=False)
    _last_sequence: int = attrs.field(default=0, init=False)  # of the last entry that was found

    async def run(self) -> None:
        """Replay all files. Raises DamagedObject, StorageFailed, OSError."""
        listed = await self.disk.list()
        sizes = {name: size for name, size in listed.items() if NAME.fullmatch(name)}
        await self.extents.compare_files(self.disk, sizes)
        unused = [name for name in listed if name.startswith(SPARE_PREFIX)]
        last_content = b""
        for name in sorted(sizes):
            self.next_number = int(name[4:24]) + 1
            content = await self.disk.read(name, 0, sizes[name])
            header = self._header(name, content)
            if header is None or not header.started:
                unused.append(name)
            else:
                await self._replay_file(WalFile(name, header, len(content), sealed=True), content)
                last_content = content
            if self.on_progress is not None:
                self.on_progress(self._entry_count)
        self.next_number = max(self.next_number, self.extents.next_number)
        self.extents.count_ends(self.files[0].header.sequence if self.files else None, self._last_sequence)
        self.extents.report(self.files[-1].name if self.files else "")
        await self.extents.note(
            [file.header.number for file in self.files],
            first_sequence=self.files[0].header.sequence if self.files else self.next_sequence,
            sequence=self.next_sequence - 1,
            last_number=self.next_number - 1,
        )
        if self.files:
            await self._finish_last(last_content)
        for name in unused:
            await self._delete(name)

    def _header(self, name: str, content: bytes) -> FileHeader | None:
        """Return the file's header, or None for a file that was never written to."""
        header = decode_file_header(self._path(name), content)
        if header is None:
            if not is_zero(content, FILE_HEADER_BYTES):
                raise DamagedObject(f"{self._path(name)}: the header at 0 is damaged, but entries follow it")
        elif not header.started:
            self.next_sequence = max(self.next_sequence, header.sequence)
        return header

    async def _replay_file(self, file: WalFile, content: bytes) -> None:
        missing_count = file.header.sequence - self.next_sequence
        if (
            self.files
            and missing_count
            and not self.extents.take_gap(self.files[-1].header.number, file.header.number, missing_count)
        ):
            if self._torn is not None:
                raise DamagedObject(f"{self._torn} is damaged: it had been acknowledged, {file.name} was written later")
            raise DamagedObject(
                f"{self._path(file.name)}: begins with entry {file.header.sequence} at {FILE_HEADER_BYTES}, "
                f"but entry {self.next_sequence} follows {self.files[-1].name}"
            )
        self.files.append(file)
        self.next_sequence = file.header.sequence
        self._group_start = FILE_HEADER_BYTES
        await self._replay_entries(file, content)
        self._torn = None
        if is_zero(content, file.end):
            return
        place = f"{self._path(file.name)}: entry {self.next_sequence} at {file.end}"
        proof = find_proof(content, file.end, sequence=self.next_sequence, salt=file.header.salt)
        if proof is not None:
            raise DamagedObject(f"{place} is damaged: it had been acknowledged when the entry at {proof} was written")
        if is_torn(content, file.end, sequence=self.next_sequence):
            self._torn = place

    async def _replay_entries(self, file: WalFile, content: bytes) -> None:
        slice_end = SLICE_BYTES
        durable_sequence = -1
        for entry in scan(memoryview(content), file.end, salt=file.header.salt):
            if entry.sequence != self.next_sequence:
                break
            if entry.durable_sequence != durable_sequence:
                durable_sequence = entry.durable_sequence
                self._group_start = file.end
            entry.file = file
            file.end = entry.end
            self._last_sequence = self.next_sequence
            self.next_sequence += 1
            self._entry_count += 1
            if entry.kind == TOPIC_NAME:
                self.topic_names[entry.topic_id] = bytes(entry.data).decode()
            else:
                file.pending_count += bool(self.handle(entry))
            if file.end > slice_end:
                slice_end = file.end + SLICE_BYTES
                await trio.lowlevel.checkpoint()

    async def _finish_last(self, content: bytes) -> None:
        """Cut what is behind the last entry, and make sure that replayed entries are on the disk.

        The last group may have been written but not synced, or its sync may have failed, which leaves pages that look
        right and are never written unless they change; so it is written again.
        """
        file = self.files[-1]
        if self._torn is not None:
            logger.warning(
                "%s is not whole and is cut off: either it was being written when the broker ended, and had no reply, "
                "or the disk has damaged it since, and it had one",
                self._torn,
            )
        await self.disk.truncate(file.name, file.end)
        file.size_bytes = file.end
        start = self._group_start if self._group_start > FILE_HEADER_BYTES else 0  # the first group brings the header
        await self.disk.write_and_sync(file.name, [memoryview(content)[start : file.end]], start)

    async def _delete(self, name: str) -> None:
        try:
            await self.disk.delete(name)
        except OSError as exc:
            if exc.errno not in NO_SPACE_ERRORS:
                raise
            logger.warning("no space to delete the unneeded file %s; a later start deletes it", self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.disk.location}/{name}"
