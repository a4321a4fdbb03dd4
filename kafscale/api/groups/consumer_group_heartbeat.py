"""ConsumerGroupHeartbeat (68): a member of a consumer group joins, stays, leaves, and gets its partitions (KIP-848).

v1  subscriptions by regular expression, and members that make their ids themselves (KIP-1082)

Epoch 0 joins, and makes a group that does not exist. The answer has partitions only if they have changed. A static
member that joins again under its own id keeps its partitions; Kafka 4.1 answers it UNRELEASED_INSTANCE_ID.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import coordinator_error, prepare_groups, refusal_error
from kafscale.api.handling.services import Services
from kafscale.cluster.groups.common.assignors import Partitions
from kafscale.cluster.groups.common.context import Heartbeat, HeartbeatReply
from kafscale.concurrency.turns import Turns
from kafscale.security.acls import DESCRIBE_TOPIC
from kafscale.wire.error_codes import INVALID_REQUEST, NONE, TOPIC_AUTHORIZATION_FAILED
from kafscale.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

FIRST_VERSION_WITH_OWN_IDS = 1


async def handle(
    services: Services, call: Call, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    if not request.group_id.strip():
        return ConsumerGroupHeartbeatResponse(error_code=INVALID_REQUEST, error_message="GroupId can't be empty.")
    turns = Turns()
    for name in request.subscribed_topic_names or ():
        await turns.step()
        if not services.access.allows(call, DESCRIBE_TOPIC, name):
            return ConsumerGroupHeartbeatResponse(error_code=TOPIC_AUTHORIZATION_FAILED)
    await prepare_groups(services)
    if (error_code := coordinator_error(services, request.group_id)) != NONE:
        return ConsumerGroupHeartbeatResponse(error_code=error_code)
    reply = await services.groups.consumer_heartbeat(request.group_id, _heartbeat(services, call, request)).wait()
    if (error_code := await refusal_error(services, [reply.error_code])) != NONE:
        return ConsumerGroupHeartbeatResponse(error_code=error_code)
    return _response(reply)


def _heartbeat(services: Services, call: Call, request: ConsumerGroupHeartbeatRequest) -> Heartbeat:
    names = request.subscribed_topic_names
    return Heartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=None if names is None else tuple(names),
        subscribed_topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _partitions(request.topic_partitions),
        client_id=call.client_id,
        client_host=f"/{call.peer.host}",  # as Kafka shows it
        viewer=services.access.viewer(call),
        chooses_member_id=call.version >= FIRST_VERSION_WITH_OWN_IDS,
    )


def _partitions(topics: Sequence[HeartbeatTopicPartitions]) -> Partitions:
    found: dict[bytes, set[int]] = {}
    for topic in topics:
        found.setdefault(topic.topic_id, set()).update(topic.partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in found.items()}


def _response(reply: HeartbeatReply) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=reply.error_code,
        error_message=reply.error_message,
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=None if reply.assignment is None else _assignment(reply.assignment),
    )


def _assignment(partitions: Partitions) -> HeartbeatAssignment:
    return HeartbeatAssignment(
        topic_partitions=[
            HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(of_topic))
            for topic_id, of_topic in partitions.items()
        ]
    )


API = Api(68, "ConsumerGroupHeartbeat", 0, 1, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, handle)
