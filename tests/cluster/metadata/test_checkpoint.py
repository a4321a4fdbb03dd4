from __future__ import annotations

import pytest
import trio

from kafscale.cluster.metadata.base import Entry, Transaction
from kafscale.cluster.metadata.checkpoint import (
    INTERVAL_SECONDS,
    Checkpointer,
    encode_checkpoint,
    find_checkpoints,
)
from kafscale.errors import DamagedObject
from kafscale.formats.wal_objects import WalPosition
from kafscale.log.metadata_checkpoint import decode_checkpoint
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import NumberedKey
from kafscale.store.versions import VersionWriter
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore


class Bench:
    """A checkpointer, and what it looks at."""

    def __init__(self, store: MemoryStore | FaultyStore | None = None, *, epoch: int = 3) -> None:
        self.store = store or MemoryStore()
        self.local = MemoryMetadataStore()
        self.position = WalPosition(epoch, 0)
        self.change_count = 0
        self.kept: list[WalPosition] = []
        self.checkpointer = Checkpointer(
            versions=VersionWriter(store=self.store, namespace="default", kind="checkpoint", epoch=epoch),
            local=self.local,
            position=lambda: self.position,
            change_count=lambda: self.change_count,
            on_kept=self.kept.append,
        )

    async def change(self, value: bytes, *, number: int) -> None:
        await self.local.commit(Transaction(puts={"topics/a": value}))
        self.change_count += 1
        self.position = WalPosition(self.position.epoch, number)

    async def keys(self) -> list[str]:
        return [info.key async for page in self.store.list("") for info in page]


def key(number: int, *, epoch: int = 3) -> str:
    return NumberedKey(kind="checkpoint", epoch=epoch, number=number).key


async def encoded(count: int) -> bytes:
    entries = [Entry(f"topics/{number}", b"%d" % number, 1) for number in range(count)]
    entries.append(Entry("local/directory-id", b"mine", 1))
    return b"".join(await encode_checkpoint(WalPosition(2, 7), entries))


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 2500])
async def test_a_checkpoint_comes_back_without_what_is_local(count: int) -> None:
    found = decode_checkpoint("k", await encoded(count))
    assert found.position == WalPosition(2, 7)
    assert dict(found.transaction.puts) == {f"topics/{number}": b"%d" % number for number in range(count)}


async def test_every_flipped_or_missing_byte_is_found_and_the_key_named() -> None:
    content = await encoded(2)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(DamagedObject, match="the-key"):
            decode_checkpoint("the-key", damaged)
        with pytest.raises(DamagedObject, match="the-key"):
            decode_checkpoint("the-key", content[:position])


async def test_the_newest_intact_one_wins() -> None:
    bench = Bench()
    for number in range(3):
        await bench.change(b"%d" % number, number=number)
        await bench.checkpointer.write()
    assert await bench.keys() == [key(1), key(2)]
    found = await find_checkpoints(bench.store, "default")
    assert found.newest is not None
    assert (found.newest.position, found.newest.transaction.puts["topics/a"]) == (WalPosition(3, 2), b"2")
    await bench.store.put(key(2), [b"damaged"])
    found = await find_checkpoints(bench.store, "default")
    assert found.newest is not None
    assert (found.newest.position, found.newest.transaction.puts["topics/a"]) == (WalPosition(3, 1), b"1")
    await bench.store.put(key(1), [b"damaged"])
    found = await find_checkpoints(bench.store, "default")
    assert (found.newest, len(found.keys)) == (None, 2)
    assert len(found.damage) == 2


async def test_the_log_is_kept_behind_the_older_of_the_two_that_are_kept() -> None:
    bench = Bench()
    for number in range(1, 5):
        await bench.change(b"", number=number)
        await bench.checkpointer.write()
    assert bench.kept == [WalPosition(3, 1), WalPosition(3, 2), WalPosition(3, 3)]


async def test_those_of_earlier_epochs_go_when_there_are_two_of_ours() -> None:
    store = MemoryStore()
    for epoch in range(3):
        await Bench(store, epoch=epoch).checkpointer.write()
    bench = Bench(store)
    bench.checkpointer.versions.inherit((await find_checkpoints(store, "default")).keys)
    await bench.checkpointer.write()
    assert await bench.keys() == [key(0, epoch=2), key(0)]
    await bench.checkpointer.write()
    assert await bench.keys() == [key(0), key(1)]


async def test_one_is_written_when_something_changed_and_two_after_the_last_change(autojump_clock, nursery) -> None:
    store = FaultyStore(MemoryStore())
    bench = Bench(store)
    nursery.start_soon(bench.checkpointer.run)
    await trio.sleep(10 * INTERVAL_SECONDS)
    assert store.count("put_if_absent") == 2
    await bench.change(b"", number=1)
    await trio.sleep(10 * INTERVAL_SECONDS)
    assert store.count("put_if_absent") == 4


async def test_an_outage_is_waited_for(autojump_clock, nursery) -> None:
    store = FaultyStore(MemoryStore())
    bench = Bench(store)
    store.fail(On("put_if_absent", times=5))
    nursery.start_soon(bench.checkpointer.run)
    await trio.sleep(20 * INTERVAL_SECONDS)
    assert len(await bench.keys()) == 2
