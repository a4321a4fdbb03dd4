"""ListGroups (16): every group that this broker coordinates.

v1  throttle time
v3  flexible
v4  states, and to ask for some only (KIP-518)
v5  types, likewise (KIP-848): every group here is "classic"

States and types are compared without regard to case.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import is_coordinated_here
from kafscale.api.handling.services import Services
from kafscale.cluster.groups.group import Group
from kafscale.concurrency.turns import in_turns
from kafscale.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kafscale.wire.schema import mapped

CLASSIC = "classic"


async def handle(services: Services, _call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    states = {state.strip().lower() for state in request.states_filter}
    types = {group_type.strip().lower() for group_type in request.types_filter}
    if types and CLASSIC not in types:
        return ListGroupsResponse()
    groups = [
        group
        async for group in in_turns(list(services.groups.groups()))
        if (not states or group.state.value.lower() in states) and is_coordinated_here(services, group.group_id)
    ]
    return ListGroupsResponse(groups=mapped(_listed, groups))


def _listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state.value,
        group_type=CLASSIC,
    )


API = Api(16, "ListGroups", 0, 5, ListGroupsRequest, ListGroupsResponse, handle)
