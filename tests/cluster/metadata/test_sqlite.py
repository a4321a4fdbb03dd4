from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kafscale.cluster.metadata import sqlite
from kafscale.cluster.metadata.base import Change, Transaction
from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.cluster.metadata.sqlite import Reserve, SqliteMetadataStore
from kafscale.errors import PreconditionFailed, StartupError, StorageFailed, StorageFull
from kafscale.wire.error_codes import KAFKA_STORAGE_ERROR

ADVICE_TO_LOSE_DATA = {"remove", "delete", "remove it"}


@asynccontextmanager
async def grouped(path: Path, **more: Any) -> AsyncIterator[tuple[SqliteMetadataStore, GroupCommit]]:
    """A store, and what commits to it come through."""
    async with SqliteMetadataStore.open(path, **more) as local, trio.open_nursery() as nursery:
        store = GroupCommit(local)
        await nursery.start(store.run)
        yield local, store
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def alone(path: Path) -> AsyncIterator[tuple[SqliteMetadataStore, SqliteMetadataStore]]:
    """A store to which commits come one by one."""
    async with SqliteMetadataStore.open(path) as store:
        yield store, store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


async def test_a_committed_change_survives_reopening(path: Path) -> None:
    async with SqliteMetadataStore.open(path) as store:
        revision = await store.commit(Transaction(puts={"a": b"1"}))
    async with SqliteMetadataStore.open(path) as store:
        assert (await store.get("a")).revision == revision
        assert await store.commit(Transaction(puts={"a": b"2"})) == revision + 1


