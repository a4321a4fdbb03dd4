"""Requests to a broker in memory that has one topic of two partitions: for the tests of single APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from kafscale.broker_storage import StorageParts
from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Settings
from kafscale.log.partition.partition import Partition
from kafscale.wire import compression, error_codes
from kafscale.wire.codec import encode
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.records import Record, build_batch
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker

TOPIC = "orders"

R = TypeVar("R")


@asynccontextmanager
async def one_topic(
    parts: StorageParts, settings: Settings | None = None
) -> AsyncIterator[tuple[MemoryBroker, Connection]]:
    """Run a broker and connect to it; the topic is created if `parts` have none yet."""
    async with memory_broker(parts, settings) as running:
        services = running.broker.services
        if services.log.partition_named(TOPIC, 0) is None:
            await services.topics.create([NewTopic(name=TOPIC, partition_count=2)])
        yield running, await running.connect()


def first_partition(running: MemoryBroker) -> Partition:
    """Partition 0 of the topic."""
    partition = running.broker.services.log.partition_named(TOPIC, 0)
    assert partition is not None
    return partition


async def produce_batch(client: Connection, timestamps_ms: Sequence[int], *, codec: int = compression.NONE) -> None:
    """Write one batch to partition 0, with one record for each timestamp."""
    records = [
        Record(offset=0, timestamp_ms=timestamp_ms, key=None, value=b"v", headers=[]) for timestamp_ms in timestamps_ms
    ]
    data = PartitionProduceData(index=0, records=memoryview(build_batch(records, codec=codec)))
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
    )
    response = await client.request(request, ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == error_codes.NONE


async def request_in(client: Connection, version: int, request: object, response_class: type[R]) -> R:
    """Send one request in this version and wait for its reply."""
    call = client.call(type(request), response_class, version=version)
    return await (await client.send_encoded(call, encode(request, version))).wait()
