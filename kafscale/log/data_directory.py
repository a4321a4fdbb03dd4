"""The data directory belongs to one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from kafscale.errors import StartupError

LOCK_NAME = "lock"


@contextlib.contextmanager
def lock_data_directory(path: Path) -> Iterator[None]:
    """Make the directory if need be, and hold it for this process.

    The lock is the kernel's (flock), so it ends with the process however that ends; the file's content only names the
    holder. Raises StartupError with one line when another process has it or it can't be written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise StartupError(
            f"cannot use the data directory {path}: {exc.strerror}; make it writable or choose another (--data-dir)"
        ) from exc
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError as exc:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise StartupError(
            f"the data directory {path} is in use by process {holder}; stop that broker or choose another (--data-dir)"
        ) from exc
    except OSError as exc:
        raise StartupError(
            f"cannot write to the data directory {path}: {exc.strerror}; free some space or choose another (--data-dir)"
        ) from exc
