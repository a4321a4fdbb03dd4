"""Calls of a transactional producer, in both versions of the protocol, and its reactions to the answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeVar

import attrs

from kafscale.client.connection import Connection, Reply
from kafscale.errors import KafkaError
from kafscale.wire import error_codes
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kafscale.wire.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
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
from tests.devtools.history.seen import Identity

R = TypeVar("R")
Place = tuple[str, int]  # a topic's name and a partition of it

TRANSACTIONS = 1  # FindCoordinator: the kind of key

_FENCED = frozenset(
    {error_codes.PRODUCER_FENCED, error_codes.INVALID_PRODUCER_EPOCH, error_codes.INVALID_PRODUCER_ID_MAPPING}
)
_NOT_ENROLLED = frozenset({error_codes.TRANSACTION_ABORTABLE, error_codes.INVALID_TXN_STATE})
_LOST = frozenset({error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, error_codes.UNKNOWN_PRODUCER_ID, *_NOT_ENROLLED})


class Answer(Enum):
    DONE = "done"
    AGAIN = "again"
    FENCED = "fenced"  # by another producer of its id, or since its transaction has timed out
    REFUSED = "refused"  # a partition has not been enrolled


@attrs.frozen
class Protocol:
    produce: int
    end_txn: int
    is_new: bool  # KIP-890, part 2: Produce enrols, and EndTxn raises the epoch


OLD = Protocol(produce=11, end_txn=4, is_new=False)
NEW = Protocol(produce=12, end_txn=5, is_new=True)


@attrs.frozen(kw_only=True)
class Calls:
    """One connection of a producer. With `has_lost` the broker may have forgotten producers."""

    connection: Connection
    protocol: Protocol
    transactional_id: str
    has_lost: bool

    async def find_coordinator(self) -> int:
        request = FindCoordinatorRequest(key_type=TRANSACTIONS, coordinator_keys=[self.transactional_id])
        (found,) = (await self.connection.request(request, FindCoordinatorResponse)).coordinators
        return found.error_code

    async def init(self, timeout_ms: int, named: Identity | None) -> InitProducerIdResponse:
        """Ask for an epoch; with `named`, for the one after that (KIP-360)."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1 if named is None else named.producer_id,
            producer_epoch=-1 if named is None else named.producer_epoch,
        )
        return await self.connection.request(request, InitProducerIdResponse)

    async def add(self, identity: Identity, places: Sequence[Place]) -> int:
        """Enrol partitions, in the old protocol. Returns the first error."""
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in places:
            topics[topic].append(partition)
        request = AddPartitionsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        )
        answer = await (await self._send(request, AddPartitionsToTxnResponse, 3)).wait()
        codes = [
            partition.partition_error_code
            for topic in answer.results_by_topic
            for partition in topic.results_by_partition
        ]
        return next((code for code in codes if code not in (0, error_codes.OPERATION_NOT_ATTEMPTED)), 0)

    async def produce(self, data: Mapping[Place, bytearray]) -> Reply[ProduceResponse]:
        topics: defaultdict[str, list[PartitionProduceData]] = defaultdict(list)
        for (topic, partition), batch in data.items():
            topics[topic].append(PartitionProduceData(index=partition, records=memoryview(batch)))
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=name, partition_data=partitions) for name, partitions in topics.items()],
        )
        return await self._send(request, ProduceResponse, self.protocol.produce)

    async def end(self, identity: Identity, *, commit: bool) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=commit,
        )
        return await (await self._send(request, EndTxnResponse, self.protocol.end_txn)).wait()

    async def commit_offsets(self, identity: Identity, group: str, topic: str, offsets: Mapping[int, int]) -> int:
        """Commit a group's offsets in the transaction. Returns the first error."""
        if not self.protocol.is_new:
            added = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                group_id=group,
            )
            answer = await self.connection.request(added, AddOffsetsToTxnResponse)
            if answer.error_code:
                return answer.error_code
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=None
                        )
                        for index, offset in offsets.items()
                    ],
                )
            ],
        )
        version = 5 if self.protocol.is_new else 4
        done = await (await self._send(request, TxnOffsetCommitResponse, version)).wait()
        codes = [partition.error_code for topic_done in done.topics for partition in topic_done.partitions]
        return next(filter(None, codes), 0)

    def judge(self, error_code: int, what: str) -> Answer:
        """Return the reaction to an error code. Raises KafkaError for an error that this producer must not get."""
        if not error_code:
            return Answer.DONE
        if error_code in error_codes.RETRIABLE:
            return Answer.AGAIN
        if error_code in _FENCED or (self.has_lost and error_code in _LOST):
            return Answer.FENCED
        if error_code in _NOT_ENROLLED:
            return Answer.REFUSED
        raise KafkaError(error_code, f"{what}: {error_codes.name(error_code)}")

    async def _send(self, request: object, response_class: type[R], version: int) -> Reply[R]:
        return await self.connection.send(request, response_class, version=version)


def by_place(response: ProduceResponse) -> dict[Place, PartitionProduceResponse]:
    return {
        (topic.name, partition_response.index): partition_response
        for topic in response.responses
        for partition_response in topic.partition_responses
    }
