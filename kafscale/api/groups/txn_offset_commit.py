"""TxnOffsetCommit (28): offsets that become a group's when the producer's transaction commits. Durable when answered.

v2  leader epochs; may answer COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)
v3  flexible; the member that has read them, so that one that has lost its partitions is refused (KIP-447)
v4  may answer TRANSACTION_ABORTABLE (KIP-890)
v5  makes the group's offsets part of the transaction, which AddOffsetsToTxn did before

A group that does not exist is made, unless a generation of it is named. Partitions are refused as by OffsetCommit.
"""

from __future__ import annotations

from functools import partial

from kafscale.api.groups.offset_commit import CheckedOffsets
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import membership_error, prepare_groups, refusal_error
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.context import GroupMemberIdentity as Member
from kafscale.cluster.transactions.ledger import ProducerIdentity as Producer
from kafscale.cluster.transactions.offset_commits import OffsetsOfTransaction
from kafscale.cluster.transactions.versions import (
    TXN_OFFSET_COMMIT_BUMP_VERSION,
    transaction_version,
    txn_offset_commit_code,
)
from kafscale.wire.error_codes import NONE
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
    checked = CheckedOffsets(services, by_id=False)
    await checked.add(request.topics)
    offsets, refused = checked.offsets, checked.refused
    if (error_code := membership_error(services, request.group_id)) != NONE:
        refused |= dict.fromkeys(offsets, error_code)
    elif offsets:
        wanted = OffsetsOfTransaction(
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
        refused |= await services.transactional_offsets.commit(wanted, partial(checked.check_again, request.group_id))
    if (error_code := await refusal_error(services, set(refused.values()))) != NONE:
        refused = dict.fromkeys([*offsets, *refused], error_code)

    def outcome(topic: str, partition: TxnOffsetCommitRequestPartition) -> TxnOffsetCommitResponsePartition:
        at = TopicPartition(topic, partition.partition_index)
        code = txn_offset_commit_code(refused.get(at, NONE), call.version)
        return TxnOffsetCommitResponsePartition(partition_index=at.partition, error_code=code)

    def outcomes(topic: TxnOffsetCommitRequestTopic) -> TxnOffsetCommitResponseTopic:
        partitions = mapped(partial(outcome, topic.name), topic.partitions)
        return TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions)

    return TxnOffsetCommitResponse(topics=mapped(outcomes, request.topics))


API = Api(28, "TxnOffsetCommit", 0, 5, TxnOffsetCommitRequest, TxnOffsetCommitResponse, handle)
