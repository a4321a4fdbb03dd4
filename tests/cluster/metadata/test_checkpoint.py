from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import trio

from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.checkpoint import INTERVAL_SECONDS, Checkpointer, find_checkpoints
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
from kafscale.errors import DamagedObject, StorageFull, StoreUnavailable
from kafscale.formats.metadata_checkpoint import decode_checkpoint
from kafscale.formats.wal_objects import WalPosition
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import NumberedKey
from kafscale.store.version_writer import VersionWriter
from kafscale.testing.faulty_store import FaultyStore, On, StoreCall
from kafscale.testing.metadata import MemoryMetadataStore
from tests.formats.metadata_checkpoints import encode_checkpoint

PUTS = {f"topics/{number}": b"%d" % number for number in range(30)}
CHANGES = Transaction(puts={"a": b"1"}, deletes=["b"], delete_prefixes=["c/"])


class Bench:
    """A checkpointer, and what it looks at."""

    def __init__(self, store: MemoryStore | FaultyStore | None = None, *, epoch: int = 3) -> None:
        self.store = store or MemoryStore()
        self.local = MemoryMetadataStore()
        self.position = WalPosition(epoch, 0)
        self.kept: list[WalPosition] = []
        self.checkpointer = Checkpointer(
            versions=VersionWriter(store=self.store, namespace="default", kind="checkpoint", epoch=epoch),
            local=self.local,
            position=lambda: self.position,
            on_kept=self.kept.append,
        )

    async def commit(self, transaction: Transaction) -> None:
        await self.local.commit(transaction)

    async def change(self, value: bytes, *, number: int) -> None:
        await self.commit(Transaction(puts={"topics/a": value}))
        self.position = WalPosition(self.position.epoch, number)

    async def entries(self) -> dict[str, bytes]:
        return {each.key: each.value for each in await self.local.list("") if not each.key.startswith("local/")}

    async def found(self) -> dict[str, bytes] | None:
        newest = (await find_checkpoints(self.store, "default")).newest
        return None if newest is None else dict(newest.transaction.puts)

    async def keys(self) -> list[str]:
        return [info.key async for page in self.store.list("") for info in page]


def key(number: int, *, epoch: int = 3) -> str:
    return NumberedKey(kind="checkpoint", epoch=epoch, number=number).key


def test_a_checkpoint_comes_back() -> None:
    found = decode_checkpoint("k", b"".join(encode_checkpoint(WalPosition(2, 7), [Transaction(puts=PUTS)])))
    assert (found.position, found.transaction.puts, found.base) == (WalPosition(2, 7), PUTS, None)
    found = decode_checkpoint("k", b"".join(encode_checkpoint(WalPosition(2, 7), [CHANGES], base=0)))
    assert (found.transaction, found.base) == (CHANGES, 0)


@pytest.mark.parametrize(
    "content",
    [
        b"".join(encode_checkpoint(WalPosition(2, 7), [Transaction(puts={"a": b"1"})])),
        b"".join(encode_checkpoint(WalPosition(2, 7), [CHANGES], base=3)),
    ],
)
def test_every_flipped_or_missing_byte_is_found_and_the_key_named(content: bytes) -> None:
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
    for damaged, value in ((2, b"1"), (1, b"0")):
        assert await bench.found() == {"topics/a": b"%d" % damaged}
        await bench.store.put(key(damaged), [b"damaged"])
        assert await bench.found() == {"topics/a": value}
    await bench.store.put(key(0), [b"damaged"])
    found = await find_checkpoints(bench.store, "default")
    assert (found.newest, len(found.keys), len(found.damage)) == (None, 3, 3)


async def test_the_log_is_kept_behind_the_older_of_the_two_that_are_kept() -> None:
    bench = Bench()
    for number in range(1, 5):
        await bench.change(b"", number=number)
        await bench.checkpointer.write()
    assert bench.kept == [WalPosition(3, 1), WalPosition(3, 2), WalPosition(3, 3)]


