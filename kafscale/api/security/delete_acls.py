"""DeleteAcls (31, KIP-140): remove the access control lists that match filters.

v1  (lowest version) types of patterns (KIP-290)
v2  flexible
v3  users as resources (KIP-373)

Without `--authorizer acl` it is SECURITY_DISABLED. All matches are removed together. A filter with an unknown element
is INVALID_REQUEST, and the others act. More than 100,000 matches of all filters are POLICY_VIOLATION.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.api.security.describe_acls import check_enabled, filter_of
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.security.acls import AclBinding, AclFilter
from kafscale.wire.error_codes import INVALID_REQUEST
from kafscale.wire.messages.security import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

FILTERS_MAX_COUNT = 1_000  # of a request, each compared with all ACLs. Kafka has no limit.


async def handle(services: Services, call: Call, request: DeleteAclsRequest) -> DeleteAclsResponse:
    results = [DeleteAclsFilterResult() for _ in request.filters]
    filters: dict[int, AclFilter] = {}
    async for index, asked in in_turns(enumerate(request.filters)):
        try:
            check_enabled(services)
            filters[index] = filter_of(asked)
        except KafkaError as exc:
            results[index] = _failed(exc)
    try:
        if len(filters) > FILTERS_MAX_COUNT:
            raise KafkaError(INVALID_REQUEST, f"No more than {FILTERS_MAX_COUNT:,} filters at once.")
        found = await services.acls.delete(list(filters.values()))
    except KafkaError as exc:
        for index in filters:
            results[index] = _failed(exc)
        return DeleteAclsResponse(filter_results=results)
    async for binding in in_turns({match: None for bindings in found for match in bindings}):
        services.access.audit.changed("acl_deleted", call, acl=str(binding))
    for index, bindings in zip(filters, found, strict=True):
        results[index].matching_acls = [_match(binding) async for binding in in_turns(bindings)]
    return DeleteAclsResponse(filter_results=results)


def _failed(exc: KafkaError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=exc.code, error_message=exc.message)


def _match(binding: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=binding.resource_type,
        pattern_type=binding.pattern_type,
        resource_name=binding.resource_name,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


API = Api(31, "DeleteAcls", 1, 3, DeleteAclsRequest, DeleteAclsResponse, handle)
