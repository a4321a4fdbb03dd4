"""ListGroups (16): every group that this broker coordinates.

v1  throttle time
v3  flexible
v4  states, and to ask for some only (KIP-518)
v5  types, likewise: "classic", and "consumer" for KIP-848's protocol

States and types are compared without regard to case. While a partition of groups is being loaded the answer would lack
groups: as in Kafka it is COORDINATOR_LOAD_IN_PROGRESS then, and clients retry.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import is_coordinated_here
from kafscale.api.handling.services import Services
from kafscale.cluster.groups.entry import AnyGroup
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME
from kafscale.concurrency.turns import in_turns
from kafscale.security.acls import DESCRIBE_CLUSTER, DESCRIBE_GROUP
from kafscale.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS
from kafscale.wire.messages.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kafscale.wire.schema import mapped


async def handle(services: Services, call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    if _is_loading(services):
        return ListGroupsResponse(error_code=COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.strip().lower() for state in request.states_filter}
    types = {group_type.strip().lower() for group_type in request.types_filter}
    access = services.access
    sees_all = access.allows(call, DESCRIBE_CLUSTER, tells=False)
    groups = [
        group
        async for group in in_turns(list(services.groups.groups()))
        if (not types or group.group_type in types)
        and (not states or group.state_name.lower() in states)
        and is_coordinated_here(services, group.group_id)
        and (sees_all or access.allows(call, DESCRIBE_GROUP, group.group_id, tells=False))
    ]
    return ListGroupsResponse(groups=mapped(_listed, groups))


def _is_loading(services: Services) -> bool:
    topic = services.topics.get(CONSUMER_OFFSETS_NAME)
    if topic is None:
        return False
    return any(not services.groups.led.is_led(index) for index in services.assignment.led_here(topic))


def _listed(group: AnyGroup) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state_name,
        group_type=group.group_type,
    )


API = Api(16, "ListGroups", 0, 5, ListGroupsRequest, ListGroupsResponse, handle)
