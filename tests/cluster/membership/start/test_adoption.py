"""Adopted topics: what is inferred, what is refused, and a whole broker that serves them and appends behind."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from kafscale.broker_storage import StorageParts
from kafscale.cluster.membership.node import epoch_key
from kafscale.cluster.membership.start.adoption import adopt, find_unknown_topics, give_nothing_back
from kafscale.cluster.metadata.converter import decode
from kafscale.cluster.registries.producer_ids import NEXT_BLOCK_KEY
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.errors import NotFound
from kafscale.formats.segment import EpochStart, decode_footer, encode_footer
from kafscale.formats.transactions import ProducedBatch, Producer
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey, version_1_topic_id
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.batch_header import batches
from kafscale.wire.codec import encode
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from kafscale.wire.records import Record, build_batch, iterate_records
from tests.devtools.fakes.memory_broker import memory_broker, memory_settings
from tests.devtools.fakes.segment_objects import (
    CREATED_MS,
    make_batches,
    version_1_key,
    version_1_objects,
    version_2_objects,
)

TOPIC_ID = bytes(range(16))
LARGE = 400  # batches whose segment is larger than what is read for a footer


async def store_of(*objects):
    store = MemoryStore()
    for each in objects:
        await each.put(store)
    return store


def version_1_bucket():
    """Topic `orders`: offsets 0 to 1199 and 1209 to 1211 of partition 0, with a hole; 30 to 32 of partition 2."""
    return store_of(
        version_1_objects(version_1_key("orders", 0, 0), make_batches(0, LARGE, value_bytes=300)),
        version_1_objects(version_1_key("orders", 0, 1209), make_batches(1209, 1)),
        version_1_objects(version_1_key("orders", 2, 30), make_batches(30, 1)),
    )


def version_2(name="orders", topic_id=TOPIC_ID, base_offset=0, *, leader_epoch=0, generation=0, partition=0):
    key = SegmentKey(topic=name, topic_id=topic_id, partition=partition, base_offset=base_offset, generation=generation)
    return version_2_objects(key, make_batches(base_offset, 2), leader_epoch=leader_epoch)


async def adopt_all(store, metadata, overrides=None, *, dry_run=False):
    topics = TopicRegistry(store=metadata)
    await topics.load()
    found = await find_unknown_topics(store, "default", topics.has, lambda _: None)
    return await adopt(topics, found, overrides or {}, broker_id=0, give_back=None if dry_run else give_nothing_back)


async def registered(metadata):
    topics = TopicRegistry(store=metadata)
    await topics.load()
    return topics


async def contents(store):
    return {info.key: info.etag async for page in store.list("") for info in page}


async def test_names_partitions_and_offsets_are_inferred():
    metadata = MemoryMetadataStore()
    (adoption,) = await adopt_all(await version_1_bucket(), metadata)
    assert adoption.refusal is None
    assert adoption.topic.versions == [1]
    found = {index: (each.first_offset, each.next_offset) for index, each in adoption.topic.partitions.items()}
    assert found == {0: (0, 1212), 2: (30, 33)}
    topics = await registered(metadata)
    topic = topics.get("orders")
    assert (topic.topic_id, topic.partition_count) == (version_1_topic_id("orders"), 3)
    assert topic.overrides == {"retention.ms": "-1"}
    assert topics.log_start_offsets(topic.topic_id) == {2: 30}


async def test_a_second_run_finds_nothing():
    store, metadata = await version_1_bucket(), MemoryMetadataStore()
    await adopt_all(store, metadata)
    assert await adopt_all(store, metadata) == []


async def test_a_dry_run_changes_nothing_and_tells_the_same():
    store, metadata = await version_1_bucket(), MemoryMetadataStore()
    await store.delete([version_1_key("orders", 0, 0).of_kind("index").key])
    before = await contents(store)
    told = await adopt_all(store, metadata, dry_run=True)
    assert (await contents(store), metadata.commits) == (before, [])
    assert await adopt_all(store, metadata) == told
    assert await contents(store) == before


async def test_configs_can_be_given_and_are_checked():
    metadata = MemoryMetadataStore()
    store = await store_of(version_2())
    (refused,) = await adopt_all(store, metadata, {"retention.ms": "soon"})
    assert "retention.ms" in refused.refusal
    await adopt_all(store, metadata, {"retention.ms": "60000"})
    assert (await registered(metadata)).get("orders").overrides == {"retention.ms": "60000"}


async def test_leftovers_of_a_deleted_topic_are_refused_where_the_name_is_taken():
    metadata = MemoryMetadataStore()
    await (await registered(metadata)).create([NewTopic(name="orders")])
    (adoption,) = await adopt_all(await store_of(version_2()), metadata)
    assert "exists" in adoption.refusal


async def test_several_topics_of_one_name_are_all_refused():
    store = await store_of(
        version_2(), version_2(topic_id=bytes(range(1, 17))), version_2("other", bytes(range(2, 18)))
    )
    adoptions = await adopt_all(store, MemoryMetadataStore())
    assert [(each.topic.name, each.refusal is None) for each in adoptions] == [
        ("orders", False),
        ("orders", False),
        ("other", True),
    ]


async def test_a_topic_whose_last_segment_is_damaged_is_refused():
    damaged = version_2(base_offset=6)
    store = await store_of(version_2(), attrs.evolve(damaged, kfs=damaged.kfs[:-1]))
    (adoption,) = await adopt_all(store, MemoryMetadataStore())
    assert damaged.key.key in adoption.refusal


async def test_a_merged_segment_that_reaches_furthest_tells_the_end():
    key = SegmentKey(topic="orders", topic_id=TOPIC_ID, partition=0, base_offset=0, generation=1)
    merged = version_2_objects(key, make_batches(0, 8))
    (adoption,) = await adopt_all(await store_of(version_2(base_offset=6), merged), MemoryMetadataStore())
    assert adoption.topic.partitions[0].next_offset == 24


async def test_adoption_allocates_producer_ids_and_epochs_above_all_in_the_bucket():
    """After a lost checkpoint, a new producer must not be taken for one that a footer remembers."""
    objects = version_2(leader_epoch=7)
    footer = attrs.evolve(
        decode_footer(objects.index, "x"),
        producers=[Producer(2999, 0, [ProducedBatch(0, 5, 0, 5)], CREATED_MS)],
        epochs=[EpochStart(3, 0), EpochStart(7, 3)],
    )
    body = objects.kfs[: footer.end_position]
    store = await store_of(attrs.evolve(objects, kfs=body + encode_footer(footer), index=encode_footer(footer)))
    metadata = MemoryMetadataStore()
    await adopt_all(store, metadata)
    assert decode(int, (await metadata.get(NEXT_BLOCK_KEY)).value) == 3000
    assert decode(int, (await metadata.get(epoch_key(0))).value) == 7


# ---- a whole broker -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(parts):
    async with memory_broker(parts, memory_settings(flush_interval_seconds=1.0)) as running:
        yield await running.connect()


async def read_all(connection, partition=0, offset=0):
    """(offset, value) of all records from `offset` on."""
    read = []
    while True:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=5000)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[FetchTopic(topic="orders", partitions=[wanted])]
        )
        call = connection.call(FetchRequest, FetchResponse, version=12)
        reply = await connection.send_encoded(call, encode(request, 12))
        answer = (await reply.wait()).responses[0].partitions[0]
        assert answer.error_code == 0
        got = [record for batch in batches(memoryview(answer.records or b"")) for record in iterate_records(batch)]
        if not got:
            return read
        read += [(record.offset, record.value) for record in got if record.offset >= offset]
        offset = got[-1].offset + 1


async def produce(connection, value):
    batch = build_batch([Record(value=value, timestamp_ms=CREATED_MS)])
    data = [PartitionProduceData(index=0, records=memoryview(batch))]
    topic_data = [TopicProduceData(name="orders", partition_data=data)]
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topic_data)
    answer = (await connection.request(request, ProduceResponse)).responses[0].partition_responses[0]
    assert answer.error_code == 0
    return answer.base_offset


async def list_offset(connection, timestamp, partition=0):
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=[wanted])])
    return (await connection.request(request, ListOffsetsResponse)).topics[0].partitions[0].offset


def expected(*ranges):
    return [offset for each in ranges for offset in each]


async def adopted_parts(store):
    parts = StorageParts(store=store, metadata=MemoryMetadataStore(), disk=MemoryDisk())
    await adopt_all(store, parts.metadata)
    return parts


async def test_version_1_is_read_listed_and_appended_to(autojump_clock):
    parts = await adopted_parts(await version_1_bucket())
    async with serving(parts) as connection:
        read = await read_all(connection)
        assert [offset for offset, _ in read] == expected(range(1200), range(1209, 1212))
        assert all(value.startswith(b"%d." % offset) for offset, value in read)
        assert [offset for offset, _ in await read_all(connection, offset=700)][:2] == [700, 701]
        assert (await list_offset(connection, -2, 2), await list_offset(connection, -1, 2)) == (30, 33)
        assert await list_offset(connection, CREATED_MS + 500) == 500
        assert await list_offset(connection, -3) == 1211
        assert await produce(connection, b"behind") == 1212
    async with serving(parts) as connection:  # what was appended is a segment of version 2 now
        assert (await read_all(connection, offset=1205))[-2:] == [(1211, b"1211" + b"." * 20), (1212, b"behind")]
    versions = {"segment-00000000000000001212-" in key for key in await contents(parts.store)}
    assert versions == {True, False}


async def test_records_appended_after_adopted_version_1_segments_are_adopted_too(autojump_clock):
    parts = await adopted_parts(await version_1_bucket())
    async with serving(parts) as connection:
        await produce(connection, b"behind")
    parts = await adopted_parts(parts.store)
    async with serving(parts) as connection:
        assert (await read_all(connection, offset=1211))[-1] == (1212, b"behind")


async def test_deleting_an_adopted_topic_deletes_its_version_1_objects_and_no_others(autojump_clock):
    store = await version_1_bucket()
    await version_1_objects(version_1_key("orders2", 0, 0), make_batches(0, 1)).put(store)
    parts = await adopted_parts(store)
    async with serving(parts) as connection:
        await produce(connection, b"behind")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")], topic_names=["orders"], timeout_ms=1000)
        answer = await connection.request(request, DeleteTopicsResponse)
        assert answer.responses[0].error_code == 0
        await trio.sleep(memory_settings().segment_delete_delay_ms / 1000 + 1)
    left = [key for key in await contents(store) if not key.startswith("_kafscale/")]
    assert {key.split("/")[1] for key in left} == {"orders2"}


@pytest.mark.parametrize("generation", [0, 1])
async def test_version_2_keeps_its_id(autojump_clock, generation):
    parts = await adopted_parts(await store_of(version_2(generation=generation)))
    assert (await registered(parts.metadata)).get("orders").topic_id == TOPIC_ID
    async with serving(parts) as connection:
        assert [offset for offset, _ in await read_all(connection)] == list(range(6))


async def test_a_topic_being_deleted_is_refused_while_others_are_adopted():
    store = FaultyStore(await store_of(version_2("going"), version_2("staying", bytes(16))))
    store.fail(On("get_tail", "default/going/*"), NotFound)
    outcomes = await adopt_all(store, MemoryMetadataStore())
    refusals = {each.topic.name: each.refusal for each in outcomes}
    assert refusals["staying"] is None
    assert "a broker is deleting it" in refusals["going"]
