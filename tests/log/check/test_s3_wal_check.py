"""The log in the bucket: what a start would refuse is found, what it would pass over is no damage."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from kafscale.errors import DamagedObject
from kafscale.formats.wal_entries import ENTRY_HEADER_BYTES, METADATA, WalEntry
from kafscale.formats.wal_index import with_index
from kafscale.formats.wal_objects import HEADER_BYTES, START, ObjectHeader, WalPosition, encode_header, encode_object
from kafscale.formats.wal_runs import list_log
from kafscale.log.check.wal_check import LoggedBatches, S3WalCheck, WalObjectCheck
from kafscale.log.repair.verify_segment import FindingKind
from kafscale.log.wal.s3_replay import end_stream, find_log, take_over
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import NumberedKey
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.batch_header import parse_header
from tests.devtools.fakes.segment_objects import make_batch

TOPIC_ID = bytes(range(16))


def key(number, *, epoch=0):
    return NumberedKey(kind="wal", epoch=epoch, number=number).key


def entry(offset, *, kind=0):
    data = b"metadata" if kind else make_batch(offset, [b"value"])
    return WalEntry(TOPIC_ID, 0, 0, offset, data, kind=kind)


async def written(store, offsets, *, epoch=0, lost=None):
    """An object for each offset; all under way together, and then a crash before that of number `lost` arrives."""
    if lost is not None:
        store = FaultyStore(store)
        store.hold(On("put_if_absent", f"*{lost:020d}.wal"))
    async with trio.open_nursery() as nursery:
        wal = S3Wal(store=store, namespace="default", epoch=epoch, object_bytes=1)
        await nursery.start(wal.run)
        rounds = [wal.append(entry(offset)) for offset in offsets]
        if lost is None:
            await rounds[-1].wait()
        else:
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def checked(store, *, kept_until=START):
    check = S3WalCheck(store=store, namespace="default", listed=await list_log(store, "default"))
    await check.run(kept_until)
    return check


def damage(check):
    return [(finding.name, finding.position) for finding in check.findings if finding.damage]


async def test_a_log_over_two_epochs_is_whole_and_its_batches_are_found_by_partition():
    store = MemoryStore()
    await written(store, range(20))
    await take_over(store, "default", 1, kept_until=START)
    await written(store, range(20, 25), epoch=1)
    check = await checked(store)
    assert check.findings == []
    assert check.entry_count == 25
    assert list(check.batches.partitions[TOPIC_ID, 0].base_offsets) == list(range(25))


@pytest.mark.parametrize("missing", [1, 2, 4])
async def test_a_missing_object_that_had_been_acknowledged_is_damage(missing):
    store = MemoryStore()
    for offset in range(5):  # one by one, so that each says of all before it that they were acknowledged
        await written_alone(store, offset)
    await store.delete([key(missing)])
    check = await checked(store)
    assert (key(missing), None) in damage(check)
    with pytest.raises(DamagedObject):
        await find_log(store, "default", kept_until=START)


async def written_alone(store, offset):
    data = entry(offset)
    data.sequence = offset + 1
    parts = encode_object(
        ObjectHeader(
            salt=1,
            epoch=0,
            entry_count=1,
            number=offset + 1,
            durable_number=offset,
            sequence=offset + 1,
            body_bytes=len(data.data) + ENTRY_HEADER_BYTES,
        ),
        [data],
        durable_sequence=offset,
    )
    await store.put(key(offset + 1), parts)


async def test_an_object_after_an_unproven_gap_is_noted_and_not_part_of_the_log():
    store = MemoryStore()
    await written(store, range(5), lost=3)
    check = await checked(store)
    assert damage(check) == []
    assert [(finding.name, finding.kind) for finding in check.findings] == [(key(4), FindingKind.WAL_OBJECT)]
    assert check.entry_count == 2


async def test_trimmed_objects_are_not_missing():
    store = MemoryStore()
    await written(store, range(5))
    await store.delete([key(1), key(2)])
    assert damage(await checked(store, kept_until=WalPosition(0, 2))) == []


async def test_a_late_fence_does_not_hide_the_objects_behind_the_fence():
    store = MemoryStore()
    for offset in range(5):
        await written_alone(store, offset)
    await store.delete([key(1), key(2)])
    fence = ObjectHeader(salt=0, epoch=1, entry_count=0, number=2, durable_number=1, sequence=0, body_bytes=0)
    await store.put(key(2), [encode_header(fence)])
    check = await checked(store, kept_until=WalPosition(0, 2))
    assert damage(check) == []
    assert [finding.name for finding in check.findings] == [key(2)]
    assert check.entry_count == 3


async def test_an_object_that_came_late_is_noted_and_no_damage():
    store = MemoryStore()
    await written(store, range(5))
    late = (await store.get(key(1))).data
    await store.delete([key(number) for number in (1, 2, 3)])
    await store.put_if_absent(key(1), [late])
    check = await checked(store, kept_until=WalPosition(0, 3))
    assert [(finding.name, finding.damage) for finding in check.findings] == [(key(1), False)]
    assert check.entry_count == 3


async def test_objects_deleted_during_the_check_are_not_damage():
    store = MemoryStore()
    await written(store, range(5))
    listed = await list_log(store, "default")
    await store.delete([key(1), key(2)])
    check = S3WalCheck(store=store, namespace="default", listed=listed)
    await check.run(START)
    assert (check.findings, check.entry_count) == ([], 3)


async def test_an_object_that_arrives_during_the_listing_is_not_damage():
    store = MemoryStore()
    for offset in range(5):
        await written_alone(store, offset)
    content = (await store.get(key(2))).data
    await store.delete([key(2)])
    listed = await list_log(store, "default")
    await store.put(key(2), [content])
    check = S3WalCheck(store=store, namespace="default", listed=listed)
    await check.run(START)
    assert not damage(check)
    assert any("which came while the log was listed" in finding.message for finding in check.findings)


async def test_an_object_under_another_key_is_damage():
    store = MemoryStore()
    await written(store, range(3))
    await store.put(key(3), [(await store.get(key(2))).data])
    check = await checked(store)
    assert (key(3), 0) in damage(check)
    assert any("says that it is object 2 of epoch 0" in finding.message for finding in check.findings)


async def test_an_object_cut_off_after_its_header_is_damage_and_not_a_fence():
    store = MemoryStore()
    await written(store, range(3))
    await store.put(key(3), [bytes((await store.get(key(3))).data)[:HEADER_BYTES]])
    assert damage(await checked(store)) == [(key(3), HEADER_BYTES)]


async def test_to_look_for_the_log_writes_nothing():
    store = MemoryStore()
    await written(store, range(5), lost=3)
    before = await list_log(store, "default")
    found: list[int] = []
    earlier = await find_log(store, "default", kept_until=START)
    await earlier.replay(lambda each: found.append(each.base_offset) is None)
    assert found == [0, 1]
    assert await list_log(store, "default") == before


def one_object():
    entries = [entry(0), entry(1, kind=METADATA), entry(2)]
    for sequence, each in enumerate(entries, start=7):
        each.sequence = sequence
    size = sum(len(each.data) + ENTRY_HEADER_BYTES for each in entries)
    header = ObjectHeader(salt=5, epoch=0, entry_count=3, number=4, durable_number=3, sequence=7, body_bytes=size)
    return b"".join(map(bytes, encode_object(header, entries, durable_sequence=6)))


OBJECT = one_object()


def looked_at(content):
    check = WalObjectCheck(name=key(4), content=content)
    return check, list(check.entries())


def test_an_object_is_gone_through_by_entry():
    check, entries = looked_at(OBJECT)
    assert check.damage == []
    assert [each.header and each.header.base_offset for each in entries] == [0, None, 2]


@given(st.integers(0, len(OBJECT) - 1), st.integers(0, 7))
def test_every_flipped_bit_of_an_object_is_found(position, bit):
    content = OBJECT[:position] + bytes([OBJECT[position] ^ 1 << bit]) + OBJECT[position + 1 :]
    assert looked_at(content)[0].damage


def indexed_object(change=lambda index: index):
    index, *entries = with_index([entry(offset) for offset in range(3)])
    index.data = change(index.data)
    for sequence, each in enumerate([index, *entries], start=7):
        each.sequence = sequence
    size = sum(len(each.data) + ENTRY_HEADER_BYTES for each in [index, *entries])
    header = ObjectHeader(salt=5, epoch=0, entry_count=4, number=4, durable_number=3, sequence=7, body_bytes=size)
    return b"".join(map(bytes, encode_object(header, [index, *entries], durable_sequence=6)))


@pytest.mark.parametrize(
    "change", [lambda index: index[:-1] + b"\2", lambda index: bytes(20) + index[20:], lambda index: b""]
)
def test_an_index_that_tells_something_else_is_found(change):
    assert looked_at(indexed_object())[0].damage == []
    (damage,) = looked_at(indexed_object(change))[0].damage
    assert "index" in damage.message


@given(st.integers(0, len(OBJECT) - 1))
def test_every_cut_of_an_object_is_found(size):
    assert looked_at(OBJECT[:size])[0].damage


async def test_streams_are_each_looked_at_by_themselves():
    store = MemoryStore()
    for stream in (7, 8):
        async with trio.open_nursery() as nursery:
            wal = S3Wal(store=store, namespace="default", epoch=stream, object_bytes=1, is_stream=True)
            await nursery.start(wal.run)
            for offset in range(4):
                await wal.append(entry(offset)).wait()
            nursery.cancel_scope.cancel()
    await store.delete(
        [key(number, epoch=7) for number in (1, 2)]
    )  # flushed, and that the third was acknowledged is told
    await end_stream(store, "default", 7, taken_by=5)

    async def findings():
        listed = await list_log(store, "default")
        check = S3WalCheck(store=store, namespace="default", listed=listed, alone_until=3)
        await check.run(WalPosition(3, 1234))
        return [(each.name, each.damage) for each in check.findings]

    assert await findings() == []
    await store.delete([key(3, epoch=8)])
    assert await findings() == [(key(2, epoch=8), False)]  # as if a deletion were under way; the segments tell more
    await store.delete([key(5, epoch=7)])
    await store.put(key(4, epoch=7), [(await store.get(key(4, epoch=7))).data[:-1]])
    assert [name for name, damage in await findings() if damage] == [key(4, epoch=7)]


def test_batches_of_several_streams_are_put_in_the_order_of_their_leaders():
    batches = LoggedBatches()
    for name, epoch, offset in (("b", 6, 2), ("b", 6, 3), ("a", 5, 0), ("a", 5, 1)):
        each = entry(offset)
        each.leader_epoch, each.position = epoch, 10 * offset
        batches.add(name, each, parse_header(memoryview(each.data)))
    batches.put_in_order()
    (partition,) = batches.partitions.values()
    assert list(partition.base_offsets) == [0, 1, 2, 3]
    assert list(partition.leader_epochs) == [5, 5, 6, 6]
    assert list(partition.positions) == [0, 10, 20, 30]
    assert list(partition.sources) == [1, 1, 0, 0]
