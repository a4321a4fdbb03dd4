from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.cluster.metadata import write_queue
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.write_queue import WriteQueue
from kafscale.errors import StorageFailed, StoreUnavailable
from kafscale.testing.metadata import MemoryMetadataStore


async def test_what_comes_together_is_one_transaction_and_later_changes_of_a_key_win(
    nursery: trio.Nursery,
) -> None:
    store = MemoryMetadataStore()
    queue = WriteQueue(store)
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
    queue = WriteQueue(store)
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
    queue = WriteQueue(store)
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
    monkeypatch.setattr(write_queue, "TRANSACTION_TARGET_COUNT", 3)
    store = MemoryMetadataStore()
    queue = WriteQueue(store)
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
    queue = WriteQueue(store)
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
    queue = WriteQueue(store)
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
    queue = WriteQueue(store)
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
