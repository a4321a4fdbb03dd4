"""The metadata store in one SQLite file: the embedded default.

One connection, used by one worker thread at a time. The transactions of a call of `apply` share one disk sync, while
each keeps its own `expect` check, revision and outcome; which ones come together is decided by `group_commit`. An error
of the disk fails everything after it: whether the last commit reached the disk is unknown, so the broker must stop. A
full disk refuses changes that it has no room for.

A commit that is cancelled before its thread has begun has no effect; afterwards it is waited for (milliseconds, one
disk sync), so a commit either returns and is durable or raises and did not happen.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from kafscale.cluster.metadata.base import Entry, Outcome, Take, Transaction
from kafscale.cluster.metadata.changes import ChangeLog, ChangeReader, revision_of
from kafscale.cluster.metadata.database import Database, Row, prefix_range, read_pairs
from kafscale.cluster.metadata.reserve import Reserve
from kafscale.errors import PreconditionFailed, StorageFailed

T = TypeVar("T")

RESERVE_INTERVAL_SECONDS = 5.0  # between two looks whether the reserve can have its room again


@attrs.frozen(kw_only=True)
class Statistics:
    """Counts of a metadata store since it was opened."""

    commit_count: int
    sync_count: int


@attrs.define(eq=False, repr=False)
class SqliteMetadataStore:
    """A MetadataStore in one file. Made by `open`."""

    _database: Database
    _published: ChangeLog
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _applying: trio.Lock = attrs.field(factory=trio.Lock, init=False)  # until what was applied is published
    _is_closed: bool = attrs.field(default=False, init=False)
    _failure: StorageFailed | None = attrs.field(default=None, init=False)
    _commit_count: int = attrs.field(default=0, init=False)
    _sync_count: int = attrs.field(default=0, init=False)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, path: Path, *, reserve: Reserve | None = None) -> AsyncIterator[SqliteMetadataStore]:
        """Open or create the database until the block ends; what waits then is committed first.

        `reserve` is room for essential changes, which is filled again some seconds after it was needed. Raises
        StartupError if the database can't be opened or was written by a later version.
        """
        database = await trio.to_thread.run_sync(Database.open, path, reserve)
        store = cls(database, ChangeLog(database.revision()))
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
        return self._published.revision

    def changes(self, after: int, notify: Callable[[], None] | None = None) -> ChangeReader:
        return self._published.read(after, notify)

    async def get(self, key: str) -> Entry | None:
        rows = await self._read("SELECT key, value, revision FROM entry WHERE key = ?", (key.encode(),))
        return _entry(rows[0]) if rows else None

    async def list(self, prefix: str) -> Sequence[Entry]:
        where, bounds = prefix_range(prefix)
        rows = await self._read(f"SELECT key, value, revision FROM entry{where} ORDER BY key", bounds)
        async with self._applying:  # so that whatever was read is published
            pass
        return [_entry(row) for row in rows]

    async def commit(self, transaction: Transaction) -> int:
        (outcome,) = await self.apply([transaction])
        return revision_of(outcome)

    async def apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        self._check_usable()
        async with self._applying:
            outcomes = await self._in_thread(lambda: self._database.apply(transactions, self._published))
            self._commit_count += len(transactions)
            self._sync_count += 1
            self._published.publish(outcomes)
        return outcomes

    async def check(self, transactions: Sequence[Transaction]) -> Sequence[PreconditionFailed | None]:
        self._check_usable()
        async with self._applying:  # so that whatever is applied is published
            return await self._in_thread(lambda: self._database.check(transactions, self._published))

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

    def statistics(self) -> Statistics:
        return Statistics(commit_count=self._commit_count, sync_count=self._sync_count)

    async def _keep_reserve(self, reserve: Reserve) -> None:
        """Keep the reserve filled.

        If it was needed, not at once: what a start on a full disk was given is for all of it.
        """
        is_due = not reserve.is_short
        while True:
            if is_due:
                await trio.to_thread.run_sync(self._database.fill_reserve, limiter=self._limiter)
            await trio.sleep(RESERVE_INTERVAL_SECONDS)
            is_due = reserve.is_short

    async def _read(self, query: str, parameters: tuple[bytes, ...]) -> Sequence[Row]:
        self._check_usable()
        return await self._in_thread(lambda: self._database.read(query, parameters))

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Call it in a worker thread, one at a time. Raises StorageFailed: once, and for every later call."""
        if self._failure is not None:
            raise self._failure
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
            await trio.to_thread.run_sync(read_pairs, self.connection, keys, take)
        except sqlite3.Error as exc:
            raise StorageFailed(f"the metadata store can't be read: {exc}") from exc


def _begin_snapshot(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN")
        connection.execute(
            "SELECT current FROM revision"
        ).fetchone()  # only the first read decides of what moment it is
    except BaseException:
        connection.close()
        raise
    return connection


def _entry(row: Row) -> Entry:
    key, value, revision = row
    return Entry(key.decode(), value, revision)