async def test_acknowledged_commits_survive_a_kill(path: Path) -> None:
    script = """
import sys, trio
from pathlib import Path
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore

async def main():
    async with SqliteMetadataStore.open(Path(sys.argv[1])) as store:
        for number in range(1_000_000):
            await store.commit(Transaction(puts={f"n/{number}": b""}))
            print(number, flush=True)

trio.run(main)
"""
    process = await trio.lowlevel.open_process([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    acknowledged = b""
    while acknowledged.count(b"\n") < 100:
        acknowledged += await process.stdout.receive_some()
    process.kill()
    while more := await process.stdout.receive_some():
        acknowledged += more
    await process.wait()
    async with SqliteMetadataStore.open(path) as store:
        stored = {entry.key for entry in await store.list("n/")}
    assert {f"n/{number.decode()}" for number in acknowledged.split()} <= stored
    assert len(stored) <= len(acknowledged.split()) + 1


async def test_commits_are_synced(path: Path) -> None:
    """What a kill -9 or a power cut may not take back depends on these two settings."""
    async with SqliteMetadataStore.open(path) as store:
        await store.commit(Transaction(puts={"a": b"1"}))
        assert store._database.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._database.connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert sqlite3.connect(path).execute("SELECT count(*) FROM entry").fetchone() == (1,)


async def test_transactions_that_wait_together_share_a_sync_and_keep_their_order(path: Path, monkeypatch) -> None:
    revisions: dict[int, int] = {}
    counts: list[int] = []
    apply = sqlite.Database.apply

    def counted(opened: sqlite.Database, transactions: list[Transaction]) -> Any:
        counts.append(len(transactions))
        return apply(opened, transactions)

    monkeypatch.setattr(sqlite.Database, "apply", counted)
    async with grouped(path) as (_, store):

        async def put(number: int) -> None:
            revisions[number] = await store.commit(Transaction(puts={"last": b"%d" % number}))

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(put, number)
        assert sum(counts) == 100
        assert len(counts) <= 3
        assert sorted(revisions.values()) == list(range(1, 101))
        last = max(revisions, key=lambda number: revisions[number])
        assert (await store.get("last")).value == b"%d" % last


async def test_a_refused_transaction_leaves_the_others_of_its_sync_alone(path: Path) -> None:
    refused: list[int] = []

    async with grouped(path) as (_, store):

        async def put(number: int) -> None:
            expect = {"missing": 7} if number % 2 else {}
            try:
                await store.commit(Transaction(puts={f"n/{number}": b""}, expect=expect))
            except PreconditionFailed:
                refused.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(put, number)
        assert sorted(refused) == [1, 3, 5, 7, 9]
        assert [entry.key for entry in await store.list("n/")] == [f"n/{number}" for number in (0, 2, 4, 6, 8)]


@pytest.mark.parametrize("opened", [alone, grouped])
async def test_a_commit_cancelled_on_its_way_either_returns_or_did_not_happen(path: Path, opened) -> None:
    returned: set[int] = set()

    async with opened(path) as (_, store):

        async def put(number: int) -> None:
            await store.commit(Transaction(puts={f"n/{number:03}": b""}))
            returned.add(number)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(put, number)
            await trio.testing.wait_all_tasks_blocked()  # the writer has taken the first batch, its thread runs
            for number in range(50, 100):
                nursery.start_soon(put, number)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        stored = {int(entry.key[2:]) for entry in await store.list("n/")}
    assert stored == returned


async def test_a_cancelled_block_commits_queued_changes_of_its_children(path: Path) -> None:
    done = trio.Event()

    async with trio.open_nursery() as outer:

        async def run() -> None:
            async with SqliteMetadataStore.open(path) as store:
                with trio.CancelScope(shield=True):
                    outer.cancel_scope.cancel()
                    await store.commit(Transaction(puts={"a": b"1"}))
                    done.set()

        outer.start_soon(run)
    assert done.is_set()
    async with SqliteMetadataStore.open(path) as store:
        assert await store.get("a") is not None


def fill(store: SqliteMetadataStore) -> None:
    store._database.connection.execute("PRAGMA max_page_count = 3")


def make_room(store: SqliteMetadataStore) -> None:
    store._database.connection.execute("PRAGMA max_page_count = 1000000")


def failing(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(sqlite.Database, "_apply_all", fail)


async def test_a_full_disk_refuses_large_changes_and_the_store_stays_usable(path: Path, caplog) -> None:
    """An offset commit on a full disk ended the broker."""
    async with SqliteMetadataStore.open(path) as store:
        await store.commit(Transaction(puts={"a": b"1"}))
        fill(store)
        for number in range(5):
            with pytest.raises(StorageFull, match="free some space"):
                await store.commit(Transaction(puts={f"big/{number}": bytes(100_000)}))
        assert caplog.text.count("is full") == 1
        assert [entry.key for entry in await store.list("")] == ["a"]
        assert await store.commit(Transaction(puts={"a": b"2"})) == 2
        make_room(store)
        assert await store.commit(Transaction(puts={"big": bytes(100_000)})) == 3
        assert caplog.text.count("can be changed again") == 1
    async with SqliteMetadataStore.open(path) as store:
        assert [entry.key for entry in await store.list("")] == ["a", "big"]


async def test_only_essential_changes_use_the_reserve_of_a_full_disk(path: Path, monkeypatch) -> None:
    reserve = Reserve(path.with_name("reserve"), size_bytes=1 << 20)
    reserve.fill()
    outcomes: dict[str, int] = {}
    async with grouped(path, reserve=reserve) as (local, store):
        release = Reserve.release

        def releasing(self: Reserve) -> bool:
            make_room(local)
            return release(self)

        monkeypatch.setattr(Reserve, "release", releasing)

        async def put(name: str, *, essential: bool) -> None:
            try:
                outcomes[name] = await store.commit(Transaction(puts={name: bytes(100_000)}, essential=essential))
            except StorageFull as exc:
                outcomes[name] = -exc.code

        await store.check_room()
        assert reserve.path.stat().st_size == 1 << 20
        fill(local)
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(partial(put, f"plain/{number}", essential=False))
                nursery.start_soon(partial(put, f"essential/{number}", essential=True))
        assert {code for name, code in outcomes.items() if name.startswith("plain")} == {-KAFKA_STORAGE_ERROR}
        assert sorted(outcomes[f"essential/{number}"] for number in range(3)) == [1, 2, 3]
        assert reserve.path.stat().st_size == 1 << 19
        with pytest.raises(StorageFull):
            await store.check_room()
    assert reserve.path.stat().st_size == 1 << 20


@pytest.mark.parametrize("has_room", [True, False])
async def test_a_write_error_means_a_full_disk_only_without_room(path: Path, monkeypatch, has_room) -> None:
    """SQLite has no other name for a quota that is used up."""
    monkeypatch.setattr(sqlite, "has_room", lambda directory: has_room)
    async with SqliteMetadataStore.open(path) as store:
        failing(monkeypatch, sqlite3.SQLITE_IOERR_WRITE)
        with pytest.raises(StorageFailed if has_room else StorageFull):
            await store.commit(Transaction(puts={"a": b""}))


async def test_a_start_on_a_full_disk_uses_the_reserve_or_explains_the_remedy(path: Path, monkeypatch) -> None:
    reserve = Reserve(path.with_name("reserve"), size_bytes=1 << 20)
    connect = sqlite._connect

    def full(where: Path) -> sqlite3.Connection:
        if not reserve.is_short:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return connect(where)

    monkeypatch.setattr(sqlite, "_connect", full)
    reserve.fill()
    async with SqliteMetadataStore.open(path, reserve=reserve) as store:
        assert await store.commit(Transaction(puts={"a": b""})) == 1
    with pytest.raises(StartupError, match="free some space or raise it, and start again; nothing is lost") as told:
        async with SqliteMetadataStore.open(path):
            pass
    assert not ADVICE_TO_LOSE_DATA & set(str(told.value).split())


async def test_a_disk_error_fails_waiting_and_later_calls(path: Path, monkeypatch) -> None:
    failed: list[int] = []

    async with SqliteMetadataStore.open(path) as store:
        await store.commit(Transaction(puts={"a": b"1"}))
        failing(monkeypatch, sqlite3.SQLITE_IOERR_FSYNC)

        async def put(number: int) -> None:
            with pytest.raises(StorageFailed, match="I/O error"):
                await store.commit(Transaction(puts={f"big/{number}": bytes(100_000)}))
            failed.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(put, number)
        with pytest.raises(StorageFailed):
            await store.get("a")
        with pytest.raises(StorageFailed):
            await store.commit(Transaction(puts={"small": b""}))
    assert len(failed) == 5
    monkeypatch.undo()
    async with SqliteMetadataStore.open(path) as store:
        assert [entry.key for entry in await store.list("")] == ["a"]


async def test_a_damaged_file_is_a_startup_error_that_names_the_file(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StartupError, match=r"metadata\.db.* put a backup in its place") as told:
        async with SqliteMetadataStore.open(path):
            pass
    assert not ADVICE_TO_LOSE_DATA & set(str(told.value).split())


async def test_a_snapshot_shows_one_moment_while_commits_go_on(path: Path) -> None:
    seen: dict[bytes, bytes] = {}
    async with SqliteMetadataStore.open(path) as store:
        await store.commit(Transaction(puts={f"n/{number:04}": b"old" for number in range(1200)}))
        async with store.snapshot() as snapshot:
            await store.commit(Transaction(puts={"n/0000": b"new", "x": b""}, delete_prefixes=["n/1"]))
            await snapshot.read(None, lambda pairs, missing: seen.update(pairs))
            assert seen == {b"n/%04d" % number: b"old" for number in range(1200)}
            seen.clear()
            absent: list[bytes] = []
            keys = ["x", "n/1000", *(f"n/{number:04}" for number in range(600))]
            await snapshot.read(keys, lambda pairs, missing: (seen.update(pairs), absent.extend(missing)))
            assert (len(seen), absent) == (601, [b"x"])


async def test_a_file_of_a_later_version_is_refused(path: Path) -> None:
    async with SqliteMetadataStore.open(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StartupError, match="later version"):
        async with SqliteMetadataStore.open(path):
            pass


async def test_revisions_go_on_after_reopening(path: Path) -> None:
    async with SqliteMetadataStore.open(path) as store:
        await store.commit(Transaction(puts={"a": b"1"}))
    async with SqliteMetadataStore.open(path) as store:
        assert store.revision == 1
        changes: list[Change] = []
        store.follow(changes.append)
        await store.commit(Transaction(puts={"a": b"2"}))
        assert [change.revision for change in changes] == [2]


async def test_changes_that_did_not_reach_the_disk_are_not_published(path: Path, monkeypatch) -> None:
    async with SqliteMetadataStore.open(path) as store:
        fill(store)
        changes: list[Change] = []
        store.follow(changes.append)
        with pytest.raises(StorageFull):
            await store.commit(Transaction(puts={"big": bytes(100_000)}))
        failing(monkeypatch, sqlite3.SQLITE_IOERR_FSYNC)
        with pytest.raises(StorageFailed):
            await store.commit(Transaction(puts={"a": b""}))
        assert changes == []


def test_refusals_that_keep_the_reserve_are_logged_once_with_their_end(path: Path, caplog) -> None:
    """A start had needed some of it, so `s3-wal` refused changes, and the log did not say so, nor that it was over.

    What is essential goes on meanwhile, and is no end of it.
    """
    reserve = Reserve(path.with_name("reserve"), size_bytes=1 << 20)
    reserve.fill()
    reserve.release()
    opened = sqlite.Database.open(path, reserve)
    for _ in range(3):
        with pytest.raises(StorageFull):
            opened.check_room()
        (outcome,) = opened.apply([Transaction(puts={"a": b"1"}, essential=True)])
        assert isinstance(outcome, Change)
    assert caplog.text.count("is full") == 1
    assert "can be changed again" not in caplog.text
    opened.fill_reserve()
    opened.check_room()
    assert caplog.text.count("can be changed again") == 1
    opened.close()
