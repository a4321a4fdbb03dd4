"""The metadata store in one SQLite file: the embedded default.

The transactions of a call of `apply` share one disk sync, while each has its own `expect` check, revision and outcome.
An error of the disk fails everything after it: whether the last commit reached the disk is unknown, so the broker must
stop. A full disk is not a failure: SQLite has rolled the transaction back. An essential transaction is tried again at
once, with the room that was reserved for it. A commit that is cancelled before its thread has begun has no effect;
afterwards it is waited for (one disk sync), so it either returns and is durable or raises and did not happen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from kafscale.cluster.metadata.base import Change, ChangeLog, Entry, Listener, Outcome, Take, Transaction, revision_of
from kafscale.errors import PreconditionFailed, StartupError, StorageFailed, StorageFull
from kafscale.log.wal.disk import NO_SPACE_ERRORS

RESERVE_NAME = "reserve"
# A start takes 0.1 MB; a checkpoint of 200,000 offsets in a directory 4 MB; SQLite's own log up to 4 MB.
RESERVE_BYTES = 8 << 20
LEAST_BYTES = 64 << 10


@attrs.define(eq=False, repr=False)
class Reserve:
    """A file with room on the disk of the data directory for writes that must succeed on a full disk; blocks.

    A start writes a few pages of metadata and, if the bucket is a directory of the same disk, small objects; a deletion
    of records writes its plan first. Without a reserve nothing could make room on a full disk again.
    `is_short`: it was needed, and does not hold all its bytes again.
    """

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


T = TypeVar("T")

RESERVE_INTERVAL_SECONDS = 5.0  # between two looks whether the reserve can have its room again
SCHEMA_VERSION = 1
# Rows that are read, encoded and compressed at once: 0.5 ms, then a waiting thread gets the interpreter.
SLICE_COUNT = 500

# Keys are bytes: they compare as UTF-8 does, and a prefix has an upper bound whatever characters follow it.
SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (key BLOB PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revision (current INTEGER NOT NULL);
INSERT INTO revision SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM revision);
"""

