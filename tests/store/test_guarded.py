"""What a deletion waits for, and what it costs."""

from __future__ import annotations

import attrs
import pytest
import trio

from kafscale.errors import DamagedObject, Fenced, StoreError, StoreUnavailable
from kafscale.store.guarded import DeletionGuard, GuardedStore, guarded
from kafscale.store.memory import MemoryStore
from kafscale.store.opening.views import StoreViews
from kafscale.testing.faulty_store import FaultyStore, On

KEYS = ["a", "b", "c"]


@attrs.define(eq=False)
class Cluster:
    """What a guard asks, each question noted in order; `failure` is the answer to the one about the lead."""

    changes_count: int = 0
    failure: Exception | None = None
    asked: list[str] = attrs.field(factory=list)

    def guard(self) -> DeletionGuard:
        return DeletionGuard(confirm_lead=self.confirm_lead, decided=lambda: self.changes_count, publish=self.publish)

    async def confirm_lead(self) -> None:
        await trio.lowlevel.checkpoint()
        self.asked.append("lead")
        if self.failure is not None:
            raise self.failure

    async def publish(self, decided: int) -> None:
        await trio.lowlevel.checkpoint()
        self.asked.append(f"publish {decided}")


async def bucket() -> FaultyStore:
    store = FaultyStore(MemoryStore())
    for key in KEYS:
        await store.put(key, [b""])
    return store


async def keys(store: FaultyStore) -> list[str]:
    return [info.key async for page in store.list("") for info in page]


async def test_changes_are_published_and_leadership_confirmed_before_a_deletion() -> None:
    cluster, store = Cluster(changes_count=7), await bucket()

    async def note(call) -> None:
        cluster.asked.append("delete")

    store.rule(On("delete"), note)
    await GuardedStore(store, cluster.guard()).delete(["a"])
    assert cluster.asked == ["publish 7", "lead", "delete"]


async def test_one_look_is_for_a_whole_batch() -> None:
    cluster, store = Cluster(), await bucket()
    ours = GuardedStore(store, cluster.guard())
    decided = ours.decided()
    cluster.changes_count += 1
    await ours.delete_in_turn([[key] for key in KEYS], decided)
    assert cluster.asked == ["publish 0", "lead"]
    assert [call.keys for call in store.calls if call.operation == "delete"] == [("a",), ("b",), ("c",)]


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(Fenced("x"), Fenced), (StoreUnavailable("x"), StoreUnavailable), (DamagedObject("x"), StoreError)],
)
async def test_a_broker_that_cannot_confirm_its_lead_deletes_nothing(
    failure: Exception, raised: type[Exception]
) -> None:
    cluster, store = Cluster(failure=failure), await bucket()
    ours = GuardedStore(store, cluster.guard())
    with pytest.raises(raised):
        await ours.delete(KEYS)
    with pytest.raises(raised):
        await ours.delete_in_turn([KEYS])
    assert await keys(store) == KEYS


async def test_each_view_has_the_guard_and_a_store_has_one_only_once() -> None:
    cluster, store = Cluster(failure=Fenced("x")), await bucket()
    views = StoreViews.alike(store).guarded(cluster.guard())
    for view in (views.acknowledge, views.fetch, views.background):
        assert guarded(view) is view
        with pytest.raises(Fenced):
            await view.delete(KEYS)
    await guarded(store).delete(["b"])
    assert await keys(store) == ["a", "c"]
