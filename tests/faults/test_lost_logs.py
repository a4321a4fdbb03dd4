"""Brokers whose data directory loses a part between two runs: `metadata.db`, or files of the write-ahead log.

By a seed, a broker runs several times with `--durability wal` and is killed or stopped. In between, `metadata.db` is
lost or replaced by an older copy, or files of the log are deleted, emptied or cut. After each start must hold:

    no offset that was acknowledged before is given to another record
    each acknowledged record is served, unless a line at ERROR has told of the loss, or has kept it aside
    what was kept aside is served again once it was adopted
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import attrs
import pytest
import trio

from kafscale.broker import Broker
from kafscale.broker_storage import StorageParts
from kafscale.client.connection import Connection
from kafscale.cluster.membership.start.adoption import UnknownBatches, adopt, find_unknown_topics
from kafscale.cluster.membership.start.recovery import MetadataExtents
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.registries.topics import TopicRegistry
from kafscale.config import Durability
from kafscale.errors import BrokerUnavailable, KafScaleError
from kafscale.log.log import LOST_OFFSETS_COUNT
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.batch_header import batches
from kafscale.wire.error_codes import NONE
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kafscale.wire.records import Record, build_batch, iterate_records
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_settings
from tests.devtools.world.determinism import seeds

RUNS_COUNT = 5
PARTITION_COUNT = 2
SEGMENT_BYTES = 64 << 10  # of a file of the log: some twenty batches
VALUE_BYTES = 1200
Key = tuple[bytes, int]  # a topic's id, and a partition


@attrs.define(eq=False)
class World:
    """The files of an ended broker, and its acknowledged values by partition and offset."""

    random: Random
    store: MemoryStore = attrs.field(factory=MemoryStore)
    disk: MemoryDisk = attrs.field(factory=MemoryDisk)
    metadata: MemoryMetadataStore = attrs.field(factory=MemoryMetadataStore)
    copies: list[MemoryMetadataStore] = attrs.field(factory=list)  # of the metadata, as it was before
    acknowledged: dict[Key, dict[int, bytes]] = attrs.field(factory=lambda: defaultdict(dict))
    names: dict[bytes, str] = attrs.field(factory=dict)
    count: int = 0

    async def produce(self, connection: Connection, name: str, topic_id: bytes) -> None:
        """Produce a batch to any of the topic's partitions, and note its offsets."""
        partition = self.random.randrange(PARTITION_COUNT)
        values = [b"%d" % (self.count + each) + bytes(VALUE_BYTES) for each in range(self.random.randint(1, 4))]
        self.count += len(values)
        batch = build_batch([Record(value=value) for value in values])
        data = PartitionProduceData(index=partition, records=memoryview(batch))
        topic = TopicProduceData(name=name, topic_id=topic_id, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        reply = (await connection.request(request, ProduceResponse)).responses[0].partition_responses[0]
        if reply.error_code:
            return
        known = self.acknowledged[topic_id, partition]
        for offset, value in enumerate(values, reply.base_offset):
            assert offset not in known, f"offset {offset} of {name}-{partition} is given to a second record"
            known[offset] = value


@asynccontextmanager
async def running(world: World, *, is_killed: bool, **settings) -> AsyncIterator[tuple[Broker, Connection]]:
    """Run a broker for the block; then it is killed, or stopped in order."""
    broker = Broker(memory_settings(durability=Durability.WAL, wal_segment_bytes=SEGMENT_BYTES, **settings))
    parts = StorageParts(store=world.store, metadata=world.metadata, disk=world.disk)
    async with trio.open_nursery() as nursery:
        ended = trio.Event()

        async def live(*, task_status) -> None:
            await broker.run_on(parts, task_status=task_status)
            ended.set()

        await nursery.start(live)
        async with trio.open_nursery() as clients:
            yield broker, await MemoryBroker(broker, clients).connect()
            if is_killed:
                world.disk, world.metadata = world.disk.crash(rng=world.random), world.metadata.crash()
            else:
                broker.stop()
                await ended.wait()
            clients.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def served(connection: Connection, broker: Broker, key: Key) -> dict[int, bytes]:
    """Read a partition from its beginning to its end, as a consumer does."""
    partition = broker.services.log.partition(*key)
    assert partition is not None
    topic = broker.services.topics.by_id(key[0])
    found: dict[int, bytes] = {}
    position = 0
    while position < partition.high_watermark:
        wanted = FetchPartition(partition=key[1], fetch_offset=position, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=topic.name, topic_id=key[0], partitions=[wanted])]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
        reply = (await connection.request(request, FetchResponse)).responses[0].partitions[0]
        assert reply.error_code == NONE
        before = position
        for batch in batches(memoryview(bytes(reply.records or b""))):
            found |= {record.offset: bytes(record.value) for record in iterate_records(batch)}
            position = max(position, int.from_bytes(batch[0:8]) + int.from_bytes(batch[23:27]) + 1)
        assert position > before, f"a consumer does not get beyond offset {position}"
    return found


