"""Reading the log back at start: every entry in order, the torn tail cut off, damage told from it.

Nothing but the disk is waited for: no chunk, no flush, no store. One file is in memory at a time, and is handled on the
event loop in slices.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

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
from kafscale.log.wal.extent import Extents
from kafscale.log.wal.journal import Handle, ReplayProgress

SLICE_BYTES = 256 * 1024  # between two checkpoints: about 0.1 ms of checksums and, with small entries, 1 ms of handling
NAME = re.compile(r"wal-(\d{20})\.log")
SPARE_PREFIX = "spare-"  # of a file that is not needed any more, and kept to be used again

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class Replay:
    """One pass over the files of a disk. After `run`: the files that hold entries, and the numbers to go on with."""

    disk: Disk
    handle: Handle
    on_progress: Callable[[ReplayProgress], None] | None = None
    extents: Extents = attrs.field(factory=lambda: Extents(None, ""))
    files: list[WalFile] = attrs.field(factory=list, init=False)
    topic_names: dict[bytes, str] = attrs.field(factory=dict, init=False)  # by id, as far as entries tell them
    next_number: int = attrs.field(default=1, init=False)
    next_sequence: int = attrs.field(default=1, init=False)
    _torn: str | None = attrs.field(default=None, init=False)  # where the last file's tail is torn
    _group_start: int = attrs.field(default=FILE_HEADER_BYTES, init=False)  # of the last group of the last file
    _entry_count: int = attrs.field(default=0, init=False)
    _last_sequence: int = attrs.field(default=0, init=False)  # of the last entry that was found
    _read_bytes: int = attrs.field(default=0, init=False)

    async def run(self) -> None:
        """Raises DamagedObject, StorageFailed, OSError."""
        listed = await self.disk.list()
        sizes = {name: size for name, size in listed.items() if NAME.fullmatch(name)}
        await self.extents.compare_files(self.disk, sizes)
        unused = [name for name in listed if name.startswith(SPARE_PREFIX)]
        last_content = b""
        for count, name in enumerate(sorted(sizes), start=1):
            self.next_number = int(name[4:24]) + 1
            content = await self.disk.read(name, 0, sizes[name])
            header = self._header(name, content)
            if header is None or not header.started:
                unused.append(name)
            else:
                await self._replay_file(WalFile(name, header, len(content), sealed=True), content)
                last_content = content
            self._report(count, len(sizes))
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
        """The file's header, or None for a file whose making was interrupted: nothing was ever written to it."""
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
        self._read_bytes += file.end
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
        """Cut what is behind the last entry, and make sure that what has been replayed is on the disk.

        The last group may have been written but never synced, or its sync may have failed, which leaves pages that
        look right and are never written again unless they are changed; so it is written once more.
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

    def _report(self, file_count: int, files_count: int) -> None:
        if self.on_progress is not None:
            self.on_progress(ReplayProgress(file_count, files_count, self._entry_count, self._read_bytes))

    def _path(self, name: str) -> str:
        return f"{self.disk.location}/{name}"
