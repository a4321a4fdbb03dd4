"""Lock the data directory to one process at a time, and keep its files private to the user."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kafscale.errors import StartupError
from kafscale.log.wal.disk import NO_SPACE_ERRORS

logger = logging.getLogger(__name__)

LOCK_NAME = "lock"
METADATA_NAME = "metadata.db"
WAL_NAME = "wal"
HOLDER_BYTES = 20  # always as many, so that a full disk has room for them once it had
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_files_private() -> None:
    """Create files with mode 0600 and directories with 0700 from now on, unless a default ACL says otherwise."""
    os.umask(os.umask(OTHERS) | OTHERS)


def make_private(directory: Path) -> None:
    """Take others' rights to metadata and write-ahead log away, which earlier versions granted."""
    changed_count = 0
    for path in (*directory.glob("metadata.db*"), directory / "wal", *directory.glob("wal/*")):
        with contextlib.suppress(OSError):  # not there, or not ours: it was usable before and stays so
            mode = path.stat().st_mode
            if mode & OTHERS:
                path.chmod(stat.S_IMODE(mode) & ~OTHERS)
                changed_count += 1
    if changed_count:
        logger.info("%d files in %s could be read by other users, and can't any more", changed_count, directory)


def warn_of_lost_metadata(directory: Path) -> None:
    """Log an error if a data directory has a write-ahead log and no metadata, which `serve` never leaves behind."""
    path = directory / METADATA_NAME
    if not path.exists() and any(directory.glob(f"{WAL_NAME}/wal-*.log")):
        logger.error(
            "%s is missing, though %s has a write-ahead log: this start takes the metadata from the newest checkpoint "
            "in the bucket, if there is one, and what was changed after that is lost. To have it back, stop the broker "
            "and put the file back from a copy",
            path,
            directory,
        )


@contextlib.contextmanager
def lock_data_directory(path: Path) -> Iterator[None]:
    """Make the directory if need be, and lock it for this process.

    The kernel's lock (flock) ends with the process; the file's content only names the holder. Raises StartupError when
    another process has it, or it is not writable.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise StartupError(f"cannot use the data directory {path}: {exc.strerror}; {_advice(path, exc)}") from exc
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _advice(path: Path, exc: OSError) -> str:
    if exc.errno in NO_SPACE_ERRORS:
        return "free some space, nothing is lost"
    with suppress(OSError):
        if any(path.iterdir()):
            return "make it writable: what it holds is in no other place"
    return "make it writable or choose another (--data-dir)"


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):  # on a full disk it says nothing, or who was before: it is for people
            os.pwrite(descriptor, b"%-*d\n" % (HOLDER_BYTES - 1, os.getpid()), 0)
    except BlockingIOError as exc:
        holder = os.pread(descriptor, HOLDER_BYTES, 0).decode("ascii", "replace").strip() or "unknown"
        raise StartupError(
            f"the data directory {path} is in use by process {holder}; stop that broker or choose another (--data-dir)"
        ) from exc
    except OSError as exc:
        raise StartupError(
            f"cannot lock the data directory {path}: {exc.strerror}; is it on a file system that has locks?"
        ) from exc
