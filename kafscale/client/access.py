"""Users, their SCRAM passwords (KIP-554), and access control lists."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import attrs

from kafscale.client.client import Client
from kafscale.config import SaslMechanism
from kafscale.login.failures import check
from kafscale.security.acls import AclBinding, AclFilter
from kafscale.security.verifiers import MADE_SALT_BYTES, SCRAM_TYPES, salt_password
from kafscale.wire.error_codes import RESOURCE_NOT_FOUND
from kafscale.wire.messages.security import (
    AclCreation,
    AclDescription,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

_NUMBERS = {mechanism: number for number, mechanism in SCRAM_TYPES.items()}


@attrs.frozen(kw_only=True)
class SaltedPassword:
    mechanism: SaslMechanism
    iterations: int
    salt: bytes = attrs.field(repr=False)
    salted_password: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, mechanism: SaslMechanism, password: str, iterations: int) -> SaltedPassword:
        """Salt a password, which takes some 10 ms of CPU."""
        salt = secrets.token_bytes(MADE_SALT_BYTES)
        salted = salt_password(mechanism, password.encode(), salt, iterations)
        return cls(mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted)


async def list_users(client: Client) -> dict[str, dict[SaslMechanism, int]]:
    """List the users, with their iterations by mechanism. Raises KafkaError, BrokerUnavailable."""
    response = await client.request(DescribeUserScramCredentialsRequest(), DescribeUserScramCredentialsResponse)
    check(response.error_code, "users", response.error_message)
    return {
        result.user: {
            SCRAM_TYPES[info.mechanism]: info.iterations
            for info in result.credential_infos
            if info.mechanism in SCRAM_TYPES
        }
        for result in response.results
        if result.error_code != RESOURCE_NOT_FOUND
    }


async def set_password(client: Client, user: str, passwords: Sequence[SaltedPassword]) -> None:
    """Add a user, or change the password, for each mechanism. Raises KafkaError, BrokerUnavailable."""
    for password in passwords:  # one request can't change a user twice
        upsertion = ScramCredentialUpsertion(
            name=user,
            mechanism=_NUMBERS[password.mechanism],
            iterations=password.iterations,
            salt=password.salt,
            salted_password=password.salted_password,
        )
        await _alter(client, AlterUserScramCredentialsRequest(upsertions=[upsertion]))


async def remove_user(client: Client, user: str, mechanisms: Sequence[SaslMechanism]) -> None:
    """Remove passwords of a user. Raises KafkaError, BrokerUnavailable."""
    for mechanism in mechanisms:
        deletion = ScramCredentialDeletion(name=user, mechanism=_NUMBERS[mechanism])
        await _alter(client, AlterUserScramCredentialsRequest(deletions=[deletion]))


async def _alter(client: Client, request: AlterUserScramCredentialsRequest) -> None:
    response = await client.request(request, AlterUserScramCredentialsResponse)
    for result in response.results:
        check(result.error_code, f"user '{result.user}'", result.error_message)


async def create_acls(client: Client, bindings: Sequence[AclBinding]) -> None:
    """Add lists. Raises KafkaError for the first refused one, BrokerUnavailable."""
    creations = [
        AclCreation(
            resource_type=binding.resource_type,
            resource_name=binding.resource_name,
            resource_pattern_type=binding.pattern_type,
            principal=binding.principal,
            host=binding.host,
            operation=binding.operation,
            permission_type=binding.permission,
        )
        for binding in bindings
    ]
    response = await client.request(CreateAclsRequest(creations=creations), CreateAclsResponse)
    for binding, result in zip(bindings, response.results, strict=True):
        check(result.error_code, f"ACL '{binding}'", result.error_message)


async def list_acls(client: Client, wanted: AclFilter) -> list[AclBinding]:
    """Return the lists of a filter. Raises KafkaError, BrokerUnavailable."""
    response = await client.request(DescribeAclsRequest(**_filter_fields(wanted)), DescribeAclsResponse)
    check(response.error_code, "ACLs", response.error_message)
    return [_binding(resource, acl) for resource in response.resources for acl in resource.acls]


async def delete_acls(client: Client, wanted: AclFilter) -> list[AclBinding]:
    """Delete and return the lists of a filter. Raises KafkaError, BrokerUnavailable."""
    asked = DeleteAclsFilter(**_filter_fields(wanted))
    response = await client.request(DeleteAclsRequest(filters=[asked]), DeleteAclsResponse)
    (result,) = response.filter_results
    check(result.error_code, "ACLs", result.error_message)
    for acl in result.matching_acls:
        check(acl.error_code, "ACL", acl.error_message)
    return [_binding(acl, acl) for acl in result.matching_acls]


def _filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _binding(
    resource: DescribeAclsResource | DeleteAclsMatchingAcl, entry: AclDescription | DeleteAclsMatchingAcl
) -> AclBinding:
    return AclBinding(
        resource_type=resource.resource_type,
        pattern_type=resource.pattern_type,
        resource_name=resource.resource_name,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission=entry.permission_type,
    )
