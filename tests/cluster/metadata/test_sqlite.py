from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
from kafscale.errors import PreconditionFailed, StartupError, StorageFailed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


async def test_what_was_committed_is_there_after_reopening(path: Path) -> None:
    async with SqliteMetadataStore.open(path) as store:
        revision = await store.commit(Transaction(puts={"a": b"1"}))
    async with SqliteMetadataStore.open(path) as store:
        assert (await store.get("a")).revision == revision
        assert await store.commit(Transaction(puts={"a": b"2"})) == revision + 1


async def test_what_was_acknowledged_survives_a_kill(path: Path) -> None:
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
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert sqlite3.connect(path).execute("SELECT count(*) FROM entry").fetchone() == (1,)


async def test_transactions_that_wait_together_share_a_sync_and_keep_their_order(path: Path) -> None:
    revisions: dict[int, int] = {}

    async with SqliteMetadataStore.open(path) as store:

        async def put(number: int) -> None:
            revisions[number] = await store.commit(Transaction(puts={"last": b"%d" % number}))

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(put, number)
        statistics = store.statistics()
        assert statistics.commit_count == 100
        assert statistics.sync_count <= 3
        assert sorted(revisions.values()) == list(range(1, 101))
        last = max(revisions, key=lambda number: revisions[number])
        assert (await store.get("last")).value == b"%d" % last


async def test_a_refused_transaction_leaves_the_others_of_its_sync_alone(path: Path) -> None:
    refused: list[int] = []

    async with SqliteMetadataStore.open(path) as store:

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


async def test_a_commit_cancelled_on_its_way_either_returns_or_did_not_happen(path: Path) -> None:
    returned: set[int] = set()

    async with SqliteMetadataStore.open(path) as store:

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


async def test_a_cancelled_block_commits_what_its_children_had_queued(path: Path) -> None:
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


async def test_an_error_of_the_disk_fails_what_waits_and_everything_after_it(path: Path) -> None:
    failed: list[int] = []

    async with SqliteMetadataStore.open(path) as store:
        await store.commit(Transaction(puts={"a": b"1"}))
        store._connection.execute("PRAGMA max_page_count = 3")  # the disk is full from here on

        async def put(number: int) -> None:
            with pytest.raises(StorageFailed, match="full"):
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
    async with SqliteMetadataStore.open(path) as store:
        assert [entry.key for entry in await store.list("")] == ["a"]


async def test_a_damaged_file_is_a_startup_error_that_names_it(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StartupError, match=r"metadata\.db"):
        async with SqliteMetadataStore.open(path):
            pass


async def test_a_file_of_a_later_version_is_refused(path: Path) -> None:
    async with SqliteMetadataStore.open(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StartupError, match="later version"):
        async with SqliteMetadataStore.open(path):
            pass
