"""The rights that a broker asks about: an operation with a type of resources, each an object that there is once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from kafscale.security.acls import AclOperation, ResourceType, Right
from kafscale.wire import error_codes


@cache
def right_of(operation: AclOperation, resource_type: ResourceType) -> Right:
    """Return the one object of this right."""
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

# What a client is told that it may not, by the type of the resource.
ERRORS: Final[Mapping[ResourceType, int]] = {
    ResourceType.TOPIC: error_codes.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: error_codes.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: error_codes.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
