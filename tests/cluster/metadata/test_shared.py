"""Metadata that several brokers change at once, each for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kafscale.cluster.metadata.base import PlannedFrom, Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer
from kafscale.cluster.metadata.shared import (
    ATTEMPTS_MAX_SECONDS,
    HEAD_MAX_BYTES,
    UNREADABLE_SECONDS,
    SharedMetadataStore,
)
from kafscale.errors import (
    DamagedObject,
    Fenced,
    NewerVersion,
    NotFound,
    PlanOutdated,
    PreconditionFailed,
    SlowDown,
    StoreError,
    StoreUnavailable,
)
from kafscale.formats.metadata_head import Head, HeadEntry, decode_head, encode_head, head_key
from kafscale.formats.wal_objects import WalPosition
from kafscale.store.memory import MemoryStore
from kafscale.store.version_writer import VersionWriter
from kafscale.store.versions import list_versions
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore

EPOCH = 7
KEY = head_key("default")
PUT = On("put_if_match", KEY)


class Cluster:
    """A bucket with a head, and a checkpoint before it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.bucket = FaultyStore(MemoryStore())
        self.nursery = nursery

    async def create(self) -> None:
        await self.write_checkpoint(MemoryMetadataStore(), WalPosition(EPOCH, 0), term=EPOCH)
        await self.bucket.put_if_absent(KEY, encode_head(Head(EPOCH)))

    async def join(self, local: MemoryMetadataStore | None = None) -> SharedMetadataStore:
        joined = await SharedMetadataStore.join(local or MemoryMetadataStore(), self.bucket, "default")
        await self.nursery.start(joined.run)
        return joined

    async def write_checkpoint(self, local: MemoryMetadataStore, position: WalPosition, *, term: int) -> None:
        versions = VersionWriter(store=self.bucket, namespace="default", kind="checkpoint", epoch=term)
        await Checkpointer(versions=versions, local=local, position=lambda: position).write()

    async def head(self) -> Head:
        return decode_head(KEY, (await self.bucket.get(KEY)).data)


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    async with trio.open_nursery() as nursery:
        made = Cluster(nursery)
        await made.create()
        yield made
        nursery.cancel_scope.cancel()


def put(key: str, value: bytes = b"", **expect: int) -> Transaction:
    return Transaction(puts={key: value}, expect=expect)


async def contents(store: SharedMetadataStore) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in await store.list("") if not entry.key.startswith("local/")}


async def test_a_commit_reaches_other_brokers_at_their_refresh(autojump_clock) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        await one.commit(put("a", b"1"))
        assert await contents(other) == {}
        await other.refresh()
        assert await contents(other) == {"a": b"1"}


async def test_an_overtaken_commit_is_retried_on_top_of_the_other(autojump_clock) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        await one.commit(put("a", b"1"))
        await other.commit(put("b", b"2"))
        await other.commit(put("a", b"3"))
        await one.refresh()
        assert await contents(one) == await contents(other) == {"a": b"3", "b": b"2"}
        assert other.lost_race_count == 1


async def test_of_two_that_expect_the_same_one_is_refused(autojump_clock) -> None:
    async with cluster() as made:
        stores = [await made.join() for _ in range(8)]
        outcomes: list[str] = []

        async def claim(store: SharedMetadataStore) -> None:
            try:
                await store.commit(put("claim", claim=0))
                outcomes.append("made")
            except PreconditionFailed:
                outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            for each in stores:
                nursery.start_soon(claim, each)
        assert sorted(outcomes) == ["made", *["refused"] * 7]


async def test_a_plan_is_refused_when_another_broker_changed_its_keys(autojump_clock) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        planned = Transaction(puts={"x": b""}, planned_from=PlannedFrom(revision=one.revision, prefixes=("topics/",)))
        await other.commit(put("topics/a"))
        with pytest.raises(PlanOutdated) as refused:
            await one.commit(planned)
        assert refused.value.revision == one.revision
        assert "topics/a" in await contents(one)


async def test_increments_of_many_brokers_all_count(autojump_clock) -> None:
    async with cluster() as made:
        made.bucket.unreliable(0.1)
        stores = [await made.join() for _ in range(4)]

        async def increment(store: SharedMetadataStore) -> None:
            for _ in range(20):
                while True:
                    entry = await store.get("n")
                    value, revision = (int(entry.value), entry.revision) if entry is not None else (0, 0)
                    try:
                        await store.commit(put("n", b"%d" % (value + 1), n=revision))
                        break
                    except PreconditionFailed:
                        continue

        async with trio.open_nursery() as nursery:
            for each in stores:
                nursery.start_soon(increment, each)
        made.bucket.heal()
        await stores[0].refresh()
        assert (await contents(stores[0]))["n"] == b"80"


