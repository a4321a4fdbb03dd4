"""Kafka's access control lists (KIP-11, KIP-290): bindings, filters of them, and the rights that a broker checks.

A binding allows or denies a principal from a host one operation on the resources of a pattern. Numbers are the
protocol's; an unknown one is UNKNOWN, which no binding may have.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cache
from typing import Final

import attrs

from kafscale.wire import error_codes

WILDCARD: Final = "*"  # the name of any resource, and any host
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"  # the one name that a CLUSTER has


class _Code(enum.IntEnum):
    @classmethod
    def _missing_(cls, value: object) -> _Code:
        return cls(0)

    @property
    def title(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


class ResourceType(_Code):
    UNKNOWN, ANY, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(8)


class PatternType(_Code):
    """Types of patterns. ANY and MATCH (every pattern that applies to a resource) are for filters."""

    UNKNOWN, ANY, MATCH, LITERAL, PREFIXED = range(5)


class AclOperation(_Code):
    UNKNOWN, ANY, ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = range(9)
    CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE, CREATE_TOKENS, DESCRIBE_TOKENS = range(9, 15)
    TWO_PHASE_COMMIT = 15


class Permission(_Code):
    UNKNOWN, ANY, DENY, ALLOW = range(4)


@attrs.frozen(kw_only=True)
class AclBinding:
    """An access control list entry and its resources. `principal` is written `User:alice`."""

    resource_type: ResourceType = attrs.field(converter=ResourceType)
    pattern_type: PatternType = attrs.field(converter=PatternType)
    resource_name: str
    principal: str
    host: str
    operation: AclOperation = attrs.field(converter=AclOperation)
    permission: Permission = attrs.field(converter=Permission)

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.principal} from {self.host} to {self.operation.name} "
            f"{self.resource_type.name}:{self.pattern_type.name}:{self.resource_name}"
        )


@attrs.frozen(kw_only=True)
class AclFilter:
    """Filter of bindings (Kafka's AclBindingFilter): None and ANY match all."""

    resource_type: ResourceType = attrs.field(default=ResourceType.ANY, converter=ResourceType)
    pattern_type: PatternType = attrs.field(default=PatternType.ANY, converter=PatternType)
    resource_name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = attrs.field(default=AclOperation.ANY, converter=AclOperation)
    permission: Permission = attrs.field(default=Permission.ANY, converter=Permission)

    @property
    def is_unknown(self) -> bool:
        """Tell whether an element is unknown to this version."""
        return 0 in (self.resource_type, self.pattern_type, self.operation, self.permission)

    def matches(self, binding: AclBinding) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self.operation in (AclOperation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self._matches_pattern(binding)
        )

    def _matches_pattern(self, binding: AclBinding) -> bool:
        wanted = self.pattern_type
        if wanted not in (PatternType.ANY, PatternType.MATCH, binding.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if wanted is not PatternType.MATCH:
            return self.resource_name == binding.resource_name
        if binding.pattern_type is PatternType.PREFIXED:
            return self.resource_name.startswith(binding.resource_name)
        return binding.resource_name in (self.resource_name, WILDCARD)


@attrs.frozen(eq=False, repr=False)
class Right:
    """An operation on a type of resource. Each has one object, for cheap look-ups."""

    operation: AclOperation
    resource_type: ResourceType

    def __str__(self) -> str:
        return f"{self.operation.title} {self.resource_type.title}"


@cache
def right_of(operation: AclOperation, resource_type: ResourceType) -> Right:
    return Right(operation, resource_type)


READ_TOPIC: Final = right_of(AclOperation.READ, ResourceType.TOPIC)
WRITE_TOPIC: Final = right_of(AclOperation.WRITE, ResourceType.TOPIC)
CREATE_TOPIC: Final = right_of(AclOperation.CREATE, ResourceType.TOPIC)
DELETE_TOPIC: Final = right_of(AclOperation.DELETE, ResourceType.TOPIC)
ALTER_TOPIC: Final = right_of(AclOperation.ALTER, ResourceType.TOPIC)
DESCRIBE_TOPIC: Final = right_of(AclOperation.DESCRIBE, ResourceType.TOPIC)
DESCRIBE_TOPIC_CONFIGS: Final = right_of(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
ALTER_TOPIC_CONFIGS: Final = right_of(AclOperation.ALTER_CONFIGS, ResourceType.TOPIC)

READ_GROUP: Final = right_of(AclOperation.READ, ResourceType.GROUP)
DELETE_GROUP: Final = right_of(AclOperation.DELETE, ResourceType.GROUP)
DESCRIBE_GROUP: Final = right_of(AclOperation.DESCRIBE, ResourceType.GROUP)
DESCRIBE_GROUP_CONFIGS: Final = right_of(AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP)
ALTER_GROUP_CONFIGS: Final = right_of(AclOperation.ALTER_CONFIGS, ResourceType.GROUP)

CREATE_IN_CLUSTER: Final = right_of(AclOperation.CREATE, ResourceType.CLUSTER)
DELETE_IN_CLUSTER: Final = right_of(AclOperation.DELETE, ResourceType.CLUSTER)
ALTER_CLUSTER: Final = right_of(AclOperation.ALTER, ResourceType.CLUSTER)
DESCRIBE_CLUSTER: Final = right_of(AclOperation.DESCRIBE, ResourceType.CLUSTER)
CLUSTER_ACTION: Final = right_of(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
DESCRIBE_CLUSTER_CONFIGS: Final = right_of(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
ALTER_CLUSTER_CONFIGS: Final = right_of(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER)
WRITE_IDEMPOTENTLY: Final = right_of(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)

WRITE_TRANSACTION: Final = right_of(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID)
DESCRIBE_TRANSACTION: Final = right_of(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)

# Errors of refused clients, by the type of the resource.
ERRORS: Final[Mapping[ResourceType, int]] = {
    ResourceType.TOPIC: error_codes.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: error_codes.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: error_codes.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
