"""FindCoordinator (10): the broker that coordinates a group or a transactional id.

v1  key types, error messages
v3  flexible
v4  several keys at once (KIP-699)
v5  may answer TRANSACTION_ABORTABLE (KIP-890)
v6  share partitions (KIP-932), which this broker does not have: INVALID_REQUEST, as for any unknown key type

The leader of its partition of `__consumer_offsets` coordinates a group, that of its partition of `__transaction_state`
a transactional id. The first request creates the topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import prepare_groups, prepare_transactions
from kafscale.api.handling.partitions import endpoint_of
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import coordinator_partition
from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.topic_names import TRANSACTION_STATE_NAME
from kafscale.concurrency.turns import Turns, distinct
from kafscale.errors import KafkaError
from kafscale.security.acls import DESCRIBE_GROUP, DESCRIBE_TRANSACTION
from kafscale.wire.error_codes import COORDINATOR_NOT_AVAILABLE, INVALID_REQUEST, NONE
from kafscale.wire.messages.cluster import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.schema import mapped

GROUP, TRANSACTION = 0, 1
_RIGHTS = {GROUP: DESCRIBE_GROUP, TRANSACTION: DESCRIBE_TRANSACTION}


async def handle(services: Services, call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    keys = await distinct(request.coordinator_keys, str) if call.version >= 4 else [request.key]
    await _prepare(services, call, request.key_type, keys)
    if call.version >= 4:
        return FindCoordinatorResponse(coordinators=mapped(partial(_find, services, call, request.key_type), keys))
    found = _find(services, call, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _prepare(services: Services, call: Call, key_type: int, keys: Sequence[str]) -> None:
    right = _RIGHTS.get(key_type)
    if right is None:
        return
    turns = Turns()
    for key in keys:
        await turns.step()
        if services.access.allows(call, right, key, tells=False):
            await (prepare_groups if key_type == GROUP else prepare_transactions)(services)
            return


def _find(services: Services, call: Call, key_type: int, key: str) -> Coordinator:
    right = _RIGHTS.get(key_type)
    if right is not None:
        try:
            services.access.check(call, right, key)
        except KafkaError as exc:
            return Coordinator(key=key, error_code=exc.code, error_message=exc.message)
        node = _group_coordinator(services, key) if key_type == GROUP else _transaction_coordinator(services, key)
        at = None if node is None else endpoint_of(services, node, call.peer)
        if node is None or at is None:
            message = "The coordinator is not available."
            return Coordinator(key=key, error_code=COORDINATOR_NOT_AVAILABLE, error_message=message)
        return Coordinator(key=key, error_code=NONE, node_id=node.node_id, host=at.host, port=at.port)
    message = f"There is no coordinator of key type {key_type}."
    return Coordinator(key=key, error_code=INVALID_REQUEST, error_message=message)


def _group_coordinator(services: Services, group_id: str) -> Node | None:
    return services.assignment.coordinator(group_id) if services.groups.led.has_topic else None


def _transaction_coordinator(services: Services, transactional_id: str) -> Node | None:
    topic = services.topics.get(TRANSACTION_STATE_NAME)
    if topic is None:
        return None
    leader = services.assignment.leader(topic, coordinator_partition(transactional_id, topic.partition_count))
    nodes = services.assignment.brokers()
    return next((node for node in nodes if leader is not None and node.node_id == leader.node_id), None)


API = Api(10, "FindCoordinator", 0, 6, FindCoordinatorRequest, FindCoordinatorResponse, handle)
