"""Batches in a local log whose topics the metadata does not know: what is found, what is refused, and where it goes."""

from __future__ import annotations

import attrs
import trio

from kafscale.cluster.membership.start.adoption import UnknownBatches, adopt
from kafscale.cluster.registries.topics import TopicRegistry
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.wal.local_files import KEPT_PREFIX
from kafscale.log.wal.local_wal import Wal
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.batch_header import set_base_offset
from kafscale.wire.records import Record, build_batch

ORDERS, PAYMENTS = bytes(range(16)), bytes(range(1, 17))
SEGMENT_BYTES = 4096


def batch(topic_id: bytes, offset: int, partition: int = 0) -> WalEntry:
    data = bytearray(build_batch([Record(value=b"%d" % offset)]))
    set_base_offset(memoryview(data), offset, 3)
    return WalEntry(topic_id, partition, 3, offset, bytes(data), owner="orders" if topic_id == ORDERS else "payments")


async def disk_with(*entries: WalEntry, named: bool = True) -> MemoryDisk:
    disk = MemoryDisk()
    wal = Wal(disk=disk, on_durable=lambda _: None, topic_name=(lambda entry: entry.owner) if named else None)
    async with trio.open_nursery() as nursery:
        await wal.replay(lambda _: True)
        for task in wal.tasks:
            await nursery.start(task)
        for entry in entries:
            await wal.append(entry).wait()
        nursery.cancel_scope.cancel()
    return disk


def keep_aside(disk: MemoryDisk) -> None:
    """Run a start, which keeps the files aside and deletes them."""
    for name in [name for name in disk.files if name.startswith("wal-")]:
        for files in (disk.files, disk.synced):
            files[f"{KEPT_PREFIX}{name}"] = files.pop(name)


async def adopted(disk: MemoryDisk, *, new_name: str = ""):
    topics = TopicRegistry(store=MemoryMetadataStore())
    await topics.load()
    batches = UnknownBatches(disk, topics.knows)
    found = await batches.find([])
    if new_name:
        found = [attrs.evolve(each, name=new_name) for each in found]

    async def give_back(names):
        await batches.give_back(names, SEGMENT_BYTES)

    return await adopt(topics, found, {}, broker_id=0, give_back=give_back), topics


async def replayed(disk: MemoryDisk) -> list[tuple[bytes, int, int]]:
    found: list[tuple[bytes, int, int]] = []
    wal = Wal(disk=disk, on_durable=lambda _: None)
    await wal.replay(lambda entry: not found.append((entry.topic_id, entry.partition, entry.base_offset)))
    return found


async def test_batches_kept_aside_are_replayed_before_their_topic_is_registered(autojump_clock):
    disk = await disk_with(batch(ORDERS, 5), batch(ORDERS, 6))
    keep_aside(disk)
    (adoption,), topics = await adopted(disk)
    assert (adoption.topic.name, adoption.refusal) == ("orders", None)
    assert topics.log_start_offsets(ORDERS) == {0: 5}
    assert await replayed(disk) == [(ORDERS, 0, 5), (ORDERS, 0, 6)]


async def test_batches_still_in_the_log_are_placed_after_batches_kept_aside(autojump_clock):
    disk = await disk_with(batch(ORDERS, 0), batch(ORDERS, 1))
    keep_aside(disk)
    later = await disk_with(batch(ORDERS, 2), batch(PAYMENTS, 0))
    for name, content in later.files.items():  # a later file of the same log
        for files in (disk.files, disk.synced):
            files[name.replace("1.log", "9.log")] = bytearray(content)
    (orders, payments), _ = await adopted(disk)
    assert (orders.refusal, payments.refusal) == (None, None)
    in_order = [(ORDERS, 0, offset) for offset in range(3)]
    assert await replayed(disk) == [(ORDERS, 0, 2), (PAYMENTS, 0, 0), *in_order]


async def test_a_nameless_topic_is_adopted_under_a_given_name(autojump_clock):
    disk = await disk_with(batch(ORDERS, 0), named=False)
    keep_aside(disk)
    (adoption,), _ = await adopted(disk)
    assert "its name is not known" in str(adoption.refusal)
    assert await replayed(disk) == []
    (adoption,), topics = await adopted(disk, new_name="found")
    assert adoption.refusal is None
    assert topics.get("found").topic_id == ORDERS
    assert await replayed(disk) == [(ORDERS, 0, 0)]


async def test_a_topic_with_records_missing_between_is_refused(autojump_clock):
    disk = await disk_with(batch(ORDERS, 0), batch(ORDERS, 2))
    keep_aside(disk)
    (adoption,), topics = await adopted(disk)
    assert "no records at offsets 1 to 1" in str(adoption.refusal)
    assert topics.all() == []
    assert await replayed(disk) == []
