"""A full local disk: what has to be written is refused with errors that clients retry, and everything else goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from kafscale.api.transactions.init_producer_id import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kafscale.broker_storage import StorageParts
from kafscale.client.connection import Connection
from kafscale.cluster.metadata.checkpoint import INTERVAL_SECONDS, find_checkpoints
from kafscale.config import Durability
from kafscale.errors import StartupError
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.configs import (
    AlterClientQuotasEntry,
    AlterClientQuotasOp,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ClientQuotasEntity,
)
from kafscale.wire.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kafscale.wire.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafscale.wire.records import Record, build_batch
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings

KAFKA_STORAGE_ERROR = error_codes.KAFKA_STORAGE_ERROR


async def create(client: Connection, name: str) -> tuple[int, str | None]:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    response = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=1000), CreateTopicsResponse)
    return response.topics[0].error_code, response.topics[0].error_message


async def produce(client: Connection) -> int:
    data = PartitionProduceData(index=0, records=memoryview(build_batch([Record(value=b"x")])))
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])
    response = await client.request(request, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


async def commit(client: Connection) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)
    response = await client.request(request, OffsetCommitResponse)
    return response.topics[0].partitions[0].error_code


async def init_producer_id(client: Connection) -> int:
    request = InitProducerIdRequest(
        transactional_id=None,
        transaction_timeout_ms=0,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )
    return (await client.request(request, InitProducerIdResponse)).error_code


async def alter_quota(client: Connection) -> tuple[int, str | None]:
    entity = [ClientQuotasEntity(entity_type="client-id", entity_name="c")]
    ops = [AlterClientQuotasOp(key="producer_byte_rate", value=1e6)]
    request = AlterClientQuotasRequest(entries=[AlterClientQuotasEntry(entity=entity, ops=ops)], validate_only=False)
    entry = (await client.request(request, AlterClientQuotasResponse)).entries[0]
    return entry.error_code, entry.error_message


async def delete_records(client: Connection, offset: int) -> tuple[int, int]:
    partitions = [DeleteRecordsPartition(partition_index=0, offset=offset)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=1000)
    result = (await client.request(request, DeleteRecordsResponse)).topics[0].partitions[0]
    return result.error_code, result.low_watermark


async def delete_topic(client: Connection) -> int:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], topic_names=["t"], timeout_ms=1000)
    return (await client.request(request, DeleteTopicsResponse)).responses[0].error_code


def metadata_of(parts: StorageParts) -> MemoryMetadataStore:
    assert isinstance(parts.metadata, MemoryMetadataStore)
    return parts.metadata


@asynccontextmanager
async def broker_on_full_disk(durability: Durability) -> AsyncIterator[tuple[Connection, MemoryMetadataStore]]:
    """With three records in the topic t."""
    parts = memory_parts()
    async with memory_broker(parts, memory_settings(durability=durability)) as running:
        client = await running.connect()
        assert (await create(client, "t"))[0] == error_codes.NONE
        for _ in range(3):
            assert await produce(client) == error_codes.NONE
        metadata_of(parts).full = True
        yield client, metadata_of(parts)


@pytest.mark.parametrize("durability", [Durability.WAL, Durability.S3_WAL])
async def test_changes_of_metadata_are_refused_with_errors_that_clients_retry(autojump_clock, durability):
    """The first of them ended the broker."""
    async with broker_on_full_disk(durability) as (client, metadata):
        with trio.fail_after(5):
            assert await commit(client) == error_codes.COORDINATOR_NOT_AVAILABLE
            assert await init_producer_id(client) == error_codes.COORDINATOR_LOAD_IN_PROGRESS
            for code, message in (await create(client, "u"), await alter_quota(client)):
                assert code == KAFKA_STORAGE_ERROR
                assert message is not None
                assert "full" in message
            assert await produce(client) == error_codes.NONE
        metadata.full = False
        assert (await create(client, "u"))[0] == (await alter_quota(client))[0] == error_codes.NONE
        assert await commit(client) == await init_producer_id(client) == error_codes.NONE


@pytest.mark.parametrize("durability", [Durability.WAL, Durability.S3_WAL])
async def test_deletions_use_the_reserved_disk_space(autojump_clock, durability):
    async with broker_on_full_disk(durability) as (client, metadata):
        metadata.reserved_count = 2
        assert await delete_records(client, 2) == (error_codes.NONE, 2)
        assert await delete_topic(client) == error_codes.NONE


async def test_a_consumer_that_comes_joins_its_group_and_reads(autojump_clock):
    """Its assignment could not be stored, so its group rebalanced without end."""
    async with broker_on_full_disk(Durability.WAL) as (client, metadata):
        metadata.full = False
        await client.request(FindCoordinatorRequest(key="g", coordinator_keys=["g"]), FindCoordinatorResponse)
        metadata.full = True
        join = await client.request(join_request(""), JoinGroupResponse)
        join = await client.request(join_request(join.member_id), JoinGroupResponse)
        assignments = [SyncGroupRequestAssignment(member_id=join.member_id, assignment=b"all")]
        sync = SyncGroupRequest(
            group_id="g",
            generation_id=join.generation_id,
            member_id=join.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        synced = await client.request(sync, SyncGroupResponse)
        assert (synced.error_code, bytes(synced.assignment)) == (error_codes.NONE, b"all")


def join_request(member_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


async def test_a_start_in_wal_does_not_wait_for_its_checkpoint(autojump_clock):
    """Where the bucket is a directory of the full disk."""
    store = FaultyStore(MemoryStore())
    store.fail(On("put*", "*.checkpoint"))
    parts = attrs.evolve(memory_parts(), store=store)
    with trio.fail_after(2 * INTERVAL_SECONDS):
        async with memory_broker(parts) as running:
            client = await running.connect()
            assert (await create(client, "t"))[0] == error_codes.NONE
            store.heal()
            while (await find_checkpoints(store, "default")).newest is None:
                await trio.sleep(1)
    store.fail(On("put*", "*.checkpoint"))
    with pytest.RaisesGroup(StartupError, flatten_subgroups=True, allow_unwrapped=True):
        async with memory_broker(parts, memory_settings(durability=Durability.S3_WAL)):
            pass


async def test_a_refused_deletion_of_records_was_never_wanted(autojump_clock):
    """A later one of fewer records deleted as many as the refused one had asked for."""
    async with broker_on_full_disk(Durability.WAL) as (client, metadata):
        assert (await delete_records(client, 3))[0] == KAFKA_STORAGE_ERROR
        assert await delete_topic(client) == KAFKA_STORAGE_ERROR
        metadata.full = False
        assert await delete_records(client, 1) == (error_codes.NONE, 1)
        (log_start,) = await metadata.list("log-start-offsets/")
        assert log_start.value == b"1"


@pytest.mark.parametrize("durability", [Durability.WAL, Durability.S3_WAL])
async def test_a_metric_counts_metadata_changes_refused_by_a_full_disk(autojump_clock, durability):
    parts = memory_parts()
    async with memory_broker(parts, memory_settings(durability=durability)) as running:
        client = await running.connect()
        assert (await create(client, "t"))[0] == error_codes.NONE
        assert "\nkafscale_metadata_changes_refused_total 0\n" in running.broker.metrics.expose()
        metadata_of(parts).full = True
        assert (await create(client, "u"))[0] == KAFKA_STORAGE_ERROR
        assert await commit(client) != error_codes.NONE
        assert "\nkafscale_metadata_changes_refused_total 2\n" in running.broker.metrics.expose()
