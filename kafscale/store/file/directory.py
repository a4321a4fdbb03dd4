"""A directory as a bucket: the blocking half of the file store.

An object is a file below the root, at its key. A write goes to a synced temporary file, which one step publishes:
`rename` for put, `link` for put-if-absent, compare and rename for put-if-match. So an object is there wholly or not at
all, and the conditions hold between processes. The bucket's own files are in `.kafscale` below the root, a name that no
key may start with.

Publishing and deleting hold a `flock`: put-if-match and deleting (which removes empty directories) exclusively, the
others together. Data is synced before and directories are synced after, so the lock is held for microseconds.

The ETag is inode, time and size. The writer sets the time in nanoseconds, as an inode can be reused within the kernel's
tick. Unlike S3, a key can't be an object and the directory of another one. Imports no trio: Spark's planning uses it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import (
    NoPermission,
    NotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from kafscale.store.base import ObjectInfo, ObjectPart
from kafscale.store.file.slices import SliceWriter
from kafscale.store.paths import check_key

CONTROL_NAME = ".kafscale"

STAGING_STALE_SECONDS = 600  # since the last slice; a writer that lives writes one in far less

_ABSENT_ERRORS = (FileNotFoundError, NotADirectoryError)
_WOULD_WAIT_ERRORS = (errno.EAGAIN, errno.EOPNOTSUPP)  # the latter where a file system can't tell


@attrs.define(eq=False, repr=False)
class Directory:
    """An opened bucket directory. Methods block, may be called in any thread, and raise only StoreErrors."""

    root: bytes
    _durable: set[bytes] = attrs.field(factory=set, init=False)  # directories whose own entry is known to be synced
    _writer: SliceWriter = attrs.field(factory=SliceWriter, init=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Directory:
        """Create the directory if it is missing, and remove temporary files of dead writers."""
        root = os.path.abspath(os.fsencode(path))
        with _store_errors(os.fsdecode(root)):
            os.makedirs(_staging(root), exist_ok=True)
            for directory in (root, os.path.dirname(root)):
                _sync_directory(directory)
            _remove_stale(_staging(root), before_seconds=time.time() - STAGING_STALE_SECONDS)
        return cls(root)

    def read(self, key: str) -> ObjectPart:
        with self._opened(key) as (fd, status):
            return ObjectPart(_read_exactly(fd, 0, status.st_size), status.st_size, _etag(status))

    def read_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        with self._opened(key) as (fd, status):
            length_bytes = _length_within(key, status, start, length_bytes)
            return ObjectPart(_read_exactly(fd, start, length_bytes), status.st_size, _etag(status))

    def read_range_nowait(self, key: str, start: int, length_bytes: int) -> ObjectPart | None:
        """Read a range if all of it is in the page cache; else return None."""
        with self._opened(key) as (fd, status):
            data = bytearray(_length_within(key, status, start, length_bytes))
            try:
                if os.preadv(fd, [data], start, os.RWF_NOWAIT) < len(data):
                    return None
            except OSError as exc:
                if exc.errno in _WOULD_WAIT_ERRORS:
                    return None
                raise
            return ObjectPart(data, status.st_size, _etag(status))

    def read_tail(self, key: str, length_bytes: int) -> ObjectPart:
        with self._opened(key) as (fd, status):
            length_bytes = min(length_bytes, status.st_size)
            data = _read_exactly(fd, status.st_size - length_bytes, length_bytes)
            return ObjectPart(data, status.st_size, _etag(status))

    def open_object(self, key: str) -> tuple[int, int]:
        """Return a descriptor of the object's file, which the caller must close, and its size."""
        with self._opened(key) as (fd, status):
            return os.dup(fd), status.st_size

    def info(self, key: str) -> ObjectInfo:
        with _store_errors(key):
            found = _object_info(self._path(key), key)
        if found is None:
            raise NotFound(key)
        return found

    def write(self, key: str, parts: Sequence[Buffer], *, between_slices: Callable[[], None]) -> str:
        """Write an object and return its ETag. `between_slices` may raise to give up without effect."""
        return self._write(key, parts, between_slices, publish=os.rename)

    def write_if_absent(self, key: str, parts: Sequence[Buffer], *, between_slices: Callable[[], None]) -> str:
        def publish(staged: bytes, path: bytes) -> None:
            try:
                os.link(staged, path)
            except FileExistsError:
                if os.path.isdir(path):
                    raise
                raise PreconditionFailed(f"{key} exists") from None

        return self._write(key, parts, between_slices, publish=publish)

    def write_if_match(
        self, key: str, parts: Sequence[Buffer], etag: str, *, between_slices: Callable[[], None]
    ) -> str:
        def publish(staged: bytes, path: bytes) -> None:
            current = _object_info(path, key)
            if current is None or current.etag != etag:
                raise PreconditionFailed(f"{key} has ETag {current and current.etag}, not {etag}")
            os.rename(staged, path)

        return self._write(key, parts, between_slices, publish=publish, lock=fcntl.LOCK_EX)

    def delete(self, keys: Sequence[str]) -> None:
        changed = set()
        for key in keys:
            with _store_errors(key):
                directory = self._delete(self._path(key))
            if directory is not None:
                changed.add(directory)
        with _store_errors(self.root):
            for directory in changed:
                _sync_directory(directory)

    def walk(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with `prefix` and sort after `start_after`, in order of the keys' bytes.

        It reads a directory only if that can hold such a key.
        """
        above, slash, _ = prefix.encode().rpartition(b"/")
        with _store_errors(prefix):
            yield from self._walk(above + slash, prefix.encode(), start_after.encode())

    def _path(self, key: str) -> bytes:
        check_key(key)
        path = key.encode()
        if path.partition(b"/")[0] == CONTROL_NAME.encode():
            raise ValueError(f"keys that start with {CONTROL_NAME}/ are the file store's own: {key!r}")
        return os.path.join(self.root, path)

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, os.stat_result]]:
        path = self._path(key)
        with _store_errors(key):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except _ABSENT_ERRORS:
                raise NotFound(key) from None
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise NotFound(key)
                yield fd, status
            finally:
                os.close(fd)

    def _write(
        self,
        key: str,
        parts: Sequence[Buffer],
        between_slices: Callable[[], None],
        *,
        publish: Callable[[bytes, bytes], None],
        lock: int = fcntl.LOCK_SH,
    ) -> str:
        path = self._path(key)
        staged = os.path.join(_staging(self.root), token_hex(16).encode())
        refusal: PreconditionFailed | None = None
        with _store_errors(key):
            try:
                etag = self._stage(staged, parts, between_slices)
                with self._locked(lock):
                    unsynced = self._make_directories(path)
                    try:
                        publish(staged, path)
                    except PreconditionFailed as exc:
                        refusal = exc
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(staged)
            # Also if it is refused: what is there may be our own, from an attempt whose syncs failed, and who reads it
            # back to find out relies on it.
            for directory in unsynced:
                _sync_directory(directory)
        self._durable.update(unsynced)
        if refusal is not None:
            raise refusal
        return etag

    def _stage(self, staged: bytes, parts: Sequence[Buffer], between_slices: Callable[[], None]) -> str:
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            self._writer.write(fd, parts, between_slices)
            now_ns = time.time_ns()
            os.utime(fd, ns=(now_ns, now_ns))
            os.fsync(fd)
            return _etag(os.fstat(fd))
        finally:
            os.close(fd)

    @contextmanager
    def _locked(self, operation: int) -> Iterator[None]:
        """Hold the bucket's lock, shared (LOCK_SH) or exclusive (LOCK_EX), against threads and processes."""
        fd = os.open(
            os.path.join(self.root, CONTROL_NAME.encode(), b"lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
        try:
            fcntl.flock(fd, operation)
            yield
        finally:
            os.close(fd)

    def _make_directories(self, path: bytes) -> list[bytes]:
        """Make the directories above `path`. Returns those to sync once the object is in place."""
        parent = os.path.dirname(path)
        if not os.path.isdir(parent):
            self._forget(parent)
            os.makedirs(parent, exist_ok=True)
        unsynced = [parent]
        # Also those that another writer made: it may not have synced them yet.
        while parent not in self._durable and parent != self.root:
            parent = os.path.dirname(parent)
            unsynced.append(parent)
        return unsynced

    def _forget(self, directory: bytes) -> None:
        """Forget a directory that was removed when it was empty, and those above it."""
        while directory != self.root:
            self._durable.discard(directory)
            directory = os.path.dirname(directory)

    def _delete(self, path: bytes) -> bytes | None:
        with self._locked(fcntl.LOCK_EX):
            try:
                os.unlink(path)
            except (*_ABSENT_ERRORS, IsADirectoryError):
                return None
            directory = os.path.dirname(path)
            with suppress(OSError):  # not empty
                while directory != self.root:
                    os.rmdir(directory)
                    self._durable.discard(directory)
                    directory = os.path.dirname(directory)
        return directory

    def _walk(self, directory: bytes, prefix: bytes, start_after: bytes) -> Iterator[ObjectInfo]:
        """Walk `directory`, which is relative to the root and ends with a slash, or is empty for the root."""
        for name in _names(self.root, directory):
            key = directory + name
            if name.endswith(b"/"):
                may_match = key.startswith(prefix) or prefix.startswith(key)
                if may_match and (key > start_after or start_after.startswith(key)):
                    yield from self._walk(key, prefix, start_after)
            elif key.startswith(prefix) and key > start_after:
                with suppress(UnicodeDecodeError):  # no object of ours
                    info = _object_info(os.path.join(self.root, key), key.decode())
                    if info is not None:
                        yield info


def _staging(root: bytes) -> bytes:
    return os.path.join(root, CONTROL_NAME.encode(), b"staging")


def _remove_stale(staging: bytes, *, before_seconds: float) -> None:
    with os.scandir(staging) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another process cleans up too
                if entry.stat(follow_symlinks=False).st_mtime < before_seconds:
                    os.unlink(entry.path)


def _names(root: bytes, directory: bytes) -> list[bytes]:
    """Return the names in the order of the keys below them: a subdirectory's ends with a slash."""
    try:
        with os.scandir(os.path.join(root, directory)) as entries:
            names = [entry.name + b"/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in entries]
    except _ABSENT_ERRORS:
        return []
    return sorted(name for name in names if directory or name != CONTROL_NAME.encode() + b"/")


def _object_info(path: bytes, key: str) -> ObjectInfo | None:
    try:
        status = os.lstat(path)
    except _ABSENT_ERRORS:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return ObjectInfo(key, status.st_size, _etag(status), status.st_mtime_ns // 1_000_000)


def _etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _length_within(key: str, status: os.stat_result, start: int, length_bytes: int) -> int:
    if start >= status.st_size:
        raise RangeNotSatisfiable(f"{key}: byte {start} of {status.st_size}")
    return min(length_bytes, status.st_size - start)


def _read_exactly(fd: int, start: int, length_bytes: int) -> bytes:
    data = os.pread(fd, length_bytes, start)
    if len(data) == length_bytes:
        return data
    pieces = [data]  # Linux reads at most 2 GiB at once
    while pieces[-1]:
        start += len(pieces[-1])
        length_bytes -= len(pieces[-1])
        pieces.append(os.pread(fd, length_bytes, start))
    if length_bytes:
        raise StoreUnavailable(f"a file of the store became {length_bytes} bytes shorter while it was read")
    return b"".join(pieces)


def _sync_directory(directory: bytes) -> None:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # removed again already, and with it what was to be synced
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _store_errors(what: str | bytes) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise _store_error(os.fsdecode(what), exc) from exc


def _store_error(what: str, exc: OSError) -> StoreError:
    match exc.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return NoPermission(f"{what}: the file store may not do this: {exc.strerror}")
        case errno.ENOSPC | errno.EDQUOT:
            return StoreFull(f"{what}: the file store's disk is full: {exc.strerror}")
        case errno.EISDIR | errno.ENOTDIR | errno.EEXIST | errno.ENOTEMPTY | errno.ELOOP | errno.ENAMETOOLONG:
            return StoreError(f"{what}: the file store can't hold an object of this name: {exc.strerror}")
    return StoreUnavailable(f"{what}: the file store's disk failed: {exc.strerror}")
