"""FindCoordinator (10): which broker coordinates a group.

v1  key types, error messages
v3  flexible
v4  several keys at once (KIP-699)
v5  may answer TRANSACTION_ABORTABLE (KIP-890)
v6  share partitions (KIP-932), which this broker does not have: INVALID_REQUEST, as for any unknown key type

Which broker coordinates a group is the assignment's answer, once `__consumer_offsets` is there. There are no
transactions yet: a transactional id is answered with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every client takes as
final, while "not available" would have it ask again until its `max.block.ms` is over.
"""

from __future__ import annotations

from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import prepare_groups
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import distinct
from kafscale.wire.error_codes import (
    COORDINATOR_NOT_AVAILABLE,
    INVALID_REQUEST,
    NONE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from kafscale.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.schema import mapped

GROUP, TRANSACTION = 0, 1


async def handle(services: Services, call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if request.key_type == GROUP:
        await prepare_groups(services)
    if call.version >= 4:
        keys = await distinct(request.coordinator_keys, str)
        return FindCoordinatorResponse(coordinators=mapped(partial(_find, services, call, request.key_type), keys))
    found = _find(services, call, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(services: Services, call: Call, key_type: int, key: str) -> Coordinator:
    if key_type == GROUP:
        node = services.assignment.coordinator(key) if services.groups.led.has_topic else None
        if node is None:
            message = "The coordinator is not available."
            return Coordinator(key=key, error_code=COORDINATOR_NOT_AVAILABLE, error_message=message)
        endpoint = node.endpoint(call.peer)
        return Coordinator(key=key, error_code=NONE, node_id=node.node_id, host=endpoint.host, port=endpoint.port)
    if key_type == TRANSACTION:
        message = "This broker does not support transactions."
        return Coordinator(key=key, error_code=TRANSACTIONAL_ID_AUTHORIZATION_FAILED, error_message=message)
    message = f"There is no coordinator of key type {key_type}."
    return Coordinator(key=key, error_code=INVALID_REQUEST, error_message=message)


API = Api(10, "FindCoordinator", 0, 6, FindCoordinatorRequest, FindCoordinatorResponse, handle)
