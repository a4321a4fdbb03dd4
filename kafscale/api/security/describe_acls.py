"""DescribeAcls (29, KIP-140): the access control lists that match a filter.

v1  (lowest version) types of patterns (KIP-290)
v2  flexible
v3  users as resources (KIP-373)

Without `--authorizer acl` it is SECURITY_DISABLED.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.security.acls import AclFilter, PatternType, ResourceType
from kafscale.wire.error_codes import INVALID_REQUEST, SECURITY_DISABLED
from kafscale.wire.messages.security import (
    AclDescription,
    DeleteAclsFilter,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


async def handle(services: Services, call: Call, request: DescribeAclsRequest) -> DescribeAclsResponse:
    try:
        check_enabled(services)
        wanted = filter_of(request)
    except KafkaError as exc:
        return DescribeAclsResponse(error_code=exc.code, error_message=exc.message)
    found: dict[tuple[ResourceType, PatternType, str], DescribeAclsResource] = {}
    async for binding in in_turns(services.acls.matching(wanted)):
        resource = found.setdefault(
            (binding.resource_type, binding.pattern_type, binding.resource_name),
            DescribeAclsResource(
                resource_type=binding.resource_type,
                pattern_type=binding.pattern_type,
                resource_name=binding.resource_name,
            ),
        )
        resource.acls.append(
            AclDescription(
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
        )
    return DescribeAclsResponse(resources=list(found.values()))


API = Api(29, "DescribeAcls", 1, 3, DescribeAclsRequest, DescribeAclsResponse, handle)


def check_enabled(services: Services) -> None:
    if services.access.authorizer is None:
        raise KafkaError(SECURITY_DISABLED, "No Authorizer is configured.")


def filter_of(asked: DeleteAclsFilter) -> AclFilter:
    """Return the filter of a message. Raises KafkaError INVALID_REQUEST for an unknown element."""
    found = AclFilter(
        resource_type=asked.resource_type_filter,
        pattern_type=asked.pattern_type_filter,
        resource_name=asked.resource_name_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=asked.operation,
        permission=asked.permission_type,
    )
    if found.is_unknown:
        raise KafkaError(INVALID_REQUEST, "The filter contains unknown elements.")
    return found