# SQLite says SQLITE_FULL for ENOSPC alone. A quota, and the file of its shared memory, are errors of another name.
_PERHAPS_FULL: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMMAP,
        sqlite3.SQLITE_CANTOPEN,
    }
)

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class SqliteMetadataStore:
    """A MetadataStore in one file. Made by `open`."""

    _database: Database
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _applying: trio.Lock = attrs.field(factory=trio.Lock, init=False)  # until the outcomes are published
    _is_closed: bool = attrs.field(default=False, init=False)
    _failure: StorageFailed | None = attrs.field(default=None, init=False)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, path: Path, *, reserve: Reserve | None = None) -> AsyncIterator[SqliteMetadataStore]:
        """Open or create the database until the block ends; waiting transactions are committed first.

        `reserve` is room for essential changes, which is filled again some seconds after it was needed. Raises
        StartupError if the database can't be opened or was written by a later version.
        """
        database = await trio.to_thread.run_sync(Database.open, path, reserve)
        store = cls(database)
        async with trio.open_nursery() as nursery:
            if reserve is not None:
                nursery.start_soon(store._keep_reserve, reserve)
            try:
                yield store
            finally:
                with trio.CancelScope(shield=True):  # bounded: nothing new is taken
                    await store.aclose()
                nursery.cancel_scope.cancel()

    @property
    def revision(self) -> int:
        return self._database.published.revision

    def follow(self, listener: Listener) -> None:
        self._database.published.follow(listener)

    def unfollow(self, listener: Listener) -> None:
        self._database.published.unfollow(listener)

    async def get(self, key: str) -> Entry | None:
        return next(iter(await self._read(" WHERE key = ?", (key.encode(),))), None)

    async def list(self, prefix: str) -> Sequence[Entry]:
        entries = await self._read(*_prefix_range(prefix))
        async with self._applying:  # so that whatever was read is published
            return entries

    async def commit(self, transaction: Transaction) -> int:
        (outcome,) = await self.apply([transaction])
        return revision_of(outcome)

    async def apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        async with self._applying:
            outcomes = await self._in_thread(lambda: self._database.apply(transactions))
            self._database.published.publish(outcomes)
        return outcomes

    async def check(self, transactions: Sequence[Transaction]) -> Sequence[PreconditionFailed | None]:
        async with self._applying:  # so that whatever is applied is published
            return await self._in_thread(lambda: self._database.check(transactions))

    async def check_room(self) -> None:
        self._check_usable()
        await trio.lowlevel.checkpoint()
        self._database.check_room()

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[SqliteSnapshot]:
        async with self._applying:  # so that whatever it has is published
            snapshot = SqliteSnapshot(await self._in_thread(lambda: _begin_snapshot(self._database.path)))
        try:
            yield snapshot
        finally:
            snapshot.connection.close()

    async def aclose(self) -> None:
        """Commit what waits, then close the file. Everything after it raises StorageFailed."""
        async with self._applying:
            if not self._is_closed:
                self._is_closed = True
                await trio.to_thread.run_sync(self._database.close, limiter=self._limiter)

    async def _keep_reserve(self, reserve: Reserve) -> None:
        """Keep the reserve filled; if it was needed, not at once: a start on a full disk may need more of it."""
        is_due = not reserve.is_short
        while True:
            if is_due:
                await trio.to_thread.run_sync(self._database.fill_reserve, limiter=self._limiter)
            await trio.sleep(RESERVE_INTERVAL_SECONDS)
            is_due = reserve.is_short

    async def _read(self, where: str, parameters: tuple[bytes, ...]) -> Sequence[Entry]:
        query = f"SELECT key, value, revision FROM entry{where} ORDER BY key"
        rows = await self._in_thread(lambda: self._database.connection.execute(query, parameters).fetchall())
        return [Entry(key.decode(), value, revision) for key, value, revision in rows]

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Call it in a worker thread, one at a time. Raises StorageFailed: once, and for every later call."""
        self._check_usable()
        try:
            return await trio.to_thread.run_sync(function, limiter=self._limiter)
        except sqlite3.Error as exc:
            self._failure = StorageFailed(f"the metadata store failed: {exc}")
            raise self._failure from exc

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageFailed(str(self._failure))
        if self._is_closed:
            raise StorageFailed("the metadata store is closed")


@attrs.frozen(eq=False, repr=False)
class SqliteSnapshot:
    """The database as it was at one moment, by a connection of its own: writers need not wait for its reader."""

    connection: sqlite3.Connection

    async def read(self, keys: Sequence[str] | None, take: Take) -> None:
        try:
            await trio.to_thread.run_sync(_read_pairs, self.connection, keys, take)
        except sqlite3.Error as exc:
            raise StorageFailed(f"the metadata store can't be read: {exc}") from exc


def _begin_snapshot(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT current FROM revision").fetchone()  # the moment is that of the first read
    except BaseException:
        connection.close()
        raise
    return connection


@attrs.define(eq=False, repr=False)
class Database:
    """One database. Made by `open`; each method is called by one thread at a time."""

    path: Path
    connection: sqlite3.Connection
    reserve: Reserve | None
    published: ChangeLog = attrs.field(init=False)
    _is_full: bool = attrs.field(default=False, init=False)
    _lacks_reserve: bool = attrs.field(default=False, init=False)  # changes were refused to keep the rest of it

    def __attrs_post_init__(self) -> None:
        self.published = ChangeLog(self._revision())

    @classmethod
    def open(cls, path: Path, reserve: Reserve | None) -> Database:
        """Open or create it. Raises StartupError if that can't be, or a later version wrote it."""
        while True:
            try:
                return cls(path, _connect(path), reserve)
            except sqlite3.Error as exc:
                if reserve is None or not _is_for_want_of_room(exc, path) or not reserve.release():
                    raise StartupError(_advice(path, exc)) from exc

    def _revision(self) -> int:
        (revision,) = self.connection.execute("SELECT current FROM revision").fetchone()
        return int(revision)

    def check(self, transactions: Sequence[Transaction]) -> Sequence[PreconditionFailed | None]:
        return [self._refusal(transaction) for transaction in transactions]

    def apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        """Apply them as `LocalMetadataStore.apply`. All that was applied before is published, and nothing meanwhile.

        Raises sqlite3.Error: then the outcome is unknown.
        """
        try:
            outcomes = self._apply_all(transactions)
        except sqlite3.Error as exc:
            if not _is_for_want_of_room(exc, self.path):
                raise
            self._note_full()
            return self._apply_essential(transactions)
        if not self._lacks_reserve:
            self._note_room()
        return outcomes

    def _apply_essential(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = [StorageFull(self._no_room) for _ in transactions]
        places = [place for place, transaction in enumerate(transactions) if transaction.essential]
        while places and self.reserve is not None and self.reserve.release():
            try:
                applied = self._apply_all([transactions[place] for place in places])
            except sqlite3.Error as exc:
                if not _is_for_want_of_room(exc, self.path):
                    raise
                continue
            for place, outcome in zip(places, applied, strict=True):
                outcomes[place] = outcome
            break
        return outcomes

    def _apply_all(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        """Apply them in order in one SQLite transaction; return for each its change, or PreconditionFailed."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            revision = self._revision()
            outcomes: list[Outcome] = []
            for transaction in transactions:
                if (refusal := self._refusal(transaction, outcomes)) is not None:
                    outcomes.append(refusal)
                    continue
                change = self._apply(transaction, revision + 1) or Change(revision)
                revision = change.revision
                outcomes.append(change)
            self.connection.execute("UPDATE revision SET current = ?", (revision,))
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        return outcomes

    def _refusal(self, transaction: Transaction, earlier: Sequence[Outcome] = ()) -> PreconditionFailed | None:
        if transaction.planned_from is not None:
            outdated = self.published.refusal(transaction.planned_from, earlier)
            if outdated is not None:
                return outdated
        for key, expected in transaction.expect.items():
            query = "SELECT revision FROM entry WHERE key = ?"
            row = self.connection.execute(query, (key.encode(),)).fetchone()
            actual = row[0] if row else 0
            if actual != expected:
                return PreconditionFailed(f"{key} has revision {actual}, not {expected}")
        return None

    def _apply(self, transaction: Transaction, revision: int) -> Change | None:
        """Delete first, then put. Return the change, if any."""
        connection, changed_count = self.connection, 0
        deletes = list(transaction.deletes)
        for prefix in transaction.delete_prefixes:
            where, bounds = _prefix_range(prefix)
            found = connection.execute(f"DELETE FROM entry{where} RETURNING key", bounds).fetchall()
            deletes += [key.decode() for (key,) in found]
            changed_count += len(found)
        if transaction.deletes:
            rows = [(key.encode(),) for key in transaction.deletes]
            changed_count += connection.executemany("DELETE FROM entry WHERE key = ?", rows).rowcount
        if transaction.puts:
            entries = [(key.encode(), value, revision) for key, value in transaction.puts.items()]
            changed_count += connection.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?)", entries).rowcount
        if not changed_count:
            return None
        return Change(revision, transaction.puts, [key for key in deletes if key not in transaction.puts])

    def check_room(self) -> None:
        """Raise StorageFull while the reserve is in use."""
        if self.reserve is not None and self.reserve.is_short:
            self._lacks_reserve = True
            self._note_full()
            raise StorageFull(self._no_room)

    def _note_full(self) -> None:
        if not self._is_full:
            logger.error(
                "%s; changes of offsets, groups and topics are refused until then, and reads go on", self._no_room
            )
        self._is_full = True

    def _note_room(self) -> None:
        if self._is_full:
            logger.warning("the metadata in %s can be changed again", self.path)
        self._is_full = False

    @property
    def _no_room(self) -> str:
        return f"the disk of {self.path} is full, or a quota: free some space or raise it, nothing is lost"

    def close(self) -> None:
        """Close the database. Room that SQLite frees goes to the reserve, as the next start may need it."""
        self.connection.close()
        self.fill_reserve()

    def fill_reserve(self) -> None:
        if self.reserve is not None:
            with contextlib.suppress(OSError):  # an error of the disk shows at the next write
                self.reserve.fill()
                if self._lacks_reserve and not self.reserve.is_short:
                    self._lacks_reserve = False
                    self._note_room()


def _read_pairs(connection: sqlite3.Connection, keys: Sequence[str] | None, take: Take) -> None:
    """Call `take` with every entry, or those of `keys`, slice by slice."""
    if keys is None:
        cursor = connection.execute("SELECT key, value FROM entry ORDER BY key")
        while pairs := cursor.fetchmany(SLICE_COUNT):
            take(pairs, ())
        return
    for start in range(0, len(keys), SLICE_COUNT):
        wanted = [key.encode() for key in keys[start : start + SLICE_COUNT]]
        marks = ",".join("?" * len(wanted))
        pairs = connection.execute(f"SELECT key, value FROM entry WHERE key IN ({marks})", wanted).fetchall()
        found = {key for key, _ in pairs}
        take(pairs, [key for key in wanted if key not in found])


def _prefix_range(prefix: str) -> tuple[str, tuple[bytes, ...]]:
    """Return a WHERE clause, and its parameters, for the keys that start with `prefix`."""
    if not prefix:
        return "", ()
    low = prefix.encode()
    return " WHERE key >= ? AND key < ?", (low, low[:-1] + bytes([low[-1] + 1]))  # UTF-8 never ends in 0xFF


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # in WAL mode NORMAL would lose commits at a power cut
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StartupError(f"{path} was written by a later version of KafScale; start that version")
        if version < SCHEMA_VERSION:  # not at every start: on a full disk it has no room for tables that exist already
            connection.executescript(SCHEMA)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _advice(path: Path, exc: sqlite3.Error) -> str:
    """Return what to do about a database that can't be opened, which is never to delete it."""
    told = f"can't open the metadata store {path}: {exc}"
    if _is_for_want_of_room(exc, path):
        return f"{told}: the disk is full, or a quota: free some space or raise it, and start again; nothing is lost"
    if _code(exc) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return (
            f"{told}: the file is damaged. Keep it and those beside it, and put a backup in its place; without one, "
            "move it to another place: a start without it takes the metadata from the bucket, which may lack that of "
            "the last seconds before the broker ended"
        )
    return f"{told}: check that the disk works and that the broker may read and write this file"


def _code(exc: sqlite3.Error) -> int:
    code: int = getattr(exc, "sqlite_errorcode", 0)
    return code


def _is_for_want_of_room(exc: sqlite3.Error, path: Path) -> bool:
    code = _code(exc)
    if code & 0xFF == sqlite3.SQLITE_FULL:
        return True
    try:
        return code in _PERHAPS_FULL and not has_room(path.parent)
    except OSError:
        return False