async def test_checkpoints_of_earlier_epochs_are_deleted_after_two_of_the_present_epoch() -> None:
    store = MemoryStore()
    for epoch in range(3):
        await Bench(store, epoch=epoch).checkpointer.write()
    bench = Bench(store)
    bench.checkpointer.versions.inherit((await find_checkpoints(store, "default")).keys)
    await bench.checkpointer.write()
    assert await bench.keys() == [key(0, epoch=2), key(0)]
    await bench.checkpointer.write()
    assert await bench.keys() == [key(0), key(1)]


async def test_a_base_checkpoint_stays_until_two_of_the_next_epoch_exist() -> None:
    store = MemoryStore()
    before = Bench(store, epoch=2)
    for number in range(5):
        await before.change(b"%d" % number, number=number)
        await before.checkpointer.write()
        before.checkpointer._changes_bytes = 0  # no new base, however little there is
    bench = Bench(store)
    bench.checkpointer.versions.inherit((await find_checkpoints(store, "default")).keys)
    await bench.checkpointer.write()
    await store.put(key(0), [b"damaged"])
    assert await bench.found() == {"topics/a": b"4"}
    await bench.checkpointer.write()
    assert await bench.keys() == [key(0), key(1)]


async def test_a_delta_checkpoint_has_the_changes_since_the_full_one() -> None:
    bench = Bench()
    await bench.commit(Transaction(puts=PUTS | {"groups/g/1": b"", "groups/g/2": b"", "local/id": b""}))
    for number in range(2):
        await bench.checkpointer.write()
        await bench.commit(Transaction(puts={"topics/3": b"between %d" % number}))
    await bench.commit(Transaction(delete_prefixes=["groups/"], deletes=["topics/7"]))
    await bench.commit(Transaction(puts={"groups/g/2": b"again", "local/position": b""}))
    await bench.checkpointer.write()
    assert await bench.keys() == [key(0), key(1), key(2)]
    changes = decode_checkpoint("k", (await bench.store.get(key(2))).data)
    assert changes.base == 0
    assert changes.transaction.puts.keys() == {"topics/3", "groups/g/2"}
    assert await bench.found() == await bench.entries() != {}


@pytest.mark.parametrize("damaged", range(4))
async def test_any_single_damaged_checkpoint_leaves_a_usable_one(damaged: int) -> None:
    """And what is found then is not older than where the log is kept behind."""
    bench = Bench()
    states: list[dict[str, bytes]] = []
    for number in range(6):
        await bench.commit(Transaction(puts={f"topics/{number}": bytes(100)}, deletes=[f"topics/{number - 2}"]))
        bench.position = WalPosition(3, number)
        states.append(await bench.entries())
        await bench.checkpointer.write()
        bench.checkpointer._changes_bytes = 0  # no new base, however little there is
    keys = await bench.keys()
    assert keys == [key(number) for number in (0, 1, 4, 5)]
    await bench.store.put(keys[damaged], [b"damaged"])
    assert await bench.found() == states[4 if damaged == 3 else 5]
    assert bench.kept[-1] == WalPosition(3, 4)


async def test_changes_that_have_become_as_large_as_everything_are_followed_by_two_full_ones() -> None:
    bench = Bench()
    full: list[int] = []
    for number in range(40):
        await bench.commit(Transaction(puts={f"topics/{number % 10}": b"%d" % number * 50}))
        await bench.checkpointer.write()
        newest = (await bench.keys())[-1]
        if decode_checkpoint("k", (await bench.store.get(newest)).data).base is None:
            full.append(number)
        assert await bench.found() == await bench.entries()
        assert len(await bench.keys()) <= 5
    assert full[:2] == [0, 1]
    assert 4 <= len(full) < 30
    assert all(second == first + 1 for first, second in zip(full[::2], full[1::2], strict=False))


async def test_changes_are_not_made_of_a_full_one_from_before_their_base() -> None:
    bench = Bench()
    for number, (puts, base) in enumerate([({"a": b"old"}, None), ({"a": b"", "b": b""}, None), ({"c": b""}, 1)]):
        parts = encode_checkpoint(WalPosition(3, number), [Transaction(puts=puts)], base)
        await bench.store.put(key(number), parts)
    assert await bench.found() == {"a": b"", "b": b"", "c": b""}
    await bench.store.put(key(1), [b"damaged"])
    found = await find_checkpoints(bench.store, "default")
    assert found.newest is not None
    assert (found.newest.transaction.puts, found.newest.position) == ({"a": b"old"}, WalPosition(3, 0))
    assert len(found.damage) == 2


