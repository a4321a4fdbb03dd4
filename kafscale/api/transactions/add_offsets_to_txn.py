"""AddOffsetsToTxn (25): prepare a transaction to commit offsets of a group.

v2  may answer PRODUCER_FENCED (KIP-588)
v3  flexible
v4  may answer TRANSACTION_ABORTABLE (KIP-890)

It adds the group's partition of `__consumer_offsets`, and creates that topic if necessary.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import prepare_groups
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import TopicPartition, coordinator_partition
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME
from kafscale.cluster.transactions.ledger import ProducerIdentity
from kafscale.cluster.transactions.versions import ADD_OFFSETS_FENCED_VERSION, fenced_code
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import COORDINATOR_NOT_AVAILABLE
from kafscale.wire.messages.transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


async def handle(services: Services, call: Call, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    await prepare_groups(services)
    topic = services.topics.get(CONSUMER_OFFSETS_NAME)
    if topic is None:
        return AddOffsetsToTxnResponse(error_code=COORDINATOR_NOT_AVAILABLE)
    at = TopicPartition(topic.name, coordinator_partition(request.group_id, topic.partition_count))
    identity = ProducerIdentity(request.transactional_id, request.producer_id, request.producer_epoch)
    try:
        reply = await services.transactions.add_partitions(identity, frozenset({at}), transaction_version=0)
    except KafkaError as exc:
        return AddOffsetsToTxnResponse(error_code=exc.code)
    return AddOffsetsToTxnResponse(error_code=fenced_code(reply.error_of(at), call.version, ADD_OFFSETS_FENCED_VERSION))


API = Api(25, "AddOffsetsToTxn", 0, 4, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, handle)
