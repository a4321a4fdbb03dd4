"""Streams: where they end, what of them is read in which order, and what is deleted of them when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.errors import Fenced, StorageFailed, StoreError
from kafscale.formats.manifest import PartitionId
from kafscale.formats.wal_entries import WalEntry
from kafscale.formats.wal_objects import HEADER_BYTES
from kafscale.formats.wal_runs import list_log, wal_key
from kafscale.log.wal import streams
from kafscale.log.wal.s3_replay import end_stream
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import Streams, delete_unneeded, passes
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import DeletionGuard, GuardedStore
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On

STREAM = 7
TOPIC = bytes(16)


async def start(store: ObjectStore, nursery: trio.Nursery, *, stream: int = STREAM) -> S3Wal:
    """A stream of an object for each entry."""
    wal = S3Wal(store=store, namespace="default", epoch=stream, interval_seconds=0.0, object_bytes=1, is_stream=True)
    await nursery.start(wal.run)
    return wal


async def write(wal: S3Wal, offset: int, *, partition: int = 0) -> WalEntry:
    entry = WalEntry(TOPIC, partition, wal.epoch, offset, b"data")
    await wal.append(entry).wait()
    return entry


async def written(store: ObjectStore, offsets: Iterable[int], *, stream: int = STREAM, partition: int = 0) -> None:
    async with trio.open_nursery() as nursery:
        wal = await start(store, nursery, stream=stream)
        for offset in offsets:
            await write(wal, offset, partition=partition)
        nursery.cancel_scope.cancel()


async def left(store: ObjectStore, stream: int = STREAM) -> list[int]:
    return sorted((await list_log(store, "default")).get(stream, {}))


async def found(store: ObjectStore, *, taken_by: int = 9) -> list[int]:
    offsets: list[int] = []

    def handle(entry: WalEntry) -> bool:
        offsets.append(entry.base_offset)
        return True

    await (await end_stream(store, "default", STREAM, taken_by=taken_by)).replay(handle)
    return offsets


async def test_every_broker_that_ends_a_stream_finds_the_same_end(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    ended: list[Exception] = []
    async with trio.open_nursery() as nursery:
        wal = S3Wal(store=store, namespace="default", epoch=STREAM, is_stream=True)

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            try:
                await wal.run(task_status=task_status)
            except Fenced as exc:
                ended.append(exc)

        await nursery.start(run)
        await write(wal, 0)
        await write(wal, 1)
        for taken_by in (9, 5, 12):  # a survivor is older than the one that has failed
            assert await found(store, taken_by=taken_by) == [0, 1]
        try:
            await write(wal, 2)
        except StorageFailed as exc:
            ended.append(exc)
    assert len(ended) == 2
    assert await found(store) == [0, 1]


async def test_an_object_is_deleted_only_after_another_object_proves_its_acknowledgement(
    autojump_clock: MockClock,
) -> None:
    """Eight are on their way at once: none of them knows of the others. So nobody could tell a gap before the last."""
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        wal = await start(store, nursery)
        entries = [WalEntry(TOPIC, 0, STREAM, offset, b"data") for offset in range(4)]
        for round in [wal.append(entry) for entry in entries]:
            await round.wait()
        for entry in entries[:3]:
            assert entry.file is not None
            wal.release(entry.file)
        await trio.sleep(10.0)
        assert await left(store) == [1, 2, 3, 4]
        assert await found(store) == [0, 1, 2, 3]
        nursery.cancel_scope.cancel()


async def test_deleted_objects_are_not_taken_for_the_end(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        wal = await start(store, nursery)
        for offset in range(6):
            entry = await write(wal, offset)
            assert entry.file is not None
            if offset < 4:
                wal.release(entry.file)
        await trio.sleep(10.0)
        assert await left(store) == [5, 6]
        assert await found(store) == [4, 5]
        nursery.cancel_scope.cancel()


async def test_objects_behind_a_gap_are_ignored_and_a_late_fence_ends_nothing(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    faulty = FaultyStore(store)
    faulty.hold(On("put_if_absent", "*2.wal"))
    async with trio.open_nursery() as nursery:
        wal = await start(faulty, nursery)
        for offset in range(3):
            wal.append(WalEntry(TOPIC, 0, STREAM, offset, b"data"))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await left(store) == [1, 3]
    assert await found(store) == [0]
    assert await left(store) == [1, 2]
    fence = (await store.get(wal_key("default", STREAM, 2).key)).data

    other = MemoryStore()
    async with trio.open_nursery() as nursery:
        wal = await start(other, nursery)
        for offset in range(4):
            entry = await write(wal, offset)
            assert entry.file is not None
            if offset < 2:
                wal.release(entry.file)
        await trio.sleep(10.0)
        assert await left(other) == [3, 4]
        await other.put(wal_key("default", STREAM, 2).key, [bytes(fence)])  # of somebody who was suspended
        assert await found(other) == [2, 3]
        nursery.cancel_scope.cancel()


async def test_a_deletion_cut_short_by_a_crash_is_not_damage(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    await written(store, range(12))
    await store.delete([wal_key("default", STREAM, number).key for number in (1, 3, 4, 6)])
    offsets: list[int] = []

    def handle(entry: WalEntry) -> bool:
        offsets.append(entry.base_offset)
        return entry.base_offset >= 7  # what is below is in segments

    for _ in range(2):
        offsets.clear()
        await (await end_stream(store, "default", STREAM, taken_by=9)).replay(handle)
        assert offsets == [1, 4, *range(6, 12)]


async def test_an_end_is_looked_for_again_when_something_was_deleted_meanwhile(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    await written(store, range(3))
    key = wal_key("default", STREAM, 3).key
    last = (await store.get(key)).data

    async def vanish(_call: object) -> None:
        await store.store.delete([key])
        store.heal()
        await store.store.put(wal_key("default", STREAM, 3).key, [bytes(last)])

    store.rule(On("get_range", key, times=1), vanish)
    assert await found(store) == [0, 1, 2]


async def test_each_partition_replays_only_its_streams_in_its_requested_order() -> None:
    store = MemoryStore()
    one, two, three = (TOPIC, 1), (TOPIC, 2), (TOPIC, 3)
    await written(store, [10], stream=5, partition=1)
    await written(store, [20], stream=7, partition=1)
    await written(store, [30], stream=5, partition=2)
    streams = Streams(store=store, namespace="default", incarnation=9, alone_until=0)
    handed: list[tuple[int, int]] = []

    def handle(entry: WalEntry) -> bool:
        handed.append((entry.partition, entry.base_offset))
        return True

    earlier = await streams.end({one: [7, 5], two: [], three: [5]})
    replayed = await earlier.replay(handle)
    assert handed == [(1, 20), (1, 10)]
    assert sum(each.pending_count for each in replayed) == 2


async def test_small_objects_are_read_many_at_once_and_large_ones_few(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    await written(store, range(100))
    slow = FaultyStore(store)
    slow.delay(On("get", "*.wal"), 1.0)
    earlier = await end_stream(slow, "default", STREAM, taken_by=9)
    before = trio.current_time()
    await earlier.replay(lambda entry: True)
    assert trio.current_time() - before == pytest.approx(4.0)
    large = attrs.evolve(earlier, sizes=dict.fromkeys(earlier.keys, 20 << 20))
    before = trio.current_time()
    await large.replay(lambda entry: True)
    assert trio.current_time() - before == pytest.approx(34.0)  # three in 64 MiB


recovers = st.dictionaries(
    st.tuples(st.just(TOPIC), st.integers(0, 9)), st.lists(st.integers(1, 5), unique=True, max_size=4), max_size=6
)


@given(recovers)
def test_each_partition_passes_its_streams_in_its_order(recover: dict[PartitionId, Sequence[int]]) -> None:
    passed: dict[PartitionId, list[int]] = {partition_id: [] for partition_id in recover}
    for number, partitions in passes(recover):
        assert partitions
        for partition_id in partitions:
            passed[partition_id].append(number)
    assert passed == recover


async def test_only_streams_proven_unneeded_are_deleted() -> None:
    store = MemoryStore()
    for stream in (1, 2, 4, 6, 8):  # 1 and 2 are epochs of a broker alone, and 8 has begun since
        await written(store, range(2), stream=stream)
        if stream < 6:
            await end_stream(store, "default", stream, taken_by=6)

    async def sizes() -> dict[int, int]:
        listed = await list_log(store, "default")
        return {stream: sum(size > HEADER_BYTES for size in each.values()) for stream, each in listed.items()}

    await delete_unneeded(store, "default", {2, 4, 6}, before=7, alone_until=2)
    assert await sizes() == {1: 2, 2: 2, 4: 2, 6: 2, 8: 2}
    await delete_unneeded(store, "default", {2, 6}, before=7, alone_until=2)
    assert await sizes() == {1: 2, 2: 2, 4: 0, 6: 2, 8: 2}
    await delete_unneeded(store, "default", {6}, before=7, alone_until=2)
    assert await sizes() == {1: 0, 2: 0, 4: 0, 6: 2, 8: 2}
    assert [await left(store, stream) for stream in (1, 2, 4)] == [[3], [3], [3]]


async def test_objects_are_deleted_in_batches_and_old_fences_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "DELETED_AT_ONCE_COUNT", 5)
    monkeypatch.setattr(streams, "FENCES_KEPT_COUNT", 1)
    bucket = MemoryStore()
    for stream in (3, 4, 5):
        await written(bucket, range(4), stream=stream)
        await end_stream(bucket, "default", stream, taken_by=9)
    looks: list[int] = []

    async def confirm_lead() -> None:
        looks.append(1)
        await trio.lowlevel.checkpoint()

    store = FaultyStore(bucket)
    store.fail(On("delete", times=1))
    view = GuardedStore(store, DeletionGuard(confirm_lead=confirm_lead))
    with pytest.raises(StoreError):
        await delete_unneeded(view, "default", (), before=9, alone_until=0)
    await delete_unneeded(view, "default", (), before=9, alone_until=0)
    requests = [call.keys for call in store.calls if call.operation == "delete"][1:]
    assert [len(each) for each in requests] == [5, 5, 2, 2]
    assert requests[-1] == tuple(wal_key("default", stream, 5).key for stream in (3, 4))
    assert [await left(bucket, stream) for stream in (3, 4, 5)] == [[], [], [5]]
    assert looks == [1, 1]