@pytest.mark.parametrize("seed", range(10))
async def test_a_delta_checkpoint_contains_whole_transactions(tmp_path: Path, seed: int) -> None:
    """One that was applied before the snapshot, and that its task had not heard of yet, was there in part."""
    bucket = MemoryStore()
    async with SqliteMetadataStore.open(tmp_path / "metadata.db") as store, trio.open_nursery() as nursery:
        checkpointer = Checkpointer(
            versions=VersionWriter(store=bucket, namespace="default", kind="checkpoint", epoch=3),
            local=store,
            position=partial(WalPosition, 3, 0),
        )

        async def commit_on() -> None:
            for number in range(1_000_000):
                keys = (f"topics/{number % 7}", f"deleted-topics/{number % 7}", "topics/all")
                await store.commit(Transaction(puts=dict.fromkeys(keys, b"%d" % number)))

        for _ in range(2):
            await checkpointer.write()
        checkpointer._base_bytes = 1 << 20  # no new base
        nursery.start_soon(commit_on)
        for _ in range(5 + seed):
            await checkpointer.write()
            newest = (await find_checkpoints(bucket, "default")).newest
            assert newest is not None
            entries = newest.transaction.puts
            for key in entries.keys() - {"topics/all"}:
                other = key.replace("topics/", "deleted-topics/") if key.startswith("topics/") else key[8:]
                assert entries[key] == entries[other]
            assert entries.get("topics/all", b"0") == max(entries.values(), key=int, default=b"0")
        nursery.cancel_scope.cancel()


async def test_changes_of_a_failed_write_are_in_the_next_checkpoint() -> None:
    store = FaultyStore(MemoryStore())
    bench = Bench(store)
    succeeded = 0
    for number in range(40):
        await bench.commit(Transaction(puts={f"topics/{number % 7}": b"%d" % number}))
        if number % 4 == 1:
            store.lose_reply(On("put_if_absent", times=1))
        elif number % 4 == 2:
            store.fail(On("put_if_absent", times=1))
        try:
            await bench.checkpointer.write()
        except StoreUnavailable:
            continue
        succeeded += 1
        assert await bench.found() == await bench.entries()
    assert succeeded == 20


async def test_a_checkpoint_that_comes_cut_off_once_is_not_passed_over() -> None:
    """The one before it was taken, and what had changed since was lost with the disk that this start did not have."""
    store = FaultyStore(MemoryStore())
    bench = Bench(store)
    for number in range(3):
        await bench.change(b"%d" % number, number=number)
        await bench.checkpointer.write()
    cut = store.truncate(On("get", key(2), times=1))
    assert await bench.found() == {"topics/a": b"2"}
    assert cut.met_count == 1


async def test_a_closed_checkpointer_records_and_writes_nothing() -> None:
    """A broker that writes them no more may run for months; and what it does not know of is in none of its changes."""
    bench = Bench()
    for number in range(3):
        await bench.change(b"%d" % number, number=number)
        await bench.checkpointer.write()
    keys = await bench.keys()
    bench.checkpointer.close()
    await bench.change(b"late", number=9)
    assert not bench.local._published._listeners
    await bench.checkpointer.write()
    assert await bench.keys() == keys


async def test_a_checkpoint_deleted_during_reading_triggers_another_search() -> None:
    store = FaultyStore(MemoryStore())
    bench = Bench(store)
    for number in range(3):
        await bench.change(b"%d" % number, number=number)
        await bench.checkpointer.write()

    async def replace(_: StoreCall) -> None:
        bench.checkpointer._bases.clear()
        for _ in range(3):
            await bench.change(b"last", number=9)
            await bench.checkpointer.write()

    store.rule(On("get", key(1), times=1), replace)
    assert await bench.found() == {"topics/a": b"last"}