@pytest.mark.parametrize("others_commit", [False, True])
async def test_a_commit_with_a_lost_reply_is_recognized_by_its_nonce(autojump_clock, others_commit: bool) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        made.bucket.lose_reply(On("put_if_match", KEY, times=1))
        if others_commit:
            gate = made.bucket.hold(On("put_if_match", KEY, skip=1, times=1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.commit, put("a", b"1", a=0))
                await gate.wait_arrived()
                await other.commit(put("b", b"2"))
                gate.open()
        else:
            await one.commit(put("a", b"1", a=0))
        assert (await contents(one))["a"] == b"1"
        assert len((await made.head()).entries) == 1 + others_commit


async def test_a_write_that_comes_late_has_no_effect(autojump_clock) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        gate = made.bucket.hold(On("put_if_match", KEY, times=1))
        async with trio.open_nursery() as nursery:

            async def commit() -> None:
                with pytest.raises(PreconditionFailed):
                    await one.commit(put("a", b"late", a=0))

            nursery.start_soon(commit)
            await gate.wait_arrived()
            await other.commit(put("a", b"first"))
            gate.open()
        assert (await contents(other))["a"] == b"first"


async def test_a_store_that_is_away_for_long_fails_a_commit_and_not_the_next_one(autojump_clock) -> None:
    async with cluster() as made:
        one = await made.join()
        rule = made.bucket.fail(PUT, SlowDown)
        began = trio.current_time()
        with pytest.raises(StoreError):
            await one.commit(put("a"))
        assert trio.current_time() - began >= ATTEMPTS_MAX_SECONDS
        made.bucket.rules.remove(rule)
        await one.commit(put("b"))
        assert await contents(one) == {"b": b""}


async def test_a_head_truncated_in_transit_is_read_again(autojump_clock) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        await other.commit(put("a", b"2"))
        made.bucket.truncate(On("get", KEY, times=2))
        with pytest.raises(StoreUnavailable, match="can't be read"):
            await one.refresh()
        await one.commit(put("b", b"1"))
        assert await contents(one) == {"a": b"2", "b": b"1"}


async def test_a_broker_that_missed_trimmed_entries_loads_a_checkpoint(autojump_clock) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        for number in range(5):
            await one.commit(put(f"k{number}"))
        await one.commit(Transaction(deletes=["k0"]))
        await made.write_checkpoint(one.local, one.applied, term=EPOCH + 1)
        one.kept_until = lambda: one.applied.number
        await one.commit(put("last"))
        assert (await made.head()).kept_until == 6
        await other.refresh()
        assert await contents(other) == await contents(one) == {f"k{n}": b"" for n in range(1, 5)} | {"last": b""}
        assert await contents(await made.join()) == await contents(one)


async def test_a_head_is_trimmed_without_commits_once_a_checkpoint_covers_its_entries(autojump_clock) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        await one.commit(put("a"))
        await one.trim()
        assert (await made.head()).revision == 1
        await other.refresh()
        one.kept_until = lambda: 1
        for _ in range(2):
            await one.trim()
        head = await made.head()
        assert (head.kept_until, head.revision) == (1, 2)
        await other.refresh()
        assert await contents(other) == {"a": b""}


async def test_an_overtaken_broker_reads_the_head_without_a_head_request(autojump_clock) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        await one.commit(put("a"))
        gate = made.bucket.hold(On("head", KEY))
        await other.commit(put("b"))
        assert gate.arrived_count == 0
        assert other.lost_race_count == 1


async def test_a_newer_revision_notice_reads_the_head_at_once_and_only_once_if_false(
    autojump_clock,
) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        await one.commit(put("a", b"1"))
        gate = made.bucket.hold(On("head", KEY))
        other.note_newer(one.applied.number)
        await other.refresh()
        assert await contents(other) == {"a": b"1"}
        other.note_newer(99)
        await other.refresh()
        assert gate.arrived_count == 0
        gate.open()
        await other.refresh()
        assert gate.arrived_count == 1


async def test_a_commit_possibly_in_a_checkpoint_has_an_unknown_outcome(autojump_clock) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        made.bucket.lose_reply(On("put_if_match", KEY, times=1))
        gate = made.bucket.hold(On("put_if_match", KEY, skip=1, times=1))
        async with trio.open_nursery() as nursery:

            async def commit() -> None:
                with pytest.raises(StoreUnavailable, match="not known"):
                    await one.commit(put("a", a=0))

            nursery.start_soon(commit)
            await gate.wait_arrived()
            await other.refresh()
            await made.write_checkpoint(other.local, other.applied, term=EPOCH + 1)
            other.kept_until = lambda: other.applied.number
            await other.commit(put("b"))
            gate.open()
        assert await contents(one) == {"a": b"", "b": b""}


async def test_a_start_with_an_old_directory_catches_up_with_the_head(autojump_clock) -> None:
    async with cluster() as made:
        local = MemoryMetadataStore()
        one = await made.join(local)
        await one.commit(put("a", b"1"))
        other = await made.join()
        await other.commit(put("a", b"2"))
        await other.commit(Transaction(deletes=["a"], puts={"b": b"3"}))
        assert await contents(await made.join(local)) == {"b": b"3"}


async def test_a_directory_of_another_time_takes_nothing_along(autojump_clock) -> None:
    async with cluster() as made:
        one = await made.join()
        await one.commit(put("a"))
        strange = MemoryMetadataStore()
        await strange.commit(Transaction(puts={"z": b"", "local/directory-id": b"mine"}))
        joined = await made.join(strange)
        assert await contents(joined) == {"a": b""}
        assert await joined.get("local/directory-id") is not None


async def test_a_head_without_its_checkpoint_is_damaged(autojump_clock) -> None:
    async with cluster() as made:
        one = await made.join()
        await one.commit(put("a"))
        one.kept_until = lambda: 1
        await one.commit(put("b"))
        with pytest.raises(DamagedObject, match="up to revision 1"):
            await made.join()


async def test_a_running_broker_waits_for_a_missing_checkpoint(
    autojump_clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the broker, whatever it led."""
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        await one.commit(put("a"))
        one.kept_until = lambda: 1
        await one.commit(put("b"))
        for _ in range(5):
            with pytest.raises(StoreUnavailable, match="no checkpoint has the metadata up to revision 1"):
                await other.refresh()
        with pytest.raises(StoreUnavailable):
            await other.commit(put("c"))
        assert await contents(other) == {}
        assert caplog.text.count("this broker keeps the partitions that it leads") == 1
        await made.write_checkpoint(one.local, one.applied, term=EPOCH + 1)
        await trio.sleep(UNREADABLE_SECONDS)
        await other.refresh()
        await other.commit(put("c"))
        assert await contents(other) == {"a": b"", "b": b"", "c": b""}


@pytest.mark.parametrize("what", ["a head", "a transaction", "a checkpoint"])
async def test_metadata_of_a_later_version_stops_a_start_but_not_a_running_broker(autojump_clock, what: str) -> None:
    async with cluster() as made:
        one, other = await made.join(), await made.join()
        await one.commit(put("a"))
        if what == "a head":
            found = bytearray((await made.bucket.get(KEY)).data)
            found[9] = 9
            await made.bucket.put(KEY, [found])
        elif what == "a transaction":
            head = await made.head()
            later = head.with_entries([HeadEntry(bytes(16), b"\x09")], 0)
            await made.bucket.put(KEY, encode_head(later))
        else:
            await made.write_checkpoint(one.local, one.applied, term=EPOCH + 1)
            (*_, key) = await list_versions(made.bucket, "default", "checkpoint")
            found = bytearray((await made.bucket.get(key.key)).data)
            found[9] = 9
            await made.bucket.put(key.key, [found])
            one.kept_until = lambda: 1
            await one.commit(put("b"))
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="start a later version of KafScale"):
                await other.refresh()
        with pytest.raises(StoreUnavailable):
            await other.commit(put("c"))
        assert await contents(other) == {}
        with pytest.raises(NewerVersion, match="start a later version of KafScale"):
            await made.join()


async def test_no_head_is_not_found(autojump_clock) -> None:
    with pytest.raises(NotFound):
        await SharedMetadataStore.join(MemoryMetadataStore(), MemoryStore(), "default")


async def test_a_head_that_was_replaced_by_an_older_one_ends_the_broker(autojump_clock) -> None:
    async with cluster() as made:
        one = await made.join()
        await one.commit(put("a"))
        await made.bucket.put(KEY, encode_head(Head(EPOCH)))
        with pytest.raises(Fenced):
            await one.refresh()


async def test_an_untrimmed_head_refuses_large_commits_at_its_limit(autojump_clock) -> None:
    async with cluster() as made:
        one = await made.join()
        await one.commit(put("a", bytes(HEAD_MAX_BYTES - 1000)))
        with pytest.raises(StoreUnavailable, match="too large"):
            await one.commit(put("b", bytes(1000)))
        await one.commit(put("c"))
