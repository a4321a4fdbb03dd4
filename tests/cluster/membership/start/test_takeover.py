"""What a start takes over from the bucket, and what a checkpoint may claim. See also tests/test_durability_modes.py."""

from __future__ import annotations

from contextlib import suppress

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.cluster.membership.records import UNSETTLED_MAX_COUNT
from kafscale.cluster.membership.start.claim import TAKEOVER_WAIT_SECONDS, WATCH_SECONDS, claim_key
from kafscale.cluster.membership.start.member import LoneMember
from kafscale.cluster.membership.start.takeover import take_lead
from kafscale.cluster.metadata.base import Transaction
from kafscale.config import Durability
from kafscale.errors import DamagedObject, Fenced
from kafscale.formats.wal_objects import WalPosition
from kafscale.store.base import ObjectStore
from kafscale.store.memory import MemoryStore
from kafscale.store.opening.views import StoreViews
from kafscale.store.paths import NumberedKey
from kafscale.testing.faulty_store import FaultyStore, On, StoreCall
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.fakes.memory_broker import memory_settings

MODES = list(Durability)


async def lead_of(store: ObjectStore, durability: Durability, local: MemoryMetadataStore | None = None) -> LoneMember:
    settings = memory_settings(durability=durability)
    return await take_lead(settings, StoreViews.alike(store), local or MemoryMetadataStore())


async def committed(store: ObjectStore, durability: Durability, *keys: str) -> None:
    """A life in which these keys were put, ended by a crash that takes the disk along."""
    lead = await lead_of(store, durability)
    async with trio.open_nursery() as nursery:
        await nursery.start(lead.run)
        for key in keys:
            await lead.metadata.commit(Transaction(puts={key: b"1"}))
        nursery.cancel_scope.cancel()


async def keys_of(lead: LoneMember) -> list[str]:
    return [entry.key for entry in await lead.metadata.list("topics/")]


async def checkpoints(store: ObjectStore) -> list[str]:
    return [info.key async for page in store.list("_kafscale/default/checkpoint/") for info in page]


async def test_a_checkpoint_position_stops_at_the_last_applied_transaction(autojump_clock) -> None:
    local = MemoryMetadataStore()
    lead = await lead_of(MemoryStore(), Durability.SEGMENT, local)
    async with trio.open_nursery() as nursery:
        await nursery.start(lead.run)
        local.gate = trio.Event()
        nursery.start_soon(lead.metadata.commit, Transaction(puts={"topics/a": b""}))
        await wait_all_tasks_blocked()
        assert lead.journal is not None
        assert lead.journal.durable_position == WalPosition(0, 1)
        assert lead.checkpointer.position() == WalPosition(0, 0)
        local.gate.set()
        await wait_all_tasks_blocked()
        assert lead.checkpointer.position() == WalPosition(0, 1)
        nursery.cancel_scope.cancel()


async def test_a_start_with_a_damaged_checkpoint_restores_all_from_the_one_before(autojump_clock) -> None:
    store = MemoryStore()
    await committed(store, Durability.SEGMENT, "topics/a")
    await committed(store, Durability.SEGMENT, "topics/b")
    assert await keys_of(await lead_of(store, Durability.SEGMENT)) == ["topics/a", "topics/b"]
    newest = (await checkpoints(store))[-1]
    await store.put(newest, [b"damaged"])
    assert await keys_of(await lead_of(store, Durability.SEGMENT)) == ["topics/a", "topics/b"]


@pytest.mark.parametrize("durability", MODES)
async def test_an_empty_disk_does_not_start_without_any_intact_checkpoint(autojump_clock, durability) -> None:
    store = MemoryStore()
    local = MemoryMetadataStore()
    await lead_of(store, durability, local)
    for key in await checkpoints(store):
        await store.put(key, [b"damaged"])
    with pytest.raises(DamagedObject, match="checkpoint"):
        await lead_of(store, durability)
    await lead_of(store, durability, local)  # a data directory that has it all does


async def test_locally_durable_metadata_is_uploaded_before_another_mode_acknowledges(autojump_clock) -> None:
    store, local = MemoryStore(), MemoryMetadataStore()
    lead = await lead_of(store, Durability.WAL, local)
    async with trio.open_nursery() as nursery:
        await nursery.start(lead.run)
        await lead.metadata.commit(Transaction(puts={"topics/a": b""}))
        nursery.cancel_scope.cancel()
    await lead_of(store, Durability.S3_WAL, local)
    assert await keys_of(await lead_of(store, Durability.S3_WAL)) == ["topics/a"]


