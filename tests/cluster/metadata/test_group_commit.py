from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.cluster.metadata import group_commit
from kafscale.cluster.metadata.base import Outcome, PlannedFrom, Transaction
from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.errors import PreconditionFailed, StorageFailed, StorageFull, StoreUnavailable
from kafscale.testing.metadata import MemoryMetadataStore


@attrs.define(eq=False)
class Callers:
    """Callers that commit one key each, and what became of their commits, in the order of the answers."""

    commits: GroupCommit
    nursery: trio.Nursery
    done: list[tuple[str, bool | str]] = attrs.field(factory=list, init=False)

    async def put(self, key: str, *, essential: bool = False) -> None:
        """Begin to commit a key."""
        self.nursery.start_soon(self._put, key, essential)
        await wait_all_tasks_blocked()

    async def _put(self, key: str, essential: bool) -> None:
        try:
            await self.commits.commit(Transaction(puts={key: b""}, essential=essential))
        except (StorageFailed, StorageFull, StoreUnavailable) as exc:
            self.done.append((key, f"{type(exc).__name__}: {exc}"))
        else:
            self.done.append((key, True))


@attrs.define(eq=False)
class RecordingStore(MemoryMetadataStore):
    """Records the transactions of each batch."""

    batches: list[Sequence[Transaction]] = attrs.field(factory=list, init=False)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]

    async def apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        self.batches.append(transactions)
        return await super().apply(transactions)


async def test_changes_during_a_commit_share_the_next_one(nursery: trio.Nursery) -> None:
    store = RecordingStore(gate=trio.Event())
    callers = Callers(GroupCommit(store), nursery)
    nursery.start_soon(callers.commits.run)
    for number in range(5):
        await callers.put(str(number))
    assert callers.done == []
    assert store.gate is not None
    store.gate.set()
    await wait_all_tasks_blocked()

    assert store.sizes == [1, 4]
    assert [sorted(commit.puts) for commit in store.commits] == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert sorted(callers.done) == [(str(number), True) for number in range(5)]


async def test_an_unreachable_store_fails_waiting_changes_but_not_later_ones(nursery: trio.Nursery) -> None:
    store = MemoryMetadataStore(failure=StoreUnavailable("no route"))
    callers = Callers(GroupCommit(store), nursery)
    nursery.start_soon(callers.commits.run)
    await callers.put("a")
    store.failure = None
    await callers.put("b")

    assert callers.done == [("a", "StoreUnavailable: no route"), ("b", True)]


async def test_a_lost_disk_ends_the_task_and_fails_every_caller(nursery: trio.Nursery) -> None:
    store = MemoryMetadataStore(gate=trio.Event())
    callers = Callers(GroupCommit(store), nursery)
    with pytest.RaisesGroup(StorageFailed):
        async with trio.open_nursery() as running:
            running.start_soon(callers.commits.run)
            await callers.put("a")
            await callers.put("b")
            store.failure = StorageFailed("disk gone")
            assert store.gate is not None
            store.gate.set()
    await callers.put("c")

    assert sorted(callers.done) == [(key, "StorageFailed: disk gone") for key in "abc"]


async def test_a_full_disk_refuses_all_but_essential_changes(nursery: trio.Nursery) -> None:
    store = MemoryMetadataStore(full=True, reserved_count=1)
    callers = Callers(GroupCommit(store), nursery)
    await callers.put("plain")
    await callers.put("essential", essential=True)
    nursery.start_soon(callers.commits.run)
    await wait_all_tasks_blocked()

    assert sorted(callers.done) == [("essential", True), ("plain", "StorageFull: the disk in memory is full")]
    assert callers.commits.refused_count.value == 1
    assert await store.get("plain") is None


async def test_waiting_and_later_commits_fail_when_the_writer_has_ended(nursery: trio.Nursery) -> None:
    """One that the stop cut off, and one that came after it."""
    store = MemoryMetadataStore(gate=trio.Event())
    callers = Callers(GroupCommit(store), nursery)
    scope = trio.CancelScope()

    async def run() -> None:
        with scope:
            await callers.commits.run()

    nursery.start_soon(run)
    await callers.put("under way")
    await callers.put("waiting")
    scope.cancel()
    await wait_all_tasks_blocked()
    await callers.put("late")

    assert sorted(callers.done) == [
        (key, "StorageFailed: the metadata store's writer has ended") for key in ("late", "under way", "waiting")
    ]
    assert store.commits == []


async def test_a_batch_is_bounded_by_its_target_count(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "BATCH_TARGET_COUNT", 5)
    store = RecordingStore()
    commits = GroupCommit(store)
    for number in range(12):
        nursery.start_soon(commits.commit, Transaction(puts={f"k{number}": b""}))
    await wait_all_tasks_blocked()
    nursery.start_soon(commits.run)
    await wait_all_tasks_blocked()

    assert store.sizes == [5, 5, 2]


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
async def test_a_change_to_an_expected_key_is_written_before_the_expectation_is_checked(
    nursery: trio.Nursery, earlier: Transaction, later: Transaction, *, shares: bool
) -> None:
    """All others share a write, whether they expect something or not."""
    store = RecordingStore()
    commits = GroupCommit(store)
    for transaction in (earlier, later):
        nursery.start_soon(_commit_or_be_refused, commits, transaction)
        await wait_all_tasks_blocked()
    nursery.start_soon(commits.run)
    await wait_all_tasks_blocked()
    assert store.batches == ([[earlier, later]] if shares else [[earlier], [later]])


async def _commit_or_be_refused(store: GroupCommit, transaction: Transaction) -> None:
    with suppress(PreconditionFailed):
        await store.commit(transaction)
