"""A transactional producer driven call by call, a read_committed consumer, and a broker for both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from kafscale.broker_storage import StorageParts
from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Durability
from kafscale.wire import codec
from kafscale.wire import error_codes as e
from kafscale.wire.batch_header import TRANSACTIONAL, batches, parse_header
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
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
from kafscale.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings
from tests.devtools.fakes.transactions import counted_batches

TOPIC = "orders"
OLD, NEW = 11, 12  # of Produce: by AddPartitionsToTxn, and enrolled by the batch


@attrs.define(eq=False)
class Producer:
    client: Connection
    transactional_id: str = "x"
    produce_version: int = NEW
    producer_id: int = -1
    epoch: int = -1
    coordinator_id: int = 0
    sequences: dict[int, int] = attrs.field(factory=dict)

    async def call(self, request: Any, response: Any, version: int) -> Any:
        call = self.client.call(type(request), response, version=version)
        return await (await self.client.send_encoded(call, codec.encode(request, version))).wait()

    async def init(self, timeout_ms: int = 60_000) -> int:
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
        (found,) = (await self.call(find, FindCoordinatorResponse, 4)).coordinators
        assert (found.error_code, found.node_id) == (e.NONE, self.coordinator_id)
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms)
        while True:
            answer = await self.call(request, InitProducerIdResponse, 4)
            if answer.error_code not in (e.COORDINATOR_LOAD_IN_PROGRESS, e.NOT_COORDINATOR):
                break
            await trio.sleep(0.05)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()
        return int(answer.error_code)

    async def add(self, *indexes: int, topic: str = TOPIC, version: int = 3) -> list[int]:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))]
        request = AddPartitionsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=topics,
        )
        (answer,) = (await self.call(request, AddPartitionsToTxnResponse, version)).results_by_topic
        return [result.partition_error_code for result in answer.results_by_partition]

    def batch(self, index: int, *values: bytes, codec_id: int = 0) -> memoryview:
        sequence = self.sequences.get(index, 0)
        stamp = ProducerStamp(self.producer_id, self.epoch, sequence)
        records = [Record(key=b"k", value=value) for value in values]
        return memoryview(build_batch(records, producer=stamp, attributes=TRANSACTIONAL, codec=codec_id))

    async def send(self, index: int, *values: bytes, transactional_id: str | None = "") -> int:
        data = PartitionProduceData(index=index, records=self.batch(index, *values))
        request = ProduceRequest(
            transactional_id=self.transactional_id if transactional_id == "" else transactional_id,
            acks=-1,
            timeout_ms=1_000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
        )
        answer = await self.call(request, ProduceResponse, self.produce_version)
        code = answer.responses[0].partition_responses[0].error_code
        if code == e.NONE:
            self.sequences[index] = self.sequences.get(index, 0) + len(values)
        return int(code)

    async def write(self, index: int, *values: bytes) -> None:
        """Enrol a partition in the way of this protocol, and write to it."""
        if self.produce_version < NEW:
            assert await self.add(index) == [e.NONE]
        assert await self.send(index, *values) == e.NONE

    async def add_offsets(self, group_id: str) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        return int((await self.call(request, AddOffsetsToTxnResponse, 3)).error_code)

    async def send_offsets(
        self, group_id: str, offsets: Mapping[int, int], *, topic: str = TOPIC, version: int | None = None, **more: Any
    ) -> list[int]:
        """Commit offsets by partition in the transaction. Returns the error of each."""
        partitions = [
            TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
            for index, offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)],
            **more,
        )
        if version is None:
            version = 5 if self.produce_version >= NEW else 3
        (answer,) = (await self.call(request, TxnOffsetCommitResponse, version)).topics
        return [partition.error_code for partition in answer.partitions]

    async def commit_offsets(self, group_id: str, offsets: Mapping[int, int]) -> None:
        """Enrol the group's offsets in the way of this protocol, and commit some."""
        if self.produce_version < NEW:
            assert await self.add_offsets(group_id) == e.NONE
        assert set(await self.send_offsets(group_id, offsets)) == {e.NONE}

    async def end(self, *, committed: bool) -> int:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        version = 5 if self.produce_version >= NEW else 3
        answer = await self.call(request, EndTxnResponse, version)
        if answer.error_code == e.NONE and version == 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return int(answer.error_code)


async def committed_values(client: Connection, index: int) -> list[bytes | None]:
    """Return the values that a `read_committed` consumer gets from the partition."""
    values: list[bytes | None] = []
    offset, stable_offset = 0, 1
    while offset < stable_offset:
        partition = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=1,
            topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
        )
        call = client.call(FetchRequest, FetchResponse, version=11)
        (answer,) = (await (await client.send_encoded(call, codec.encode(request, 11))).wait()).responses[0].partitions
        assert answer.error_code == e.NONE
        stable_offset = answer.last_stable_offset
        aborted = [(aborted.first_offset, aborted.producer_id) for aborted in answer.aborted_transactions or ()]
        records: Any = answer.records or b""
        found = list(batches(memoryview(records)))
        for batch, _ in counted_batches(found, aborted):
            values += [record.value for record in iterate_records(batch)]
        offset = max([offset, *(parse_header(batch).last_offset + 1 for batch in found)])
    return values


@asynccontextmanager
async def broker(
    durability: Durability = Durability.WAL, parts: StorageParts | None = None, **settings: Any
) -> AsyncIterator[tuple[Any, Connection]]:
    chosen = memory_settings(durability=durability, transaction_state_partitions_count=4, **settings)
    async with memory_broker(parts or memory_parts(), chosen) as running:
        if running.broker.services.topics.get(TOPIC) is None:
            await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=3)])
        yield running, await running.connect()
