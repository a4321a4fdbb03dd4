"""Whatever an older broker has decided to delete and not deleted yet: its successor has it, or knows of the decision.

The older one is suspended in between. Its operations on the bucket hang, those that could tell it of its successor for
longest, as if the processor had given the others their turn first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.broker import Broker
from kafscale.broker_storage import StorageParts
from kafscale.cluster.registries.topics import NewTopic, TopicListener
from kafscale.config import Durability, Settings
from kafscale.errors import Fenced
from kafscale.log.partition.partition import Partition
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On, StoreGate
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.fakes.memory_broker import memory_settings
from tests.devtools.fakes.memory_log import append_nowait

HURRIED = memory_settings(retention_check_interval_seconds=1.0)
AT_ONCE = {"file.delete.delay.ms": "0", "retention.ms": "-1"}
CLAIM = "_kafscale/default/epoch"


@attrs.define(eq=False)
class Life:
    """A broker with a disk of its own and its own way to the bucket, in its turn until `end` or until it is fenced."""

    bucket: MemoryStore
    settings: Settings = HURRIED
    broker: Broker = attrs.field(init=False)
    store: FaultyStore = attrs.field(init=False)
    was_fenced: bool = attrs.field(default=False, init=False)
    _looks: StoreGate = attrs.field(init=False)
    _others: StoreGate = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.broker = Broker(self.settings)
        self.store = FaultyStore(self.bucket)

    async def run(self, *, task_status: trio.TaskStatus[Broker]) -> None:
        parts = StorageParts(store=self.store, metadata=MemoryMetadataStore(), disk=MemoryDisk())
        try:
            with self._scope:
                await self.broker.run_on(parts, task_status=task_status)
        except* Fenced:
            self.was_fenced = True

    def end(self) -> None:
        self._scope.cancel()

    def suspend(self) -> None:
        self._looks = self.store.hold(On("get*", CLAIM))
        self._others = self.store.hold(On("[!g]*"))

    async def resume(self) -> None:
        """What it was about to do comes before its look at the claim."""
        self._others.open()
        await trio.sleep(60)
        self._looks.open()
        await trio.sleep(60)

    def partition(self, topic: str = "t") -> Partition:
        found = self.broker.services.log.partition_named(topic, 0)
        assert found is not None
        return found

    async def create(self, topic: str = "t", **overrides: str) -> None:
        [outcome] = await self.broker.services.topics.create(
            [NewTopic(name=topic, partition_count=1, overrides=overrides)]
        )
        assert not isinstance(outcome, Exception)

    async def append(self, *values: bytes, topic: str = "t") -> None:
        """A segment for each."""
        for value in values:
            _, round = append_nowait(self.partition(topic), value)
            await round.wait()
            await self.broker.services.log.flusher.flush_all()

    async def delete_records(self, before_offset: int, topic: str = "t") -> None:
        """As DeleteRecords does."""
        partition = self.partition(topic)
        await self.broker.services.topics.set_log_start_offset(partition.topic_id, 0, before_offset)
        partition.delete_records(before_offset)


@asynccontextmanager
async def running(*lives: Life) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        for life in lives:
            await nursery.start(life.run)
        yield nursery
        nursery.cancel_scope.cancel()


async def keys_in(store: MemoryStore, prefix: str) -> set[str]:
    return {info.key async for page in store.list(prefix) for info in page}


async def segments_in(store: MemoryStore) -> list[str]:
    names = [info.key async for page in store.list("default/") for info in page if info.key.endswith(".kfs")]
    return [f"{int(name.rpartition('segment-')[2][:20])}" for name in names]


async def test_a_suspended_broker_deletes_the_segments_of_a_topic_that_its_successor_has(
    autojump_clock: MockClock,
) -> None:
    bucket = MemoryStore()
    older, newer = Life(bucket), Life(bucket)
    async with running(older) as nursery:
        await older.create(**AT_ONCE)
        await older.append(b"a")
        await trio.sleep(15)  # the topic is in a checkpoint
        older.suspend()
        await older.broker.services.topics.delete(["t"])  # its deletion is not
        await nursery.start(newer.run)
        await newer.append(b"b")
        await older.resume()
        assert await segments_in(bucket) == ["0", "1"]
        assert older.was_fenced


async def test_a_suspended_broker_deletes_the_records_that_its_successor_has(autojump_clock: MockClock) -> None:
    """Deleted by a client: the new log start is acknowledged before a checkpoint has it."""
    bucket = MemoryStore()
    older, newer = Life(bucket), Life(bucket)
    async with running(older) as nursery:
        await older.create(**AT_ONCE)
        await older.append(b"a", b"b", b"c")
        await trio.sleep(15)
        older.suspend()
        await older.delete_records(2)
        await trio.sleep(3)  # retention has come by
        assert older.partition().log_start_offset == 2
        await nursery.start(newer.run)
        await older.resume()
        assert await segments_in(bucket) == ["0", "1", "2"]
        assert newer.partition().log_start_offset == 0
        assert older.was_fenced


async def test_a_suspended_broker_can_finish_deletions_recorded_before_its_successor(autojump_clock: MockClock) -> None:
    """Suspended between its look at the claim and the deletion: its successor has seen what was decided before."""
    bucket = MemoryStore()
    older, newer = Life(bucket), Life(bucket)
    async with running(older) as nursery:
        await older.create(**AT_ONCE)
        await older.append(b"a", b"b", b"c")
        gate = older.store.hold(On("delete", "default/*"))
        await older.delete_records(2)
        await gate.wait_arrived()
        older.suspend()
        await nursery.start(newer.run)
        assert newer.partition().log_start_offset == 2
        gate.open()
        await older.resume()
        assert await segments_in(bucket) == ["2"]
        assert older.was_fenced


async def test_a_suspended_broker_collects_no_orphans_that_its_successor_has(autojump_clock: MockClock) -> None:
    bucket = MemoryStore()
    settings = attrs.evolve(HURRIED, orphan_check_interval_seconds=20.0, orphan_grace_seconds=0.0)
    older, newer = Life(bucket, settings), Life(bucket)
    async with running(older) as nursery:
        await older.create(**AT_ONCE)
        await older.append(b"a")
        await trio.sleep(15)
        older.suspend()
        topics = older.broker.services.topics
        log = older.broker.services.log
        topics._listeners[:] = [TopicListener(on_deleted=lambda topic: log.close_topic(topic.name) and None)]
        await topics.delete(["t"])  # nobody buries it, as after a crash: only the orphan collector finds it
        await trio.sleep(10)
        await nursery.start(newer.run)
        await newer.append(b"b")
        await older.resume()
        assert await segments_in(bucket) == ["0", "1"]
        assert older.was_fenced


@pytest.mark.parametrize("durability", Durability)
async def test_a_suspended_broker_prunes_nothing_that_its_successor_needs(
    autojump_clock: MockClock, durability: Durability
) -> None:
    """Checkpoints, and the log in the bucket behind them. One checkpoint is on its way, and another follows."""
    bucket = MemoryStore()
    settings = attrs.evolve(HURRIED, durability=durability)
    older, newer = Life(bucket, settings), Life(bucket, settings)
    async with running(older) as nursery:
        await older.create()
        await trio.sleep(15)
        await older.create("u")
        older.suspend()
        await trio.sleep(15)
        deletions_count = older.store.count("delete")
        await nursery.start(newer.run)
        await older.resume()
        assert older.store.count("delete") == deletions_count
        assert older.was_fenced


async def test_a_suspended_broker_trims_nothing_of_the_log_that_its_successor_has_replayed(
    autojump_clock: MockClock,
) -> None:
    """Its flush was under way: with that, nobody needed the object of the log that the record was in."""
    bucket = MemoryStore()
    settings = attrs.evolve(HURRIED, durability=Durability.S3_WAL, flush_interval_seconds=3600.0)
    older, newer = Life(bucket, settings), Life(bucket, settings)
    async with running(older) as nursery:
        await older.create(**AT_ONCE)
        await append_nowait(older.partition(), b"a")[1].wait()
        await older.create("u")
        await trio.sleep(30)  # two checkpoints have the metadata
        before = await keys_in(bucket, "_kafscale/default/wal/0000000000/")
        older.suspend()
        nursery.start_soon(older.broker.services.log.flusher.flush_all)
        await trio.sleep(1)
        await nursery.start(newer.run)
        await older.resume()
        assert await segments_in(bucket) == ["0"]
        assert before < await keys_in(bucket, "_kafscale/default/wal/0000000000/")  # a fence has come
        assert older.was_fenced


async def test_a_superseded_broker_cannot_delete_objects(autojump_clock: MockClock) -> None:
    """Each view of the store that its parts work with has the guard, so a new kind of deletion has it, too."""
    bucket = MemoryStore()
    older, newer = Life(bucket), Life(bucket)
    await bucket.put("default/x", [b""])
    async with running(older) as nursery:
        await older.create(**AT_ONCE)
        older.store.fail(On("get*", CLAIM))  # so that it lives on
        await nursery.start(newer.run)
        older.store.heal()
        views = older.broker.services.log.views
        for view in (views.acknowledge, views.fetch, views.background):
            with pytest.raises(Fenced):
                await view.delete(["default/x"])
        assert await keys_in(bucket, "default/x")
