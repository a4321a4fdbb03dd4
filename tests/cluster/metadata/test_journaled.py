from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.cluster.metadata.base import PlannedFrom, Transaction
from kafscale.cluster.metadata.group_commit import CANCELLED_COMMIT_SECONDS, JournaledMetadataStore
from kafscale.errors import Fenced, PlanOutdated, PreconditionFailed, StorageFailed, StorageFull
from kafscale.formats.metadata_changes import decode_transaction
from kafscale.formats.wal_objects import START, WalPosition
from kafscale.log.wal.s3_replay import take_over
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore

PUT = "put_if_absent"


class Bench:
    """Journaled metadata over a bucket in memory."""

    def __init__(self) -> None:
        self.bucket = FaultyStore(MemoryStore())
        self.local = MemoryMetadataStore()
        self.journal = S3Wal(store=self.bucket, namespace="default", epoch=0)
        self.store = JournaledMetadataStore(self.local, self.journal, WalPosition(0, 0))

    async def put(self, key: str, **expect: int) -> int:
        return await self.store.commit(Transaction(puts={key: b""}, expect=expect))


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.journal.run)
        await nursery.start(bench.store.run)
        yield bench
        nursery.cancel_scope.cancel()


async def journaled(bench: Bench) -> list[str]:
    """The keys that were put, as a broker with an empty disk finds them."""
    keys: list[str] = []
    earlier = await take_over(bench.bucket, "default", 1, kept_until=START)
    await earlier.replay(lambda entry: keys.extend(decode_transaction(memoryview(entry.data)).puts) is None)
    return keys


async def test_a_commit_reaches_the_bucket_before_the_local_store(autojump_clock) -> None:
    async with running() as bench, trio.open_nursery() as nursery:
        gate = bench.bucket.hold(On(PUT), after_effect=True)
        nursery.start_soon(bench.put, "a")
        await gate.wait_arrived()
        assert await bench.store.get("a") is None
        assert bench.store.applied_position == WalPosition(0, 0)
        gate.open()
        await wait_all_tasks_blocked()
        assert await bench.store.get("a") is not None
        assert bench.store.applied_position == bench.journal.metadata_position == WalPosition(0, 1)
        assert bench.store.revision == 1


async def test_a_full_disk_refuses_all_but_essential_changes_before_they_are_logged(autojump_clock) -> None:
    async with running() as bench:
        await bench.put("a")
        bench.local.full, bench.local.reserved_count = True, 1
        with pytest.raises(StorageFull):
            await bench.put("b")
        await bench.store.commit(Transaction(puts={"essential": b""}, essential=True))
        bench.local.full = False
        await bench.put("c")
        assert [entry.key for entry in await bench.local.list("")] == ["a", "c", "essential"]
        assert await journaled(bench) == ["a", "essential", "c"]


async def test_a_logged_change_waits_for_disk_space_and_later_ones_are_refused(autojump_clock) -> None:
    async with running() as bench, trio.open_nursery() as nursery:
        gate = bench.bucket.hold(On(PUT), after_effect=True)
        nursery.start_soon(bench.put, "in the log")
        await gate.wait_arrived()
        bench.local.full = True
        gate.open()
        await trio.sleep(5)
        with trio.fail_after(2), pytest.raises(StorageFull):
            await bench.put("behind it")
        nursery.start_soon(bench.store.commit, Transaction(puts={"needed": b""}, essential=True))
        await trio.sleep(5)
        assert bench.store.applied_position == WalPosition(0, 0)
        bench.local.full = False
        await trio.sleep(5)
        assert bench.store.applied_position == WalPosition(0, 2)
        await bench.put("later")
        assert [entry.key for entry in await bench.local.list("")] == ["in the log", "later", "needed"]


async def test_commits_that_wait_share_an_object(autojump_clock) -> None:
    async with running() as bench:
        bench.bucket.delay(On(PUT), 0.1)
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(bench.put, str(number))
        assert bench.bucket.count(PUT) <= 2
        assert sorted(await journaled(bench)) == sorted(map(str, range(100)))


async def test_a_commit_alone_takes_one_put(autojump_clock) -> None:
    async with running() as bench:
        bench.bucket.delay(On(PUT), 0.02)
        began = trio.current_time()
        await bench.put("a")
        assert trio.current_time() - began == pytest.approx(0.02)


async def test_a_refused_transaction_is_not_logged(autojump_clock) -> None:
    async with running() as bench:
        await bench.put("a")
        with pytest.raises(PreconditionFailed):
            await bench.put("b", a=0)
        assert await bench.put("c", a=1) == 2
        assert await journaled(bench) == ["a", "c"]


