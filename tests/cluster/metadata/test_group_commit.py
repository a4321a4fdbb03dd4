from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.cluster.metadata import group_commit
from kafscale.cluster.metadata.base import Outcome, PlannedFrom, Transaction
from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.errors import PreconditionFailed, StorageFailed, StorageFull, StoreUnavailable
from kafscale.testing.metadata import MemoryMetadataStore


async def test_what_comes_together_is_one_transaction_and_later_changes_of_a_key_win(
    nursery: trio.Nursery,
) -> None:
    store = MemoryMetadataStore()
    queue = GroupCommit(store)
    done: list[str] = []
    queue.submit({"a": b"1", "b": b"1"}, lambda durable: done.append(f"first {durable}"))
    queue.submit({"a": None, "c": b"2"}, lambda durable: done.append(f"second {durable}"))
    assert queue.statistics() == 2
    nursery.start_soon(queue.run)
    await wait_all_tasks_blocked()

    assert store.commits == [Transaction(puts={"b": b"1", "c": b"2"}, deletes=["a"])]
    assert done == ["first True", "second True"]
    assert queue.statistics() == 0


async def test_changes_during_a_commit_share_the_next_one(nursery: trio.Nursery) -> None:
    store = MemoryMetadataStore(gate=trio.Event())
    queue = GroupCommit(store)
    done: list[int] = []
    nursery.start_soon(queue.run)
    for number in range(5):
        queue.submit({f"k{number}": b""}, lambda _, number=number: done.append(number))
        await wait_all_tasks_blocked()
    assert done == []
    assert store.gate is not None
    store.gate.set()
    await wait_all_tasks_blocked()

    assert [len(commit.puts) for commit in store.commits] == [1, 4]
    assert done == [0, 1, 2, 3, 4]


async def test_settled_is_when_all_that_was_submitted_is_durable_and_at_once_if_there_is_nothing(
    nursery: trio.Nursery,
) -> None:
    store = MemoryMetadataStore(gate=trio.Event())
    queue = GroupCommit(store)
    nursery.start_soon(queue.run)
    with trio.fail_after(0.1):
        await queue.wait_settled()
    for waits_for in ("what is being committed", "what waits behind it"):
        queue.submit({waits_for: b""}, lambda _: None)
        await wait_all_tasks_blocked()
    settled = trio.Event()

    async def wait() -> None:
        await queue.wait_settled()
        assert len(store.commits) == 2
        settled.set()

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    assert not settled.is_set()
    assert store.gate is not None
    store.gate.set()
    await settled.wait()


async def test_a_transaction_is_not_larger_than_it_should_be(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "BATCH_TARGET_COUNT", 3)
    store = MemoryMetadataStore()
    queue = GroupCommit(store)
    done: list[bool] = []
    for start in (0, 2, 4):
        queue.submit({f"k{start}": b"", f"k{start + 1}": b""}, done.append)
    queue.submit({f"big{number}": b"" for number in range(10)}, done.append)
    nursery.start_soon(queue.run)
    await wait_all_tasks_blocked()

    assert [len(commit.puts) for commit in store.commits] == [2, 2, 2, 10]
    assert done == [True] * 4


async def test_a_callback_may_submit(nursery: trio.Nursery) -> None:
    store = MemoryMetadataStore()
    queue = GroupCommit(store)
    done: list[bool] = []
    queue.submit({"a": b""}, lambda _: queue.submit({"b": b""}, done.append))
    nursery.start_soon(queue.run)
    await wait_all_tasks_blocked()

    assert done == [True]
    assert [sorted(commit.puts) for commit in store.commits] == [["a"], ["b"]]


async def test_a_store_that_cannot_be_reached_fails_these_changes_and_not_the_next(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryMetadataStore(failure=StoreUnavailable("no route"))
    queue = GroupCommit(store)
    done: list[bool] = []
    nursery.start_soon(queue.run)
    queue.submit({"a": b""}, done.append)
    await wait_all_tasks_blocked()
    store.failure = None
    queue.submit({"b": b""}, done.append)
    await wait_all_tasks_blocked()

    assert done == [False, True]
    assert "no route" in caplog.text


async def test_a_lost_disk_ends_the_task_and_everyone_is_told() -> None:
    store = MemoryMetadataStore(gate=trio.Event())
    queue = GroupCommit(store)
    done: list[tuple[str, bool]] = []
    with pytest.RaisesGroup(StorageFailed):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.run)
            queue.submit({"a": b""}, lambda durable: done.append(("a", durable)))
            await wait_all_tasks_blocked()
            queue.submit({"b": b""}, partial(lambda name, durable: done.append((name, durable)), "b"))
            store.failure = StorageFailed("disk gone")
            assert store.gate is not None
            store.gate.set()
    queue.submit({"c": b""}, lambda durable: done.append(("c", durable)))

    assert done == [("a", False), ("b", False), ("c", False)]


async def test_commits_and_submissions_take_effect_and_are_answered_in_the_order_of_the_calls(
    nursery: trio.Nursery,
) -> None:
    store = MemoryMetadataStore(gate=trio.Event())
    commits = GroupCommit(store)
    order: list[str] = []
    nursery.start_soon(commits.run)
    commits.submit({"first": b""}, lambda _: None)
    await wait_all_tasks_blocked()  # is on its way; what comes now is the next batch

    async def commit(name: str) -> None:
        await commits.commit(Transaction(puts={"k": name.encode()}))
        order.append(name)

    for number in range(3):
        commits.submit({"k": b"%d" % number, "n": b""}, partial(lambda name, _: order.append(name), f"submit {number}"))
        commits.submit({"k": b"again %d" % number}, partial(lambda name, _: order.append(name), f"again {number}"))
        nursery.start_soon(commit, f"commit {number}")
        await wait_all_tasks_blocked()
    assert commits.statistics() == 9
    assert store.gate is not None
    store.gate.set()
    await wait_all_tasks_blocked()

    values = [commit.puts["k"] for commit in store.commits[1:]]
    assert values == [b"again 0", b"commit 0", b"again 1", b"commit 1", b"again 2", b"commit 2"]
    submitted = [each for each in order if not each.startswith("commit")]
    assert submitted == [f"{name} {number}" for number in range(3) for name in ("submit", "again")]
    assert sorted(each for each in order if each.startswith("commit")) == ["commit 0", "commit 1", "commit 2"]


