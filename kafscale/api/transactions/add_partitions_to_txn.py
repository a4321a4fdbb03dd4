"""AddPartitionsToTxn (24): enrol partitions in a transaction.

v2  may answer PRODUCER_FENCED (KIP-588)
v3  flexible
v4  several transactions at once, or only to verify partitions; sent by brokers (KIP-890)
v5  may answer TRANSACTION_ABORTABLE

As in Kafka, if one partition of a transaction can't be added, the others are OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import know_topics
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.registries.topic_names import is_internal
from kafscale.cluster.transactions.ledger import ProducerIdentity
from kafscale.cluster.transactions.versions import (
    ADD_PARTITIONS_BUMP_VERSION,
    ADD_PARTITIONS_FENCED_VERSION,
    fenced_code,
    transaction_version,
)
from kafscale.concurrency.turns import Turns
from kafscale.errors import KafkaError
from kafscale.security.acls import WRITE_TOPIC, WRITE_TRANSACTION
from kafscale.wire.error_codes import (
    NONE,
    OPERATION_NOT_ATTEMPTED,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

AT_ONCE_COUNT = 500  # transactions in concurrent tasks


async def handle(services: Services, call: Call, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    if call.version >= ADD_PARTITIONS_BUMP_VERSION:
        results = [
            AddPartitionsToTxnResult(transactional_id=wanted.transactional_id) for wanted in request.transactions
        ]

        async def add(result: AddPartitionsToTxnResult, wanted: AddPartitionsToTxnTransaction) -> None:
            result.topic_results = await _add(services, call, wanted)

        for start in range(0, len(results), AT_ONCE_COUNT):
            async with trio.open_nursery() as nursery:  # so that they become durable together
                for index in range(start, min(start + AT_ONCE_COUNT, len(results))):
                    nursery.start_soon(add, results[index], request.transactions[index])
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    only = AddPartitionsToTxnTransaction(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        topics=request.topics,
    )
    return AddPartitionsToTxnResponse(results_by_topic=await _add(services, call, only))


async def _add(
    services: Services, call: Call, wanted: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    version = call.version
    errors = await _refused(services, call, wanted.topics)
    if version < ADD_PARTITIONS_BUMP_VERSION and (
        code := services.access.error_code(call, WRITE_TRANSACTION, wanted.transactional_id)
    ):
        errors = dict.fromkeys(errors, code)
    if any(errors.values()):
        errors = {at: code or OPERATION_NOT_ATTEMPTED for at, code in errors.items()}
    else:
        errors = await _ask(services, version, wanted, frozenset(errors))
    turns = Turns()
    results: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for at, code in errors.items():
        await turns.step()
        result = AddPartitionsToTxnPartitionResult(partition_index=at.partition, partition_error_code=code)
        results.setdefault(at.topic, []).append(result)
    return [
        AddPartitionsToTxnTopicResult(name=name, results_by_partition=of_topic) for name, of_topic in results.items()
    ]


async def _refused(
    services: Services, call: Call, topics: Sequence[AddPartitionsToTxnTopic]
) -> dict[TopicPartition, int]:
    await know_topics(services, [topic.name for topic in topics])
    turns = Turns()
    found: dict[TopicPartition, int] = {}
    for wanted in topics:
        await turns.step()
        topic = services.topics.get(wanted.name)
        is_client = call.version < ADD_PARTITIONS_BUMP_VERSION  # later versions come from brokers
        may = not is_client or services.access.allows(call, WRITE_TOPIC, wanted.name)
        for index in wanted.partitions:
            await turns.step()
            code = NONE
            if not may or (is_client and is_internal(wanted.name)):
                code = TOPIC_AUTHORIZATION_FAILED  # no client writes there
            elif topic is None or not 0 <= index < topic.partition_count:
                code = UNKNOWN_TOPIC_OR_PARTITION
            found[TopicPartition(wanted.name, index)] = code
    return found


async def _ask(
    services: Services, version: int, wanted: AddPartitionsToTxnTransaction, partitions: frozenset[TopicPartition]
) -> dict[TopicPartition, int]:
    identity = ProducerIdentity(wanted.transactional_id, wanted.producer_id, wanted.producer_epoch)
    protocol = transaction_version(version, ADD_PARTITIONS_BUMP_VERSION)
    try:
        reply = await services.transactions.add_partitions(
            identity, partitions, transaction_version=protocol, verify_only=wanted.verify_only
        )
    except KafkaError as exc:
        return dict.fromkeys(partitions, exc.code)
    return {at: fenced_code(reply.error_of(at), version, ADD_PARTITIONS_FENCED_VERSION) for at in partitions}


API = Api(24, "AddPartitionsToTxn", 0, 5, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, handle)
