from __future__ import annotations

import trio

from kafscale.cluster.producers import BLOCK_COUNT, ProducerIds
from kafscale.testing.metadata import MemoryMetadataStore


async def test_ids_grow_from_zero_and_one_commit_reserves_a_thousand() -> None:
    store = MemoryMetadataStore()
    producer_ids = ProducerIds(store)
    assert [await producer_ids.allocate() for _ in range(BLOCK_COUNT)] == list(range(BLOCK_COUNT))
    assert len(store.commits) == 1
    assert await producer_ids.allocate() == BLOCK_COUNT
    assert len(store.commits) == 2


async def test_no_id_is_handed_out_twice_over_a_restart() -> None:
    store = MemoryMetadataStore()
    before = {await ProducerIds(store).allocate() for _ in range(3)}
    assert len(before) == 3


async def test_two_brokers_never_hand_out_the_same_id() -> None:
    store = MemoryMetadataStore()
    ids: list[int] = []

    async def allocate(producer_ids: ProducerIds) -> None:
        for _ in range(BLOCK_COUNT + 1):
            ids.append(await producer_ids.allocate())

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(allocate, ProducerIds(store))
    assert len(set(ids)) == len(ids)


async def test_many_that_ask_at_once_get_different_ids() -> None:
    producer_ids = ProducerIds(MemoryMetadataStore())
    ids: list[int] = []

    async def allocate() -> None:
        ids.append(await producer_ids.allocate())

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(allocate)
    assert sorted(ids) == list(range(50))


async def test_an_id_is_not_handed_out_before_its_block_is_durable() -> None:
    store = MemoryMetadataStore(gate=trio.Event())
    producer_ids = ProducerIds(store)
    with trio.CancelScope() as scope:
        scope.cancel()
        await producer_ids.allocate()
    assert scope.cancelled_caught
    store.gate = None
    assert await producer_ids.allocate() == 0


async def test_ids_that_the_log_remembers_are_not_handed_out() -> None:
    store = MemoryMetadataStore()
    await ProducerIds(store).begin_behind([])
    assert store.commits == []
    producer_ids = ProducerIds(store)
    await producer_ids.begin_behind([3, 2500, 7])
    assert await producer_ids.allocate() == 2501
    before = len(store.commits)
    await ProducerIds(store).begin_behind([2500, 2600])  # behind the block that is reserved already
    assert len(store.commits) == before


async def test_ids_that_a_client_made_up_do_not_use_up_all_that_there_are() -> None:
    producer_ids = ProducerIds(MemoryMetadataStore())
    await producer_ids.begin_behind([2**63 - 1, 5])
    assert await producer_ids.allocate() == 6
