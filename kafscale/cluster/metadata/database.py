"""The SQLite database of the embedded metadata store: its blocking half, which is called in worker threads.

A full disk is not a failure. SQLite has rolled the transaction back then, nothing has changed, and it can be tried
again. What is essential is tried again at once, with the room that was reserved for it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from kafscale.cluster.metadata.base import Change, Outcome, Take, Transaction
from kafscale.cluster.metadata.changes import ChangeLog
from kafscale.cluster.metadata.reserve import Reserve, has_room
from kafscale.errors import PreconditionFailed, StartupError, StorageFull

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

Row = tuple[bytes, bytes, int]


@attrs.define(eq=False, repr=False)
class Database:
    """One database. Made by `open`; each method is called by one thread at a time."""

    path: Path
    connection: sqlite3.Connection
    reserve: Reserve | None = None
    _is_full: bool = attrs.field(default=False, init=False)
    _lacks_reserve: bool = attrs.field(default=False, init=False)  # changes were refused to keep what is left of it

    @classmethod
    def open(cls, path: Path, reserve: Reserve | None) -> Database:
        """Open or create it. Raises StartupError if that can't be, or a later version wrote it."""
        while True:
            try:
                return cls(path, _connect(path), reserve)
            except sqlite3.Error as exc:
                if reserve is None or not _is_for_want_of_room(exc, path) or not reserve.release():
                    raise StartupError(_advice(path, exc)) from exc

    def read(self, query: str, parameters: tuple[bytes, ...]) -> Sequence[Row]:
        return self.connection.execute(query, parameters).fetchall()

    def revision(self) -> int:
        """The revision of the latest transaction that changed something."""
        return _revision(self.connection)

    def check(self, transactions: Sequence[Transaction], published: ChangeLog) -> Sequence[PreconditionFailed | None]:
        """Tell for each, taken alone, why it would be refused now, if what it expects does not hold."""
        return [_refusal(self.connection, transaction, published) for transaction in transactions]

    def apply(self, transactions: Sequence[Transaction], published: ChangeLog) -> Sequence[Outcome]:
        """Apply them in order, with one sync; for each what it has changed, or why it had no effect.

        `published` has all that was applied before, and nothing is published meanwhile.

        That is PreconditionFailed, or StorageFull. Raises sqlite3.Error: then it is unknown what has reached the disk.
        """
        try:
            outcomes: Sequence[Outcome] = _apply_all(self.connection, transactions, published)
        except sqlite3.Error as exc:
            if not _is_for_want_of_room(exc, self.path):
                raise
            self._note_full()
            return self._apply_essential(transactions, published)
        if not self._lacks_reserve:
            self._note_room()
        return outcomes

    def _apply_essential(self, transactions: Sequence[Transaction], published: ChangeLog) -> Sequence[Outcome]:
        """Apply those that may use the reserve, and refuse the others."""
        outcomes: list[Outcome] = [StorageFull(self._no_room) for _ in transactions]
        places = [place for place, transaction in enumerate(transactions) if transaction.essential]
        while places and self.reserve is not None and self.reserve.release():
            try:
                applied = _apply_all(self.connection, [transactions[place] for place in places], published)
            except sqlite3.Error as exc:
                if not _is_for_want_of_room(exc, self.path):
                    raise
                continue
            for place, outcome in zip(places, applied, strict=True):
                outcomes[place] = outcome
            break
        return outcomes

    def check_room(self) -> None:
        """Raises StorageFull while the reserve is in use."""
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
        """Close the database. What SQLite gives back goes to the reserve, as the next start may need it."""
        self.connection.close()
        self.fill_reserve()

    def fill_reserve(self) -> None:
        """Give the reserve all its room again, or as much as there is."""
        if self.reserve is not None:
            with suppress(OSError):  # what is wrong with the disk shows where something is written
                self.reserve.fill()
                if self._lacks_reserve and not self.reserve.is_short:
                    self._lacks_reserve = False
                    self._note_room()


def read_pairs(connection: sqlite3.Connection, keys: Sequence[str] | None, take: Take) -> None:
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


def prefix_range(prefix: str) -> tuple[str, tuple[bytes, ...]]:
    """A WHERE clause, and its parameters, for the keys that start with `prefix`."""
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


def _apply_all(
    connection: sqlite3.Connection, transactions: Sequence[Transaction], published: ChangeLog
) -> Sequence[Outcome]:
    """Apply them in order in one SQLite transaction; for each what it changed, or PreconditionFailed and no effect."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        revision = _revision(connection)
        outcomes: list[Outcome] = []
        for transaction in transactions:
            if (refusal := _refusal(connection, transaction, published, outcomes)) is not None:
                outcomes.append(refusal)
                continue
            change = _apply(connection, transaction, revision + 1) or Change(revision)
            revision = change.revision
            outcomes.append(change)
        connection.execute("UPDATE revision SET current = ?", (revision,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return outcomes


def _revision(connection: sqlite3.Connection) -> int:
    (revision,) = connection.execute("SELECT current FROM revision").fetchone()
    return int(revision)


def _refusal(
    connection: sqlite3.Connection, transaction: Transaction, published: ChangeLog, earlier: Sequence[Outcome] = ()
) -> PreconditionFailed | None:
    if transaction.planned_from is not None:
        outdated = published.refusal(transaction.planned_from, earlier)
        if outdated is not None:
            return outdated
    for key, expected in transaction.expect.items():
        row = connection.execute("SELECT revision FROM entry WHERE key = ?", (key.encode(),)).fetchone()
        actual = row[0] if row else 0
        if actual != expected:
            return PreconditionFailed(f"{key} has revision {actual}, not {expected}")
    return None


def _apply(connection: sqlite3.Connection, transaction: Transaction, revision: int) -> Change | None:
    """Deletes first, then puts. What has changed, if anything."""
    changed_count = 0
    deletes = list(transaction.deletes)
    for prefix in transaction.delete_prefixes:
        where, bounds = prefix_range(prefix)
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
