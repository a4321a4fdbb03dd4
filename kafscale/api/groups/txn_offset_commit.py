"""TxnOffsetCommit (28): offsets that become a group's when the producer's transaction commits. Durable when answered.

v2  leader epochs; may answer COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)
v3  flexible; the member that has read them, so that one that has lost its partitions is refused (KIP-447)
v4  may answer TRANSACTION_ABORTABLE (KIP-890)
v5  makes the group's offsets part of the transaction, which AddOffsetsToTxn did before

A group that does not exist is made, unless a generation of it is named. Partitions are refused as by OffsetCommit.
"""

from __future__ import annotations

from functools import partial

from kafscale.api.groups.offset_commit import check_again, check_partition
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import membership_error, prepare_groups, refusal_error
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.events import GroupMemberIdentity as Member
from kafscale.cluster.transactions.offset_commits import OffsetsOfTransaction
from kafscale.cluster.transactions.requests import ProducerIdentity as Producer
from kafscale.cluster.transactions.versions import (
    TXN_OFFSET_COMMIT_BUMP_VERSION,
    transaction_version,
    txn_offset_commit_code,
)
from kafscale.concurrency.turns import Turns
from kafscale.wire.error_codes import NONE
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue
from kafscale.wire.messages.offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kafscale.wire.schema import mapped


async def handle(services: Services, call: Call, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    await prepare_groups(services)
    refused: dict[TopicPartition, int] = {}
    offsets: dict[TopicPartition, OffsetCommitValue] = {}
    topic_ids: dict[str, bytes] = {}
    turns = Turns()
    for topic in request.topics:
        await turns.step()
        for partition in topic.partitions:
            await turns.step()
            at = TopicPartition(topic.name, partition.partition_index)
            refused[at] = check_partition(services, at, partition.committed_metadata, topic_ids, by_id=False)
            if refused[at] == NONE:
                offsets[at] = services.groups.new_offset(
                    partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata,
                    retention_ms=None,
                    topic_id=topic_ids[topic.name],
                )
    if (error_code := membership_error(services, request.group_id)) != NONE:
        refused |= dict.fromkeys(offsets, error_code)
    elif offsets:
        check = partial(check_again, services, request.group_id, topic_ids, False)
        refused |= await services.transactional_offsets.commit(_wanted(call, request, offsets), check)
    if (error_code := await refusal_error(services, set(refused.values()))) != NONE:
        refused = dict.fromkeys(refused, error_code)

    def outcome(topic: str, partition: TxnOffsetCommitRequestPartition) -> TxnOffsetCommitResponsePartition:
        index = partition.partition_index
        code = txn_offset_commit_code(refused[TopicPartition(topic, index)], call.version)
        return TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)

    def outcomes(topic: TxnOffsetCommitRequestTopic) -> TxnOffsetCommitResponseTopic:
        return TxnOffsetCommitResponseTopic(
            name=topic.name, partitions=mapped(partial(outcome, topic.name), topic.partitions)
        )

    return TxnOffsetCommitResponse(topics=mapped(outcomes, request.topics))


def _wanted(
    call: Call, request: TxnOffsetCommitRequest, offsets: dict[TopicPartition, OffsetCommitValue]
) -> OffsetsOfTransaction:
    return OffsetsOfTransaction(
        producer=Producer(request.transactional_id, request.producer_id, request.producer_epoch),
        transaction_version=transaction_version(call.version, TXN_OFFSET_COMMIT_BUMP_VERSION),
        group_id=request.group_id,
        member=Member(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id,
        ),
        offsets=offsets,
    )


API = Api(28, "TxnOffsetCommit", 0, 5, TxnOffsetCommitRequest, TxnOffsetCommitResponse, handle)