async def test_one_is_written_when_something_changed_and_two_after_the_last_change(autojump_clock, nursery) -> None:
    store = FaultyStore(MemoryStore())
    bench = Bench(store)
    nursery.start_soon(bench.checkpointer.run)
    await trio.sleep(10 * INTERVAL_SECONDS)
    assert store.count("put_if_absent") == 2
    await bench.change(b"", number=1)
    await trio.sleep(10 * INTERVAL_SECONDS)
    assert store.count("put_if_absent") == 4


async def test_changes_refused_by_a_full_disk_cause_no_checkpoint(autojump_clock, nursery) -> None:
    store = FaultyStore(MemoryStore())
    bench = Bench(store)
    nursery.start_soon(bench.checkpointer.run)
    await trio.sleep(3 * INTERVAL_SECONDS)
    bench.local.full = True
    for _ in range(5):
        with pytest.raises(StorageFull):
            await bench.commit(Transaction(puts={"topics/a": b""}))
        await trio.sleep(INTERVAL_SECONDS)
    assert store.count("put_if_absent") == 2


async def test_an_outage_is_waited_for(autojump_clock, nursery) -> None:
    store = FaultyStore(MemoryStore())
    bench = Bench(store)
    store.fail(On("put_if_absent", times=5))
    nursery.start_soon(bench.checkpointer.run)
    await trio.sleep(20 * INTERVAL_SECONDS)
    assert len(await bench.keys()) == 2


async def test_a_checkpoint_is_written_early_when_the_log_grows_far_beyond_the_last(autojump_clock, nursery) -> None:
    store = FaultyStore(MemoryStore())
    bench = Bench(store)
    bench.checkpointer.objects_max_count = 16
    await bench.checkpointer.write()
    nursery.start_soon(bench.checkpointer.run)

    async def grow(until: int) -> None:
        for number in range(bench.position.number + 1, until + 1):
            bench.position = WalPosition(3, number)
            bench.checkpointer.note_growth()
            await trio.sleep(0.01)

    await grow(100)
    assert store.count("put_if_absent") == 1 + 100 // 17
    assert 100 - bench.kept[-1].number <= 2 * 17
    outage = store.fail(On("put_if_absent"))
    await grow(600)
    assert store.count("put_if_absent") == 7, "a store that is away is not asked in a hurry"
    store.end(outage)
    await trio.sleep(3 * INTERVAL_SECONDS)
    assert bench.kept[-1].number == 600


async def test_one_changed_offset_of_200000_writes_little_and_does_not_block_the_loop(tmp_path: Path) -> None:
    """It wrote 31 MB every 10 s, and held the event loop for 0.66 s."""
    bucket = MemoryStore()
    value = b'{"offset":%d,"leader_epoch":3,"metadata":"","commit_timestamp_ms":1795409335293}'
    held_seconds = 0.0

    async def tick() -> None:
        nonlocal held_seconds
        last = time.thread_time()
        while True:
            await trio.sleep(0.001)
            held_seconds, last = max(held_seconds, time.thread_time() - last), time.thread_time()

    async with SqliteMetadataStore.open(tmp_path / "metadata.db") as store:
        puts = {f"groups/g/offsets/topic/{number}": value % number for number in range(200_000)}
        await store.commit(Transaction(puts=puts))
        checkpointer = Checkpointer(
            versions=VersionWriter(store=bucket, namespace="default", kind="checkpoint", epoch=3),
            local=store,
            position=partial(WalPosition, 3, 0),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            for _ in range(2):
                await checkpointer.write()
            await store.commit(Transaction(puts={"groups/g/offsets/topic/7": value % 1}))
            await checkpointer.write()
            nursery.cancel_scope.cancel()
    sizes = [info.size_bytes async for page in bucket.list("") for info in page]
    assert sizes[2] < 1000 < sizes[0]
    assert held_seconds < 0.3  # of CPU; some 10 ms
    newest = (await find_checkpoints(bucket, "default")).newest
    assert newest is not None
    assert newest.transaction.puts == puts | {"groups/g/offsets/topic/7": value % 1}
