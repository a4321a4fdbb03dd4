"""DeleteGroups (42): forget empty groups with all of their offsets.

v2  flexible
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import coordinator_error
from kafscale.api.handling.services import Services
from kafscale.concurrency.signals import OneShot
from kafscale.concurrency.turns import distinct, in_turns
from kafscale.wire.error_codes import NONE
from kafscale.wire.messages.groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(services: Services, _call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    # All are begun before the first is waited for, so that they share one commit.
    names = await distinct(request.groups_names, str)
    deletions = {group_id: _delete(services, group_id) async for group_id in in_turns(names)}
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=await deletion.wait())
            for group_id, deletion in deletions.items()
        ]
    )


def _delete(services: Services, group_id: str) -> OneShot[int]:
    error_code = coordinator_error(services, group_id)
    return services.groups.deletion.delete_group(group_id) if error_code == NONE else OneShot(error_code)


API = Api(42, "DeleteGroups", 0, 2, DeleteGroupsRequest, DeleteGroupsResponse, handle)
