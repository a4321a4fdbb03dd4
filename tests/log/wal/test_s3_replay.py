"""Taking over the log in the bucket: what counts, what is discarded, what is damage, and who is fenced."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.errors import DamagedObject, Fenced, StorageFailed
from kafscale.formats.wal_entries import METADATA, WalEntry
from kafscale.formats.wal_objects import START, WalPosition, decode_header
from kafscale.log.wal import s3_replay
from kafscale.log.wal.s3_replay import READS_AT_ONCE_COUNT, _Epoch, take_over
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import NumberedKey
from kafscale.testing.faulty_store import FaultyStore, On

PUT = "put_if_absent"


def key(number: int, *, epoch: int = 0) -> str:
    return NumberedKey(kind="wal", epoch=epoch, number=number).key


async def keys(store) -> list[str]:
    return [info.key async for page in store.list("") for info in page]


async def start(store, nursery, *, epoch: int) -> S3Wal:
    wal = S3Wal(store=store, namespace="default", epoch=epoch, object_bytes=1)
    await nursery.start(wal.run)
    return wal


def append(wal: S3Wal, offset: int, *, kind: int = 0):
    return wal.append(WalEntry(bytes(16), 0, wal.epoch, offset, b"data", kind=kind))


async def written(store, offsets, *, epoch: int = 0) -> None:
    """An object for each offset, written one after the other, and then a crash."""
    async with trio.open_nursery() as nursery:
        wal = await start(store, nursery, epoch=epoch)
        for offset in offsets:
            await append(wal, offset).wait()
        nursery.cancel_scope.cancel()


async def written_at_once(store, offsets, *, lost: int, epoch: int = 0) -> None:
    """All objects under way together, and a crash before that of number `lost` arrives."""
    faulty = FaultyStore(store)
    faulty.hold(On(PUT, f"*{lost:020d}.wal"))
    async with trio.open_nursery() as nursery:
        wal = await start(faulty, nursery, epoch=epoch)
        for offset in offsets:
            append(wal, offset)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def taken_over(
    store, epoch: int, *, kept_until: WalPosition = START, after: WalPosition = START, needed_from: int = 0
) -> list[int]:
    offsets: list[int] = []

    def handle(entry: WalEntry) -> bool:
        offsets.append(entry.base_offset)
        return entry.base_offset >= needed_from

    earlier = await take_over(store, "default", epoch, kept_until=kept_until)
    await earlier.replay(handle, after=after)
    return offsets


async def test_an_empty_bucket_has_no_log():
    store = MemoryStore()
    assert await taken_over(store, 0) == []
    assert await keys(store) == []


async def test_progress_is_reported_after_each_group_of_objects(autojump_clock):
    store = MemoryStore()
    await written(store, range(READS_AT_ONCE_COUNT + 2))
    progress: list[int] = []
    earlier = await take_over(store, "default", 1, kept_until=START)
    await S3Wal(store=store, namespace="default", epoch=1, earlier=earlier).replay(
        lambda entry: False, on_progress=progress.append
    )
    assert progress == [READS_AT_ONCE_COUNT, READS_AT_ONCE_COUNT + 2]


async def test_entries_come_in_order_over_epochs():
    store = MemoryStore()
    await written(store, range(20))
    assert await taken_over(store, 1) == list(range(20))
    await written(store, range(20, 25), epoch=1)
    assert await taken_over(store, 2) == list(range(25))
    assert await taken_over(store, 3, after=WalPosition(0, 15)) == list(range(15, 25))
    assert await taken_over(store, 4, after=WalPosition(1, 2)) == [22, 23, 24]


async def test_each_earlier_epoch_ends_in_a_fence_of_the_new_owner():
    store = MemoryStore()
    await written(store, range(2))
    await taken_over(store, 3)
    fences = [key(3), key(1, epoch=1), key(1, epoch=2)]
    assert set(await keys(store)) == {key(1), key(2), *fences}
    assert {decode_header(each, (await store.get(each)).data).epoch for each in fences} == {3}


async def test_unacknowledged_objects_behind_a_gap_are_deleted():
    store = MemoryStore()
    await written_at_once(store, range(5), lost=3)
    assert await keys(store) == [key(1), key(2), key(4)]
    assert await taken_over(store, 1) == [0, 1]
    assert await keys(store) == [key(1), key(2), key(3)]
    assert decode_header(key(3), (await store.get(key(3))).data).is_fence
    assert await taken_over(store, 2) == [0, 1]


@pytest.mark.parametrize("missing", range(1, 5))
async def test_a_gap_before_an_acknowledged_object_is_damage_and_names_its_key(missing):
    store = MemoryStore()
    await written(store, range(5))
    await store.delete([key(missing)])
    with pytest.raises(DamagedObject, match=key(missing)):
        await taken_over(store, 1)
    assert len(await keys(store)) == 4  # so that the object can be put back


async def test_a_gap_at_the_front_is_not_damage_if_a_checkpoint_covers_the_gap():
    store = MemoryStore()
    await written(store, range(5))
    await store.delete([key(1), key(2)])
    with pytest.raises(DamagedObject, match=key(2)):
        await taken_over(store, 1, kept_until=WalPosition(0, 1))
    assert await taken_over(store, 1, kept_until=WalPosition(0, 2)) == [2, 3, 4]
    assert await taken_over(store, 2, kept_until=WalPosition(1, 0)) == [2, 3, 4]


@pytest.mark.parametrize("deleted", [[1, 2, 3], [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("late", [[2], [1, 3], [2, 3]])
async def test_a_late_fence_at_the_number_of_a_deleted_object_is_a_leftover(deleted, late):
    store = MemoryStore()
    await written(store, range(5))
    fences = FaultyStore(store)
    gate = fences.hold(On(PUT))
    async with trio.open_nursery() as nursery:
        for number in late:
            epoch = _Epoch(fences, "default", 0, taken_by=1, fence_epoch=1)
            nursery.start_soon(epoch._fence, number)
        await gate.wait_arrived(len(late))
        await taken_over(store, 2)
        await store.delete([key(number) for number in deleted])
        gate.open()
    kept = WalPosition(2, 0)
    assert await taken_over(store, 3, kept_until=kept) == list(range(len(deleted), 5))
    assert [each for each in await keys(store) if each in map(key, range(1, 7))] == [
        key(number) for number in range(1, 7) if number not in deleted
    ]


@pytest.mark.parametrize("late", [[1], [2], [1, 3], [3]])
@pytest.mark.parametrize("kept", [WalPosition(0, 5), WalPosition(0, 6), WalPosition(2, 0)])
async def test_a_late_object_from_the_deleted_part_of_the_log_does_not_block_a_start(late, kept):
    store = MemoryStore()
    await written(store, range(8))
    contents = {number: (await store.get(key(number))).data for number in late}
    if kept.epoch:
        await taken_over(store, kept.epoch)
    await store.delete([key(number) for number in range(1, 6)])
    for number, content in contents.items():
        await store.put_if_absent(key(number), [content])
    expected = [*(number - 1 for number in late), 5, 6, 7]
    assert await taken_over(store, 3, kept_until=kept, needed_from=5) == expected
    assert await taken_over(store, 4, kept_until=kept, needed_from=5) == expected
    assert decode_header(key(9), (await store.get(key(9))).data).is_fence


async def test_a_late_object_does_not_hide_the_last_object_of_the_log():
    """Written when the late one was not acknowledged yet, so it does not prove that anything is missing."""
    store = MemoryStore()
    faulty = FaultyStore(store)
    gate = faulty.hold(On(PUT, f"*{2:020d}.wal"))
    async with trio.open_nursery() as nursery:
        wal = await start(faulty, nursery, epoch=0)
        rounds = [append(wal, offset) for offset in range(5)]
        await wait_all_tasks_blocked()
        gate.open()
        await rounds[-1].wait()
        nursery.cancel_scope.cancel()
    late = (await store.get(key(2))).data
    await store.delete([key(number) for number in range(1, 5)])
    await store.put_if_absent(key(2), [late])
    assert await taken_over(store, 1, kept_until=WalPosition(0, 4), needed_from=4) == [1, 4]


async def test_a_fence_and_an_object_that_come_late_together_block_no_start():
    store = MemoryStore()
    await written(store, range(5))
    late = (await store.get(key(2))).data
    await taken_over(store, 1)
    await store.delete([key(number) for number in range(1, 5)])
    await store.put_if_absent(key(2), [late])
    await _Epoch(store, "default", 0, taken_by=1, fence_epoch=1)._fence(3)
    assert await taken_over(store, 2, kept_until=WalPosition(1, 0), needed_from=4) == [1, 4]
    assert [each for each in await keys(store) if "/0000000000/" in each] == [key(2), key(5), key(6)]


async def test_an_object_that_comes_late_is_deleted_in_its_turn(autojump_clock):
    store = MemoryStore()
    await written(store, range(5))
    late = (await store.get(key(2))).data
    await store.delete([key(number) for number in range(1, 5)])
    await store.put_if_absent(key(2), [late])
    async with trio.open_nursery() as nursery:
        earlier = await take_over(store, "default", 1, kept_until=WalPosition(0, 5))
        wal = S3Wal(store=store, namespace="default", epoch=1, earlier=earlier)
        await wal.replay(lambda entry: entry.base_offset >= 4)
        await nursery.start(wal.run)
        wal.trim(WalPosition(0, 5))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await keys(store) == [key(5), key(6)]


async def test_a_gap_covered_by_a_checkpoint_is_damage_if_an_earlier_entry_is_needed():
    store = MemoryStore()
    await written(store, range(5))
    await store.delete([key(3)])
    earlier = await take_over(store, "default", 1, kept_until=WalPosition(0, 5))
    with pytest.raises(DamagedObject, match=key(3)):
        await earlier.replay(lambda entry: entry.base_offset == 0)
    assert [each.name for each in await earlier.replay(lambda entry: entry.base_offset > 2)] == [
        key(number) for number in (1, 2, 4, 5)
    ]


async def test_an_epoch_that_had_objects_has_one_left():
    store = MemoryStore()
    await written(store, range(3))
    await store.delete([key(1), key(2), key(3)])
    with pytest.raises(DamagedObject, match=key(3)):
        await taken_over(store, 1, kept_until=WalPosition(0, 2))


@pytest.mark.parametrize("length", [0, 59, 60, 61, 90])
async def test_a_torn_object_is_an_error_that_names_the_key(length):
    store = MemoryStore()
    await written(store, range(3))
    content = bytes((await store.get(key(3))).data)
    await store.put(key(3), [content[:length]])
    with pytest.raises(DamagedObject, match=key(3)):
        await taken_over(store, 1)


async def test_an_object_of_another_place_is_an_error():
    store = MemoryStore()
    await written(store, range(3))
    await store.put(key(3), [(await store.get(key(2))).data])
    with pytest.raises(DamagedObject, match=key(3)):
        await taken_over(store, 1)


async def run_until_fenced(wal: S3Wal, *, task_status) -> None:
    with pytest.raises(Fenced, match=f"epoch {wal.epoch}"):
        await wal.run(task_status=task_status)


async def test_a_broker_that_comes_too_late_with_its_object_is_fenced(autojump_clock):
    store = FaultyStore(MemoryStore())
    late = store.hold(On(PUT, f"*{2:020d}.wal", times=1))
    async with trio.open_nursery() as nursery:
        wal = S3Wal(store=store, namespace="default", epoch=0, object_bytes=1)
        await nursery.start(run_until_fenced, wal)
        rounds = [append(wal, offset) for offset in range(4)]
        await rounds[0].wait()
        await late.wait_arrived()
        assert await taken_over(store, 1) == [0]
        late.open()
    assert [round.done for round in rounds] == [True, False, False, False]


async def test_an_object_that_arrives_before_the_fence_is_part_of_the_log(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    gate = store.hold(On(PUT, f"*{2:020d}.wal", times=1))
    wal = await start(store, nursery, epoch=0)
    rounds = [append(wal, offset) for offset in range(3)]
    await gate.wait_arrived()
    fence = store.hold(On(PUT, f"*{2:020d}.wal", times=1))
    found: list[int] = []

    async def take() -> None:
        found.extend(await taken_over(store, 1))

    nursery.start_soon(take)
    await fence.wait_arrived()
    gate.open()
    await rounds[2].wait()
    fence.open()
    await wait_all_tasks_blocked()
    assert found == [0, 1, 2]


async def test_a_broker_that_was_suspended_until_all_was_deleted_meets_its_fence(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with trio.open_nursery() as nursery:
        old = S3Wal(store=store, namespace="default", epoch=0)
        await nursery.start(run_until_fenced, old)
        await append(old, 0).wait()
        late = store.hold(On(PUT, f"*{2:020d}.wal", times=1))
        round = append(old, 1)
        await late.wait_arrived()
        earlier = await take_over(store, "default", 1, kept_until=START)
        new = S3Wal(store=store, namespace="default", epoch=1, earlier=earlier)
        await new.replay(lambda entry: False)
        await nursery.start(new.run)
        await append(new, 1).wait()
        new.trim(WalPosition(1, 0))
        await wait_all_tasks_blocked()
        assert await keys(store) == [key(2), key(1, epoch=1)]
        late.open()
        with pytest.raises(StorageFailed):
            await round.wait()
        nursery.cancel_scope.cancel()
    assert not round.done


async def test_a_start_that_is_overtaken_by_another_gives_way():
    store = MemoryStore()
    await written(store, range(2))
    await taken_over(store, 2)
    with pytest.raises(Fenced, match="epoch 2"):
        await taken_over(store, 1)


async def test_fences_of_long_ago_are_removed(monkeypatch):
    monkeypatch.setattr(s3_replay, "FENCES_KEPT_COUNT", 3)
    store = MemoryStore()
    for epoch in range(1, 8):
        await taken_over(store, epoch, kept_until=WalPosition(epoch - 1, 0))
    assert await keys(store) == [key(1, epoch=epoch) for epoch in (4, 5, 6)]


async def test_only_records_that_are_needed_are_pending(autojump_clock):
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        wal = S3Wal(store=store, namespace="default", epoch=0)
        await nursery.start(wal.run)
        append(wal, 0, kind=METADATA)
        append(wal, 1)
        await append(wal, 2).wait()
        nursery.cancel_scope.cancel()
    earlier = await take_over(store, "default", 1, kept_until=START)
    (found,) = await earlier.replay(lambda entry: entry.base_offset != 1)
    assert (found.name, found.pending_count, found.position) == (key(1), 1, WalPosition(0, 1))


@pytest.mark.parametrize("trimmed", [[1], [1, 2], [3], [1, 2, 3, 4, 5]])
async def test_an_object_trimmed_after_listing_is_not_damage(trimmed):
    """The broker before had decided to delete it while it led: all in it is in segments and in a checkpoint."""
    store = FaultyStore(MemoryStore())
    await written(store, range(6))

    async def trim(call) -> None:
        await store.store.delete([key(number) for number in trimmed])

    store.rule(On("list", times=1), trim, after_effect=True)
    left = [number - 1 for number in range(1, 7) if number not in trimmed]
    assert await taken_over(store, 1, kept_until=WalPosition(0, 5), needed_from=9) == left


@pytest.mark.parametrize("late", [1, 3, 5])
async def test_an_object_that_arrives_behind_the_listing_is_not_damage(late):
    """The broker before went on: what it wrote next told that this one had been acknowledged, and was listed."""
    store = FaultyStore(MemoryStore())
    await written(store, range(6))
    content = (await store.store.get(key(late))).data
    await store.store.delete([key(late)])

    async def arrive(call) -> None:
        await store.store.put_if_absent(key(late), [content])

    store.rule(On("list", times=1), arrive, after_effect=True)
    assert await taken_over(store, 1) == list(range(6))


async def test_an_object_that_goes_and_is_needed_is_damage():
    store = FaultyStore(MemoryStore())
    await written(store, range(6))

    async def lose(call) -> None:
        await store.store.delete([key(3)])

    store.rule(On("list", times=1), lose, after_effect=True)
    with pytest.raises(DamagedObject, match=key(3)):
        await taken_over(store, 1, kept_until=WalPosition(0, 5))
