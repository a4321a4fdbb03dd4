"""A file that reserves room on the disk of the data directory, for writes that must succeed on a full disk. Blocking.

A start writes a few pages of metadata and, if the bucket is a directory of the same disk, small objects; a deletion of
records writes its plan first. So without a reserve nothing could make room on a full disk again. CockroachDB has the
same as its "emergency ballast".
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from kafscale.log.wal.disk import NO_SPACE_ERRORS

RESERVE_NAME = "reserve"
# A start takes 0.1 MB; a checkpoint of 200,000 offsets in a directory 4 MB; SQLite's own log up to 4 MB.
RESERVE_BYTES = 8 << 20
LEAST_BYTES = 64 << 10


@attrs.define(eq=False, repr=False)
class Reserve:
    """The file. `is_short`: it was needed, and does not hold all its bytes again."""

    path: Path
    size_bytes: int = RESERVE_BYTES
    is_short: bool = attrs.field(default=False, init=False)

    def fill(self) -> None:
        """Take the room, or as much of it as there is."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            held_bytes = os.fstat(descriptor).st_size
            wanted_bytes = self.size_bytes
            while held_bytes < wanted_bytes >= LEAST_BYTES:
                if _allocate(descriptor, held_bytes, wanted_bytes):
                    held_bytes = wanted_bytes
                wanted_bytes //= 2
            self.is_short = held_bytes < self.size_bytes
        finally:
            os.close(descriptor)

    def release(self) -> bool:
        """Give up half of the reserve, so that something is left if others take it; False if it is empty."""
        self.is_short = True
        try:
            held_bytes = self.path.stat().st_size
            os.truncate(self.path, held_bytes // 2 if held_bytes >= 2 * LEAST_BYTES else 0)
        except FileNotFoundError:
            return False
        return held_bytes > 0

    def release_if_needed(self) -> None:
        """Give up some of the reserve if the disk has less room than `size_bytes`. Call it before a start."""
        found = os.statvfs(self.path.parent)
        if found.f_bavail * found.f_frsize < self.size_bytes:
            self.release()


def has_room(directory: Path) -> bool:
    """Tell whether a small file could be written. Raises OSError if it can't for another reason than a full disk."""
    path = directory / f"{RESERVE_NAME}-probe"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            return _allocate(descriptor, 0, LEAST_BYTES)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)
    except OSError as exc:
        if exc.errno in NO_SPACE_ERRORS:
            return False
        raise


def _allocate(descriptor: int, held_bytes: int, wanted_bytes: int) -> bool:
    try:
        os.posix_fallocate(descriptor, 0, wanted_bytes)
    except OSError as exc:
        if exc.errno not in NO_SPACE_ERRORS:
            raise
        os.ftruncate(descriptor, held_bytes)
        return False
    return True
