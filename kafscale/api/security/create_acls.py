"""CreateAcls (30, KIP-140): add access control lists, which act at once.

v1  (lowest version) prefixed patterns (KIP-290)
v2  flexible
v3  users as resources (KIP-373)

Without `--authorizer acl` it is SECURITY_DISABLED. The valid ACLs are added together; adding an existing one succeeds.
An operation is accepted even if it has no meaning for its resource.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.api.security.describe_acls import check_enabled
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.security.acls import AclBinding
from kafscale.wire.messages.security import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse


async def handle(services: Services, call: Call, request: CreateAclsRequest) -> CreateAclsResponse:
    outcomes: list[KafkaError | None]
    try:
        check_enabled(services)
        bindings = [_binding(creation) async for creation in in_turns(request.creations)]
        outcomes = await services.acls.create(bindings)
    except KafkaError as exc:
        outcomes = [exc] * len(request.creations)
    else:
        async for binding, outcome in in_turns(zip(bindings, outcomes, strict=True)):
            if outcome is None:
                services.access.audit.changed("acl_created", call, acl=str(binding))
    return CreateAclsResponse(results=[_result(outcome) for outcome in outcomes])


def _binding(creation: AclCreation) -> AclBinding:
    return AclBinding(
        resource_type=creation.resource_type,
        pattern_type=creation.resource_pattern_type,
        resource_name=creation.resource_name,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission=creation.permission_type,
    )


def _result(outcome: KafkaError | None) -> AclCreationResult:
    if outcome is None:
        return AclCreationResult()
    return AclCreationResult(error_code=outcome.code, error_message=outcome.message)


API = Api(30, "CreateAcls", 1, 3, CreateAclsRequest, CreateAclsResponse, handle)