async def test_a_full_disk_refuses_what_is_not_essential_and_not_what_comes_with_it(nursery: trio.Nursery) -> None:
    store = MemoryMetadataStore(full=True, reserved_count=2)
    commits = GroupCommit(store)
    done: list[tuple[str, bool]] = []
    refused: list[StorageFull] = []

    async def commit() -> None:
        try:
            await commits.commit(Transaction(puts={"plain": b""}))
        except StorageFull as exc:
            refused.append(exc)

    commits.submit({"offset": b""}, lambda durable: done.append(("offset", durable)))
    commits.submit({"group": b""}, lambda durable: done.append(("group", durable)), essential=True)
    nursery.start_soon(commit)
    await wait_all_tasks_blocked()
    nursery.start_soon(commits.run)
    await wait_all_tasks_blocked()

    assert done == [("offset", True), ("group", True)]
    assert len(refused) == 1
    assert await store.get("plain") is None


async def test_who_waits_for_a_commit_is_told_when_nobody_writes_any_more(nursery: trio.Nursery) -> None:
    """One that the stop cut off, and one that came after it. Submitters are not: whether it is durable is unknown."""
    store = MemoryMetadataStore(gate=trio.Event())
    commits = GroupCommit(store)
    scope = trio.CancelScope()
    failures: list[str] = []
    told: list[bool] = []

    async def run() -> None:
        with scope:
            await commits.run()

    async def commit(key: str) -> None:
        with pytest.raises(StorageFailed, match="has ended"):
            await commits.commit(Transaction(puts={key: b""}))
        failures.append(key)

    nursery.start_soon(run)
    nursery.start_soon(commit, "under way")
    await wait_all_tasks_blocked()
    commits.submit({"submitted": b""}, told.append)
    nursery.start_soon(commit, "waiting")
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()
    await commit("late")

    assert sorted(failures) == ["late", "under way", "waiting"]
    assert told == []
    assert store.commits == []


async def test_a_batch_is_not_larger_than_it_should_be(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "BATCH_TARGET_COUNT", 5)
    sizes: list[int] = []

    class Counting(MemoryMetadataStore):
        async def apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
            sizes.append(len(transactions))
            return await super().apply(transactions)

    commits = GroupCommit(Counting())
    for number in range(12):
        nursery.start_soon(commits.commit, Transaction(puts={f"k{number}": b""}))
    await wait_all_tasks_blocked()
    nursery.start_soon(commits.run)
    await wait_all_tasks_blocked()

    assert sizes == [5, 5, 2]


@pytest.mark.parametrize(
    ("earlier", "later", "shares"),
    [
        (Transaction(puts={"a/1": b""}), Transaction(expect={"a/1": 0}), False),
        (Transaction(deletes=["a/1"]), Transaction(expect={"a/1": 0}), False),
        (Transaction(delete_prefixes=["a/"]), Transaction(expect={"a/1": 0}), False),
        (Transaction(puts={"a/1": b""}), Transaction(expect={"a/2": 0, "a": 0}), True),
        (Transaction(delete_prefixes=["a/"]), Transaction(expect={"b/1": 0}), True),
        (Transaction(puts={"a/1": b""}), Transaction(planned_from=PlannedFrom(revision=0, keys=["a/1"])), False),
        (Transaction(puts={"a/1": b""}), Transaction(planned_from=PlannedFrom(revision=0, prefixes=["a/"])), False),
        (
            Transaction(delete_prefixes=["a/b/"]),
            Transaction(planned_from=PlannedFrom(revision=0, prefixes=["a/"])),
            False,
        ),
        (
            Transaction(delete_prefixes=["a/"]),
            Transaction(planned_from=PlannedFrom(revision=0, prefixes=["a/b/"])),
            False,
        ),
        (Transaction(puts={"a/1": b""}), Transaction(planned_from=PlannedFrom(revision=0, keys=["a/10"])), True),
        (Transaction(puts={"ab/1": b""}), Transaction(planned_from=PlannedFrom(revision=0, prefixes=["a/"])), True),
        (Transaction(planned_from=PlannedFrom(revision=0, keys=["a/1"])), Transaction(puts={"a/1": b""}), True),
    ],
)
async def test_what_touches_what_another_one_expects_is_written_before_that_is_looked_at(
    nursery: trio.Nursery, earlier: Transaction, later: Transaction, *, shares: bool
) -> None:
    """All others share a write, whether they expect something or not."""
    batches: list[Sequence[Transaction]] = []

    class Counting(MemoryMetadataStore):
        async def apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
            batches.append(transactions)
            return await super().apply(transactions)

    commits = GroupCommit(Counting())
    for transaction in (earlier, later):
        nursery.start_soon(_commit_or_be_refused, commits, transaction)
        await wait_all_tasks_blocked()
    nursery.start_soon(commits.run)
    await wait_all_tasks_blocked()
    assert batches == ([[earlier, later]] if shares else [[earlier], [later]])


async def _commit_or_be_refused(store: GroupCommit, transaction: Transaction) -> None:
    with suppress(PreconditionFailed):
        await store.commit(transaction)
