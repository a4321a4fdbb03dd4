from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import trio

from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.registries.producer_ids import (
    BLOCK_COUNT,
    IDS_PER_EPOCH,
    NEXT_BLOCK_KEY,
    RANDOM_NUMBERS_COUNT,
    ProducerIds,
)
from kafscale.errors import KafkaError
from kafscale.store.paths import EPOCH_MAX
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import COORDINATOR_NOT_AVAILABLE
from tests.cluster.late_metadata import LateMetadataStore, compete


async def begun(
    store: MemoryMetadataStore | None = None, epoch: int = 0, known_ids: Sequence[int] = (), **first_number: int
) -> ProducerIds:
    first_number.setdefault("first_number", 0)
    producer_ids = ProducerIds(store or MemoryMetadataStore(), epoch, lambda: known_ids, **first_number)
    await producer_ids.begin()
    return producer_ids


async def allocated(producer_ids: ProducerIds, count: int) -> list[int]:
    return [await producer_ids.allocate() for _ in range(count)]


async def of_an_earlier_version(next_block: int) -> MemoryMetadataStore:
    store = MemoryMetadataStore()
    await store.commit(Transaction(puts={NEXT_BLOCK_KEY: encode(next_block)}))
    return store


async def test_ids_grow_from_zero_and_one_commit_reserves_a_thousand() -> None:
    store = MemoryMetadataStore()
    producer_ids = await begun(store)
    assert await allocated(producer_ids, BLOCK_COUNT) == list(range(BLOCK_COUNT))
    assert len(store.commits) == 1
    assert await producer_ids.allocate() == BLOCK_COUNT
    assert len(store.commits) == 2


async def test_no_id_is_handed_out_twice_over_a_restart() -> None:
    store = MemoryMetadataStore()
    ids = {each for epoch in range(3) for each in await allocated(await begun(store, epoch), 3)}
    assert len(ids) == 9


async def test_no_id_is_handed_out_twice_where_the_metadata_is_lost() -> None:
    """Blocks that were reserved after the last checkpoint were reserved again by who began with that."""
    older, newer = await begun(MemoryMetadataStore(), 3), await begun(MemoryMetadataStore(), 4)
    before = await allocated(older, BLOCK_COUNT + 1)
    after = await allocated(newer, BLOCK_COUNT + 1)
    assert not {*before, *after} & {*await allocated(older, BLOCK_COUNT)}  # which goes on: it was suspended
    assert not {*before} & {*after}


async def test_the_ids_of_the_last_epoch_that_there_can_be_are_not_negative() -> None:
    producer_ids = await begun(epoch=EPOCH_MAX)
    assert await producer_ids.allocate() + IDS_PER_EPOCH == 1 << 63


async def test_allocation_continues_after_ids_of_an_earlier_version() -> None:
    assert await (await begun(await of_an_earlier_version(5000))).allocate() == 5000
    assert await (await begun(await of_an_earlier_version(5000), 1)).allocate() == IDS_PER_EPOCH
    far = 7 * IDS_PER_EPOCH + 17  # behind an id that a client had made up
    for epoch, expected in ((6, 6 * IDS_PER_EPOCH), (7, far), (8, 8 * IDS_PER_EPOCH)):
        assert await (await begun(await of_an_earlier_version(far), epoch)).allocate() == expected


async def test_many_that_ask_at_once_get_different_ids() -> None:
    producer_ids = await begun()
    ids: list[int] = []

    async def allocate() -> None:
        ids.append(await producer_ids.allocate())

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(allocate)
    assert sorted(ids) == list(range(50))


async def test_an_id_is_not_handed_out_before_its_block_is_durable() -> None:
    store = MemoryMetadataStore()
    producer_ids = await begun(store)
    store.gate = trio.Event()
    with trio.CancelScope() as scope:
        scope.cancel()
        await producer_ids.allocate()
    assert scope.cancelled_caught
    store.gate = None
    assert await producer_ids.allocate() == 0


async def test_ids_that_the_log_remembers_are_not_handed_out() -> None:
    store = MemoryMetadataStore()
    known_ids = [0, 1, 3, 999]
    producer_ids = await begun(store, 0, known_ids)
    assert store.commits == []
    assert await allocated(producer_ids, 996) == [each for each in range(BLOCK_COUNT) if each not in known_ids]
    known_ids += [1000, 1002, IDS_PER_EPOCH]  # taken meanwhile
    assert await allocated(producer_ids, 2) == [1001, 1003]


async def test_ids_that_a_client_made_up_do_not_use_up_all_that_there_are() -> None:
    producer_ids = await begun(known_ids=[2**63 - 1, 5, IDS_PER_EPOCH - 1, 2**62])
    assert await allocated(producer_ids, 6) == [0, 1, 2, 3, 4, 6]


async def test_an_exhausted_epoch_hands_out_no_ids_of_the_next() -> None:
    producer_ids = await begun(await of_an_earlier_version(IDS_PER_EPOCH - BLOCK_COUNT - 1))
    assert (await allocated(producer_ids, BLOCK_COUNT + 1))[-1] == IDS_PER_EPOCH - 1
    with pytest.raises(KafkaError) as caught:
        await producer_ids.allocate()
    assert caught.value.code == COORDINATOR_NOT_AVAILABLE


async def test_a_cluster_that_was_lost_and_its_successor_hand_out_different_ids() -> None:
    """Both count their epochs from 0, and producers of the first go on at the second."""
    ids: set[int] = set()
    for life in range(20):
        random.seed(life)
        producer_ids = ProducerIds(MemoryMetadataStore())
        await producer_ids.begin()
        ids |= {*await allocated(producer_ids, BLOCK_COUNT + 1)}
    assert len(ids) == 20 * (BLOCK_COUNT + 1)
    assert max(ids) < RANDOM_NUMBERS_COUNT + 2 * BLOCK_COUNT < IDS_PER_EPOCH // 2


async def test_ids_of_the_block_are_withheld_until_they_are_handed_out() -> None:
    producer_ids = await begun(known_ids=[3], first_number=0)
    assert not producer_ids.is_withheld(0)  # no block is reserved yet
    assert await producer_ids.allocate() == 0
    withheld = [each for each in range(-1, BLOCK_COUNT + 2) if producer_ids.is_withheld(each)]
    assert withheld == [1, 2, *range(4, BLOCK_COUNT)]
    assert not producer_ids.is_withheld(IDS_PER_EPOCH + 1)


async def test_two_that_were_given_the_same_epoch_hand_out_different_ids() -> None:
    """The second one overwrote the block that the first had reserved, and handed out the same ids."""
    store = LateMetadataStore()
    one, other = await begun(store, 3), await begun(store, 3)
    ids: list[int] = []

    async def allocate(producer_ids: ProducerIds) -> None:
        ids.extend(await allocated(producer_ids, BLOCK_COUNT))

    await compete(store, lambda: allocate(one), lambda: allocate(other))
    await compete(store, lambda: allocate(one), lambda: allocate(other))
    assert len(set(ids)) == len(ids) == 4 * BLOCK_COUNT


async def test_unreadable_records_of_a_later_version_do_not_stop_allocation() -> None:
    store = MemoryMetadataStore()
    producer_ids = await begun(store, 3)
    await store.commit(Transaction(puts={NEXT_BLOCK_KEY: b'{"next":1}', "producer-ids/ends/0000000001": b"[]"}))
    await store.commit(Transaction(puts={"producer-ids/uncertain/0000000002": encode(3)}))  # of an earlier version
    assert await producer_ids.allocate() == 3 * IDS_PER_EPOCH