# ---- what is lost ------------------------------------------------------------------------------------------------


def log_files(world: World) -> list[str]:
    return sorted(name for name in world.disk.files if name.startswith("wal-"))


def delete_file(world: World, name: str) -> None:
    del world.disk.files[name], world.disk.synced[name]


def empty_file(world: World, name: str) -> None:
    for files in (world.disk.files, world.disk.synced):
        files[name] = bytearray(len(files[name]) if world.random.random() < 0.5 else 0)


def lose_metadata(world: World) -> None:
    world.metadata = MemoryMetadataStore()


def restore_metadata(world: World) -> None:
    if world.copies:
        world.metadata = world.random.choice(world.copies)


def lose_files(world: World) -> None:
    """Delete or empty all files of the log, the first, the last, or any."""
    names = log_files(world) or [""]
    chosen = world.random.choice([names, names[:1], names[-1:], [world.random.choice(names)], names[-2:]])
    for name in filter(None, chosen):
        world.random.choice([delete_file, empty_file])(world, name)


def lose_nothing(world: World) -> None:
    """Leave all as it is."""


LOSSES: list[Callable[[World], None]] = [lose_nothing, lose_metadata, restore_metadata, lose_files, lose_files]


# ---- the test ----------------------------------------------------------------------------------------------------


async def give_back(world: World) -> None:
    """Adopt what was kept aside, as the command does."""
    topics = TopicRegistry(store=world.metadata)
    await topics.load()
    unknown = UnknownBatches(world.disk, topics.knows, MetadataExtents(world.metadata))
    found = await unknown.find(await find_unknown_topics(world.store, "default", topics.has, lambda _: None))

    async def give(names) -> None:
        await unknown.give_back(names, SEGMENT_BYTES)

    for adoption in await adopt(topics, found, {}, broker_id=0, give_back=give):
        assert adoption.refusal is None or "no records at offsets" in adoption.refusal, adoption.refusal


def losses_told(caplog) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.ERROR]


async def check_served(world: World, broker: Broker, connection: Connection, *, may_lack: bool) -> None:
    for key, known in world.acknowledged.items():
        if broker.services.log.partition(*key) is None:
            assert may_lack, f"{world.names[key[0]]} is gone without a word"
            continue
        found = await served(connection, broker, key)
        for offset, value in known.items():
            if offset in found:
                assert found[offset] == value, f"offset {offset} has another record now"
            else:
                assert may_lack, f"offset {offset} of {world.names[key[0]]}-{key[1]} is lost without a word"


async def load(world: World, broker: Broker, connection: Connection) -> None:
    """Create a topic, and produce to it and to all others that there are."""
    name = f"topic-{len(world.names)}"
    wanted = CreatableTopic(name=name, num_partitions=PARTITION_COUNT, replication_factor=1)
    await connection.request(CreateTopicsRequest(topics=[wanted]), CreateTopicsResponse)
    world.names[broker.services.topics.get(name).topic_id] = name
    for at in range(world.random.randint(5, 60)):
        topic_id = world.random.choice(list(world.names))
        if (topic := broker.services.topics.by_id(topic_id)) is not None:
            with suppress(BrokerUnavailable, KafScaleError):
                await world.produce(connection, topic.name, topic_id)
        if at % 20 == 10:
            world.copies.append(world.metadata.crash())
            await trio.sleep(world.random.choice([0.0, 0.5, 15.0]))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds(40, more=400))
