"""A note in the metadata of the files that the local log must have, by which a start finds lost or cut files.

    a file is made         noted before anything is written to it
    files are deleted      left out of the note before
    the broker stops       noted is what the next start needs: no file if all is in the bucket
    files are missing      noted until the partitions go on behind what these may have held (`settle`)

A note costs a commit of the metadata for each file, and none for an entry. So one thing can't be found: that the last
file was cut between two of its entries after the broker was killed. That looks like a write that was cut off.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import attrs

from kafscale.formats.wal_entries import FILE_HEADER_BYTES, FileHeader, decode_file_header
from kafscale.log.wal.disk import Disk

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class WalExtent:
    """A note: the numbers of the files that the log must have, and of the last one that was ever made.

    Entries up to `sequence`, and perhaps more, were acknowledged; those from `first_sequence` on are in these files.
    `lost` are files whose loss is settled, with a later one in the log: entries between the two may be missing.
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
        ...

    async def write(self, extent: WalExtent) -> None:
        """Keep a note durably. Raises StorageFull where there is no room."""
        ...


def file_name(number: int) -> str:
    """Return the name of a file of the log."""
    return f"wal-{number:020d}.log"


@attrs.define(eq=False, repr=False)
class Extents:
    """The note of one log: `load` and `compare` it at a start, `note` it whenever files come and go."""

    store: ExtentStore | None
    location: str  # of the disk, for messages
    missing: list[int] = attrs.field(factory=list, init=False)  # files that are missing or empty, not settled yet
    missing_count: int = attrs.field(default=0, init=False)  # entries that are known to be missing
    _known: WalExtent | None = attrs.field(default=None, init=False)
    _noted: WalExtent = attrs.field(factory=WalExtent, init=False)

    @property
    def has_lost(self) -> bool:
        """Tell whether acknowledged entries are missing, so far as is known, and that is not settled."""
        return bool(self.missing or self.missing_count)

    async def load(self) -> None:
        """Read the last note. Raises StorageFailed."""
        if self.store is not None:
            self._known = await self.store.read()
        self._noted = self._known or WalExtent()

    async def compare_files(self, disk: Disk, names: Iterable[str]) -> None:
        """Load the note and hold it against files of these names, as `compare` does. Raises OSError, DamagedObject."""
        await self.load()
        headers: dict[int, FileHeader | None] = {}
        for name in names:
            content = await disk.read(name, 0, FILE_HEADER_BYTES)
            headers[int(name[4:24])] = decode_file_header(f"{self.location}/{name}", content)
        self.compare(headers)

    def compare(self, headers: Mapping[int, FileHeader | None]) -> None:
        """Hold the note against the files that there are, by number; None is the header of one that holds zeros."""
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
        """The number of the next file, so far as the note tells."""
        return self._noted.last_number + 1

    def take_gap(self, before: int, after: int, entry_count: int) -> bool:
        """Count entries that are missing between two files of these numbers; False if there is no file between them.

        One whose loss was settled is not counted again. It may also have come back.
        """
        if any(before <= number <= after for number in self._noted.lost):
            return True
        between = range(before + 1, after)
        self.missing = sorted({*self.missing, *between})
        self.missing_count += max(0, entry_count) if between else 0
        return bool(between)

    def count_ends(self, first: int | None, end: int) -> None:
        """Count entries that are missing before `first`, None if there is no file, and behind `end`."""
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
        """Tell the user what is missing, if anything is. `last_name` is the last file that there is."""
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
        """Note which files there are, and up to which entry all is durable. Raises StorageFailed, StorageFull."""
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
        """Leave missing files out of the note, as partitions go on behind them. Raises StorageFailed, StorageFull."""
        files = [number for number in self._noted.files if number not in self.missing]
        lost = sorted({*self._noted.lost, *self.missing})
        self.missing, self.missing_count = [], 0
        self._known = None
        extent = attrs.evolve(self._noted, files=files, lost=[file for file in lost if files and file > files[0]])
        if self.store is not None:
            await self.store.write(extent)
        self._noted = extent
