"""The embedded metadata store: one SQLite database in the data directory.

One connection, used by one worker thread at a time. A writer task takes every transaction that waits and applies them
in order inside one SQLite transaction, so that those that wait together share one disk sync while each keeps its own
`expect` check, revision and result. An error of the disk fails everything that waits and everything after it: whether
the last commit reached the disk is unknown, so the broker must stop.

A commit that is cancelled before the writer took it has no effect; one that the writer has taken is waited for
(milliseconds, one disk sync), so a commit either returns and is durable or raises and did not happen.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from kafscale.cluster.metadata.base import Entry, Transaction
from kafscale.cluster.metadata.ticket import Ticket
from kafscale.errors import PreconditionFailed, StartupError, StorageFailed

T = TypeVar("T")

# Transactions that share a disk sync, so that one sync stays short. etcd's MaxTxnOps is 128 operations.
BATCH_MAX_COUNT = 1000
SCHEMA_VERSION = 1

# Keys are bytes: they compare as UTF-8 does, and a prefix has an upper bound whatever characters follow it.
SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (key BLOB PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revision (current INTEGER NOT NULL);
INSERT INTO revision SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM revision);
"""


@attrs.frozen(kw_only=True)
class Statistics:
    """What a metadata store has done since it was opened, and how many transactions wait."""

    commit_count: int
    sync_count: int
    waiting_count: int


@attrs.define(eq=False)
class SqliteMetadataStore:
    """A MetadataStore in one file. Made by `open`."""

    _connection: sqlite3.Connection
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _queue: deque[Ticket] = attrs.field(factory=deque, init=False)
    _queued: trio.Event = attrs.field(factory=trio.Event, init=False)
    _closing: bool = attrs.field(default=False, init=False)
    _closed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _failure: StorageFailed | None = attrs.field(default=None, init=False)
    _commit_count: int = attrs.field(default=0, init=False)
    _sync_count: int = attrs.field(default=0, init=False)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator[SqliteMetadataStore]:
        """Open or create the database and run its writer until the block ends; what waits then is committed first.

        Raises StartupError if it can't be opened or was written by a later version.
        """
        store = cls(await trio.to_thread.run_sync(_connect, path))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store._write)
            try:
                yield store
            finally:
                with trio.CancelScope(shield=True):  # bounded: the queue is finite and takes nothing new
                    await store.aclose()

    async def get(self, key: str) -> Entry | None:
        rows = await self._read("SELECT key, value, revision FROM entry WHERE key = ?", (key.encode(),))
        return _entry(rows[0]) if rows else None

    async def list(self, prefix: str) -> Sequence[Entry]:
        where, bounds = _range(prefix)
        rows = await self._read(f"SELECT key, value, revision FROM entry{where} ORDER BY key", bounds)
        return [_entry(row) for row in rows]

    async def commit(self, transaction: Transaction) -> int:
        self._check_usable()
        await trio.lowlevel.checkpoint_if_cancelled()
        ticket = Ticket(transaction)
        self._queue.append(ticket)
        self._queued.set()
        try:
            await ticket.done.wait()
        except trio.Cancelled:
            if ticket in self._queue:
                self._queue.remove(ticket)
                raise
            with trio.CancelScope(shield=True):  # bounded by one disk sync
                await ticket.done.wait()
        return ticket.revision()

    async def aclose(self) -> None:
        """Commit what waits, then close the file. Everything after it raises StorageFailed."""
        self._closing = True
        self._queued.set()
        await self._closed.wait()

    def statistics(self) -> Statistics:
        return Statistics(commit_count=self._commit_count, sync_count=self._sync_count, waiting_count=len(self._queue))

    async def _write(self) -> None:
        """The writer task. Ends by `aclose` only, so that what was queued before a cancellation is still committed."""
        with trio.CancelScope(shield=True):
            try:
                while self._queue or not self._closing:
                    await self._queued.wait()
                    self._queued = trio.Event()
                    while self._queue:
                        count = min(len(self._queue), BATCH_MAX_COUNT)
                        await self._write_batch([self._queue.popleft() for _ in range(count)])
            finally:
                self._closing = True
                while self._queue:
                    self._queue.popleft().settle(StorageFailed("the metadata store's writer has ended"))
                await trio.to_thread.run_sync(self._connection.close, limiter=self._limiter)
                self._closed.set()

    async def _write_batch(self, batch: Sequence[Ticket]) -> None:
        transactions = [ticket.transaction for ticket in batch]
        outcomes: Sequence[int | Exception] = [StorageFailed("the metadata writer failed")] * len(batch)
        try:
            outcomes = await self._in_thread(lambda: _apply_all(self._connection, transactions))
            self._commit_count += len(batch)
            self._sync_count += 1
        except StorageFailed as exc:
            outcomes = [StorageFailed(str(exc)) for _ in batch]
        finally:  # also after a bug, which ends the broker: nobody waits for ever
            for ticket, outcome in zip(batch, outcomes, strict=True):
                ticket.settle(outcome)

    async def _read(self, query: str, parameters: tuple[bytes, ...]) -> Sequence[tuple[bytes, bytes, int]]:
        self._check_usable()
        return await self._in_thread(lambda: self._connection.execute(query, parameters).fetchall())

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
        if self._closing:
            raise StorageFailed("the metadata store is closed")


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # in WAL mode NORMAL would lose commits at a power cut
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            connection.close()
            raise StartupError(f"{path} was written by a later version of KafScale; start that version")
        connection.executescript(SCHEMA)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except sqlite3.Error as exc:
        raise StartupError(f"can't open the metadata store {path}: {exc}; restore or remove it") from exc
    return connection


