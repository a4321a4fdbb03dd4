"""Access control lists (KIP-140): what the command line asks a broker for."""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.client.client import Client
from kafscale.login.failures import check
from kafscale.security.acls import AclBinding, AclFilter, AclOperation, PatternType, Permission, ResourceType
from kafscale.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from kafscale.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from kafscale.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse


async def create_acls(client: Client, bindings: Sequence[AclBinding]) -> None:
    """Add lists. Raises KafkaError for the first that may not be, BrokerUnavailable."""
    creations = [
        AclCreation(
            resource_type=each.resource_type,
            resource_name=each.resource_name,
            resource_pattern_type=each.pattern_type,
            principal=each.principal,
            host=each.host,
            operation=each.operation,
            permission_type=each.permission,
        )
        for each in bindings
    ]
    response = await client.request(CreateAclsRequest(creations=creations), CreateAclsResponse)
    for binding, result in zip(bindings, response.results, strict=True):
        check(result.error_code, f"ACL '{binding}'", result.error_message)


async def list_acls(client: Client, wanted: AclFilter) -> list[AclBinding]:
    """Return those that a filter asks for. Raises KafkaError, BrokerUnavailable."""
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    response = await client.request(request, DescribeAclsResponse)
    check(response.error_code, "ACLs", response.error_message)
    return [
        AclBinding(
            resource_type=ResourceType(resource.resource_type),
            pattern_type=PatternType(resource.pattern_type),
            resource_name=resource.resource_name,
            principal=each.principal,
            host=each.host,
            operation=AclOperation(each.operation),
            permission=Permission(each.permission_type),
        )
        for resource in response.resources
        for each in resource.acls
    ]


async def delete_acls(client: Client, wanted: AclFilter) -> list[AclBinding]:
    """Remove those that a filter asks for, and return them. Raises KafkaError, BrokerUnavailable."""
    asked = DeleteAclsFilter(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    response = await client.request(DeleteAclsRequest(filters=[asked]), DeleteAclsResponse)
    (result,) = response.filter_results
    check(result.error_code, "ACLs", result.error_message)
    for each in result.matching_acls:
        check(each.error_code, "ACL", each.error_message)
    return [
        AclBinding(
            resource_type=ResourceType(each.resource_type),
            pattern_type=PatternType(each.pattern_type),
            resource_name=each.resource_name,
            principal=each.principal,
            host=each.host,
            operation=AclOperation(each.operation),
            permission=Permission(each.permission_type),
        )
        for each in result.matching_acls
    ]