async def test_an_expectation_is_checked_after_all_earlier_commits(autojump_clock) -> None:
    outcomes: list[str] = []

    async def compete(bench: Bench, name: str) -> None:
        try:
            await bench.put("a", a=0)
        except PreconditionFailed:
            outcomes.append("refused")
        else:
            outcomes.append("done")

    async with running() as bench:
        bench.bucket.delay(On(PUT), 0.1)
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(compete, bench, str(number))
        assert sorted(outcomes) == ["done", *["refused"] * 4]
        assert await journaled(bench) == ["a"]


async def test_plans_of_different_things_share_an_object(autojump_clock) -> None:
    """The log starts of many partitions, by DeleteRecords: one PUT for each would take minutes."""
    async with running() as bench:
        bench.bucket.delay(On(PUT), 0.1)
        async with trio.open_nursery() as nursery:
            for number in range(100):
                plan = PlannedFrom(revision=0, keys=[f"starts/{number}", "topics/a"])
                transaction = Transaction(puts={f"starts/{number}": b""}, planned_from=plan)
                nursery.start_soon(bench.store.commit, transaction)
        assert bench.bucket.count(PUT) <= 2
        assert len(await journaled(bench)) == 100


async def test_of_two_plans_from_the_same_state_only_the_first_is_in_the_log(autojump_clock) -> None:
    refused: list[str] = []

    async def carry_out(bench: Bench, key: str) -> None:
        try:
            await bench.store.commit(
                Transaction(puts={key: b""}, planned_from=PlannedFrom(revision=0, prefixes=["topics/"]))
            )
        except PlanOutdated:
            refused.append(key)

    async with running() as bench:
        async with trio.open_nursery() as nursery:
            for key in ("topics/a", "topics/b", "topics/c"):
                nursery.start_soon(carry_out, bench, key)
        (winner,) = await journaled(bench)
        assert {winner, *refused} == {"topics/a", "topics/b", "topics/c"}
        assert [entry.key for entry in await bench.local.list("")] == [winner]


async def test_a_commit_cancelled_while_queued_has_no_effect(autojump_clock) -> None:
    async with running() as bench, trio.open_nursery() as nursery:
        gate = bench.bucket.hold(On(PUT))
        nursery.start_soon(bench.put, "a")
        await gate.wait_arrived()
        with trio.move_on_after(1):
            await bench.put("b")
        gate.open()
        await wait_all_tasks_blocked()
        assert await journaled(bench) == ["a"]


async def test_a_commit_that_is_cancelled_under_way_is_waited_for_but_not_for_ever(autojump_clock) -> None:
    async with running() as bench:
        bench.bucket.delay(On(PUT, times=1), 1.5)
        with trio.move_on_after(1) as scope:
            await bench.put("a")
        assert not scope.cancelled_caught
        bench.bucket.delay(On(PUT), 3600)
        began = trio.current_time()
        with trio.move_on_after(1) as scope:
            await bench.put("b")
        assert scope.cancelled_caught
        assert trio.current_time() - began == pytest.approx(1 + CANCELLED_COMMIT_SECONDS)


async def test_when_the_log_is_fenced_nothing_is_applied(autojump_clock) -> None:
    bench = Bench()
    failed = 0

    async def run_until_fenced(task_status: trio.TaskStatus[None]) -> None:
        with pytest.raises(Fenced):
            await bench.journal.run(task_status=task_status)

    async def run_until_failed(task_status: trio.TaskStatus[None]) -> None:
        with pytest.raises(StorageFailed):
            await bench.store.run(task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(run_until_fenced)
        await nursery.start(run_until_failed)
        await take_over(bench.bucket, "default", 1, kept_until=START)
        for _ in range(2):
            with pytest.raises(StorageFailed, match="taken over"):
                await bench.put("a")
            failed += 1
    assert failed == 2
    assert bench.local.commits == []


async def test_each_logged_transaction_is_applied_once_after_the_disk_was_full(
    autojump_clock,
) -> None:
    revisions: list[int] = []

    async def put(bench: Bench, key: str) -> None:
        revisions.append(await bench.put(key))

    async with running() as bench, trio.open_nursery() as nursery:
        gate = bench.bucket.hold(On(PUT), after_effect=True)
        for number in range(3):
            nursery.start_soon(put, bench, str(number))
        await gate.wait_arrived()
        bench.local.full, bench.local.reserved_count = True, 1
        gate.open()
        await trio.sleep(5)
        assert (len(bench.local.commits), revisions) == (1, [])
        bench.local.full = False
        await trio.sleep(5)
        assert sorted(revisions) == [1, 2, 3]
        assert [sorted(commit.puts) for commit in bench.local.commits] == [[key] for key in await journaled(bench)]
