"""Objects that replace one another; see also the checkpoints of metadata and of manifests."""

import pytest

from kafscale.errors import DamagedObject, StoreUnavailable
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import NumberedKey
from kafscale.store.version_writer import VersionWriter
from kafscale.store.versions import find_versions
from kafscale.testing.faulty_store import FaultyStore, On


def decode(key, data):
    if bytes(data) == b"damaged":
        raise DamagedObject(f"{key}: damaged")
    return bytes(data)


def writer(store, epoch=1):
    return VersionWriter(store=store, namespace="default", kind="manifests", epoch=epoch)


async def newest(store):
    return (await find_versions(store, "default", "manifests", decode)).newest


async def names(store):
    return [info.key async for page in store.list("") for info in page]


async def test_there_is_none_at_first():
    found = await find_versions(MemoryStore(), "default", "manifests", decode)
    assert (found.keys, found.newest, found.damage) == ([], None, [])


async def test_a_broker_that_is_superseded_does_not_get_in_front():
    store = MemoryStore()
    older, newer = writer(store, epoch=1), writer(store, epoch=2)
    await newer.write([b"new"])
    for _ in range(3):
        await older.write([b"old"])
        await older.trim()
    assert await newest(store) == b"new"


async def test_a_write_that_failed_takes_no_key_twice():
    store = FaultyStore(MemoryStore())
    ours = writer(store)
    store.lose_reply(On("put*", times=1))
    with pytest.raises(StoreUnavailable):
        await ours.write([b"first"])
    await ours.write([b"second"])
    assert await newest(store) == b"second"
    assert len(await names(store)) == 2


@pytest.mark.parametrize("damaged_count", [1, 2])
async def test_the_newest_intact_one_wins(damaged_count):
    store = MemoryStore()
    ours = writer(store)
    for content in (b"older", b"newer"):
        await ours.write([content])
    for number in range(damaged_count):
        await store.put(NumberedKey(kind="manifests", epoch=1, number=1 - number).key, [b"damaged"])
    found = await find_versions(store, "default", "manifests", decode)
    assert found.newest == (b"older" if damaged_count == 1 else None)
    assert len(found.damage) == damaged_count


async def test_the_two_newest_versions_are_kept_across_writers():
    store = MemoryStore()
    for epoch in range(4):
        ours = writer(store, epoch)
        ours.inherit((await find_versions(store, "default", "manifests", decode)).keys)
        await ours.write([b"%d" % epoch])
        await ours.trim()
    assert [key.split("/")[3] for key in await names(store)] == ["0000000002", "0000000003"]


async def test_a_version_deleted_after_listing_causes_no_error():
    """A start failed when the broker before it wrote a newer one at that moment and deleted what had been listed."""
    store = FaultyStore(MemoryStore())
    ours = writer(store)
    await ours.write([b"first"])

    async def replace(call) -> None:
        await ours.write([b"second"])
        await store.store.delete([NumberedKey(kind="manifests", epoch=1, number=0).key])

    store.rule(On("list", times=1), replace, after_effect=True)
    assert await newest(store) == b"second"


@pytest.mark.parametrize("kept", [1, 2])
async def test_a_version_that_reads_as_damaged_is_read_a_second_time(kept):
    """The one before it was taken, or none at all: a start with an empty disk went back to the metadata of then."""
    store = FaultyStore(MemoryStore())
    ours = writer(store)
    for content in (b"older", b"newer")[-kept:]:
        await ours.write([content])
    looks = []

    def decode_at_second_look(key, data):
        looks.append(key)
        if len(looks) == 1:
            raise DamagedObject(f"{key}: cut off")
        return bytes(data)

    found = await find_versions(store, "default", "manifests", decode_at_second_look)
    assert (found.newest, found.damage) == (b"newer", [])