async def test_epochs_go_on_when_the_claim_is_lost(autojump_clock) -> None:
    store = MemoryStore()
    for epoch in range(3):
        assert (await lead_of(store, Durability.SEGMENT)).epoch == epoch
    await store.delete(["_kafscale/default/epoch"])
    assert (await lead_of(store, Durability.SEGMENT)).epoch == 3


async def test_background_work_that_holds_all_its_places_does_not_hide_a_newer_broker(autojump_clock) -> None:
    """The claim was looked at in the background class: behind a merge that hangs, the broker went on acknowledging."""
    store = MemoryStore()
    background = FaultyStore(store)
    views = attrs.evolve(StoreViews.alike(store), background=background)
    lead = await take_lead(memory_settings(), views, MemoryMetadataStore())
    background.hold(On("*"))
    async with trio.open_nursery() as nursery:
        await nursery.start(watched, lead)
        await lead_of(store, Durability.WAL)


async def watched(lead: LoneMember, *, task_status: trio.TaskStatus[None]) -> None:
    with pytest.raises(Fenced, match="has taken over"), trio.fail_after(WATCH_SECONDS * 2):
        await lead.run(task_status=task_status)


@pytest.mark.parametrize("durability", [Durability.S3_WAL, Durability.SEGMENT])
async def test_a_start_succeeds_although_the_older_broker_trims_its_log(autojump_clock, durability) -> None:
    """It failed with NotFound: what it had listed was in a checkpoint that came after the one it had read."""
    bucket = MemoryStore()
    older = await lead_of(bucket, durability)
    keys = [f"topics/{number}" for number in range(5)]
    store = FaultyStore(bucket)

    async def trim(call: StoreCall) -> None:
        with suppress(Fenced):  # as its claim is no longer looked at by an older version
            await older.checkpointer.write()
        numbers = [NumberedKey(kind="wal", epoch=0, number=number).key for number in range(1, len(keys))]
        await bucket.delete(numbers)

    store.rule(On("list", "_kafscale/default/wal/", times=1), trim, after_effect=True)
    async with trio.open_nursery() as nursery:
        await nursery.start(older.run)
        for key in keys:
            await older.metadata.commit(Transaction(puts={key: b"1"}))
        newer = await lead_of(store, durability)
        nursery.cancel_scope.cancel()
    assert await keys_of(newer) == keys


async def start_seconds(store: ObjectStore, durability: Durability, local: MemoryMetadataStore) -> float:
    began = trio.current_time()
    await lead_of(store, durability, local)
    return trio.current_time() - began


async def crashed_while_waiting(store: ObjectStore, durability: Durability, local: MemoryMetadataStore) -> None:
    with trio.move_on_after(TAKEOVER_WAIT_SECONDS / 2) as crash:
        await lead_of(store, durability, local)
    assert crash.cancelled_caught


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("crashes_count", [1, 3, 2 * UNSETTLED_MAX_COUNT])
async def test_a_broker_that_crashes_during_the_takeover_wait_waits_again(
    autojump_clock, durability, crashes_count
) -> None:
    """Its claim was in the place of the older broker's, so the next start knew of nobody to wait for."""
    store, older, local = MemoryStore(), MemoryMetadataStore(), MemoryMetadataStore()
    await lead_of(store, Durability.WAL, older)
    for _ in range(crashes_count):
        await crashed_while_waiting(store, durability, local if crashes_count == 1 else MemoryMetadataStore())
    assert await start_seconds(store, durability, local) == TAKEOVER_WAIT_SECONDS
    assert await start_seconds(store, durability, local) == 0.0


async def test_the_directory_that_was_waited_for_does_not_wait_for_itself(autojump_clock) -> None:
    store, older = MemoryStore(), MemoryMetadataStore()
    await lead_of(store, Durability.WAL, older)
    await crashed_while_waiting(store, Durability.S3_WAL, MemoryMetadataStore())
    assert await start_seconds(store, Durability.WAL, older) == 0.0


async def test_a_start_waits_for_the_holder_of_a_lost_claim(autojump_clock) -> None:
    store = MemoryStore()
    await lead_of(store, Durability.WAL)
    await store.delete([claim_key("default")])
    assert await start_seconds(store, Durability.WAL, MemoryMetadataStore()) == TAKEOVER_WAIT_SECONDS