async def test_no_loss_of_files_is_silent_or_has_an_offset_given_out_twice(autojump_clock, caplog, seed):
    world = World(Random(seed))
    told: list[str] = []
    for _ in range(RUNS_COUNT):
        is_killed = world.random.random() < 0.7
        interval = world.random.choice([0.1, 5.0, 3600.0])
        async with running(world, is_killed=is_killed, flush_interval_seconds=interval) as (broker, connection):
            told += losses_told(caplog)
            await check_served(world, broker, connection, may_lack=bool(told))
            await load(world, broker, connection)
            await check_served(world, broker, connection, may_lack=bool(told))
        if told and world.random.random() < 0.5:
            await give_back(world)
        caplog.clear()
        world.random.choice(LOSSES)(world)
    async with running(world, is_killed=False) as (broker, connection):
        told += losses_told(caplog)
        await check_served(world, broker, connection, may_lack=bool(told))


async def produced(world: World, count: int, **settings) -> None:
    """Let a broker acknowledge `count` batches that no segment has, and kill it."""
    async with running(world, is_killed=True, flush_interval_seconds=3600.0, **settings) as (broker, connection):
        wanted = CreatableTopic(name="orders", num_partitions=PARTITION_COUNT, replication_factor=1)
        await connection.request(CreateTopicsRequest(topics=[wanted]), CreateTopicsResponse)
        topic_id = broker.services.topics.get("orders").topic_id
        world.names[topic_id] = "orders"
        for _ in range(count):
            await world.produce(connection, "orders", topic_id)


async def test_records_set_aside_are_served_again_once_adopted(autojump_clock, caplog):
    world = World(Random(1))
    await produced(world, 100)
    lose_metadata(world)
    async with running(world, is_killed=False):
        (kept,) = losses_told(caplog)
        assert "100 record batches that were acknowledged here are not in the log" in kept
        assert "orders (" in kept
    await give_back(world)
    async with running(world, is_killed=True) as (broker, connection):
        await check_served(world, broker, connection, may_lack=False)
        await load(world, broker, connection)
    async with running(world, is_killed=False) as (broker, connection):
        await check_served(world, broker, connection, may_lack=False)


async def test_an_older_copy_of_the_metadata_does_not_bring_back_offsets_that_were_lost(autojump_clock, caplog):
    world = World(Random(4))
    async with running(world, is_killed=True, flush_interval_seconds=3600.0) as (broker, connection):
        await load(world, broker, connection)
    for name in log_files(world):
        delete_file(world, name)
    older = world.metadata.crash()
    async with running(world, is_killed=True, flush_interval_seconds=3600.0):
        copied = world.metadata.crash()
        for entry in await copied.list("lost-offsets/"):
            await copied.commit(Transaction(deletes=[entry.key]))
    for metadata in (copied, older):  # of the last start, as the checkpoint in the bucket, and of the one before
        world.metadata = metadata
        async with running(world, is_killed=True) as (broker, connection):
            ends = [partition.next_offset for partition in broker.services.log.by_name["topic-0"]]
            assert all(end >= LOST_OFFSETS_COUNT for end in ends)
            await load(world, broker, connection)


@pytest.mark.parametrize("lose", [delete_file, empty_file])
@pytest.mark.parametrize(
    "which", [slice(None), slice(1), slice(3, 4), slice(-2, None)], ids=["all", "first", "third", "last"]
)
async def test_offsets_were_given_out_again_where_files_of_the_log_had_gone(autojump_clock, caplog, lose, which):
    world = World(Random(2))
    await produced(world, 100)
    for name in log_files(world)[which]:
        lose(world, name)
    async with running(world, is_killed=True, flush_interval_seconds=3600.0) as (broker, connection):
        (told,) = [each for each in losses_told(caplog) if "is not whole" in each]
        assert "missing or empty" in told
        ends = [partition.next_offset for partition in broker.services.log.by_name["orders"]]
        assert all(end >= LOST_OFFSETS_COUNT for end in ends)
        await check_served(world, broker, connection, may_lack=True)
        await load(world, broker, connection)
    caplog.clear()
    async with running(world, is_killed=False) as (broker, connection):  # it is told once, and the log goes on
        assert losses_told(caplog) == []
        await check_served(world, broker, connection, may_lack=True)
    async with running(world, is_killed=False) as (broker, connection):
        await check_served(world, broker, connection, may_lack=True)