def _apply_all(connection: sqlite3.Connection, transactions: Sequence[Transaction]) -> Sequence[int | Exception]:
    """Apply them in order in one SQLite transaction; for each its revision, or PreconditionFailed and no effect."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        (revision,) = connection.execute("SELECT current FROM revision").fetchone()
        outcomes: list[int | Exception] = []
        for transaction in transactions:
            if (refusal := _refusal(connection, transaction)) is not None:
                outcomes.append(refusal)
                continue
            revision += _apply(connection, transaction, revision + 1)
            outcomes.append(revision)
        connection.execute("UPDATE revision SET current = ?", (revision,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return outcomes


def _refusal(connection: sqlite3.Connection, transaction: Transaction) -> PreconditionFailed | None:
    for key, expected in transaction.expect.items():
        row = connection.execute("SELECT revision FROM entry WHERE key = ?", (key.encode(),)).fetchone()
        actual = row[0] if row else 0
        if actual != expected:
            return PreconditionFailed(f"{key} has revision {actual}, not {expected}")
    return None


def _apply(connection: sqlite3.Connection, transaction: Transaction, revision: int) -> bool:
    """Deletes first, then puts. Whether anything changed."""
    changed = 0
    for prefix in transaction.delete_prefixes:
        where, bounds = _range(prefix)
        changed += connection.execute(f"DELETE FROM entry{where}", bounds).rowcount
    if transaction.deletes:
        rows = [(key.encode(),) for key in transaction.deletes]
        changed += connection.executemany("DELETE FROM entry WHERE key = ?", rows).rowcount
    if transaction.puts:
        entries = [(key.encode(), value, revision) for key, value in transaction.puts.items()]
        changed += connection.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?)", entries).rowcount
    return changed > 0


def _range(prefix: str) -> tuple[str, tuple[bytes, ...]]:
    """A WHERE clause, and its parameters, for the keys that start with `prefix`."""
    if not prefix:
        return "", ()
    low = prefix.encode()
    return " WHERE key >= ? AND key < ?", (low, low[:-1] + bytes([low[-1] + 1]))  # UTF-8 never ends in 0xFF


def _entry(row: tuple[bytes, bytes, int]) -> Entry:
    key, value, revision = row
    return Entry(key.decode(), value, revision)
