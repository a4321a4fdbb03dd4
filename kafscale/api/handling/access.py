"""What a client may do: the one question that every API asks, and its answer as an error or as bits (KIP-430).

Without an authorizer everybody may do everything, and nothing is looked up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

import attrs

from kafscale.api.handling.audit import AuditLog
from kafscale.api.handling.calls import Call
from kafscale.errors import KafkaError
from kafscale.security.acls import CLUSTER_NAME, AclOperation, ResourceType, Right
from kafscale.security.authorizer import AclAuthorizer, Viewer
from kafscale.security.rights import ERRORS, right_of
from kafscale.wire.error_codes import NONE

NOT_ASKED: Final = -(2**31)
# The operations that a kind of resource has, of those that clients are told of (AclEntry.supportedOperations).
_OPERATIONS: Final[Mapping[ResourceType, Collection[AclOperation]]] = {
    ResourceType.TOPIC: (
        *(AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER),
        *(AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS),
    ),
    ResourceType.GROUP: (
        *(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE),
        *(AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS),
    ),
    ResourceType.CLUSTER: (
        *(AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION),
        *(AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.IDEMPOTENT_WRITE),
    ),
}


def _bits(operations: Collection[AclOperation]) -> int:
    return sum(1 << operation for operation in operations)


ALL_OPERATIONS: Final = {resource_type: _bits(operations) for resource_type, operations in _OPERATIONS.items()}


@attrs.define(eq=False, kw_only=True, repr=False)
class Access:
    """One per broker."""

    authorizer: AclAuthorizer | None = None
    audit: AuditLog = attrs.field(factory=AuditLog)

    def allows(self, call: Call, right: Right, name: str = CLUSTER_NAME, *, tells: bool = True) -> bool:
        """Tell whether the client has a right to a resource. A refusal is logged, unless it only leaves something out
        (`tells`).
        """
        authorizer = self.authorizer
        if authorizer is None:
            return True
        peer = call.peer
        if authorizer.allows(peer.principal, peer.host, right, name):
            return True
        if tells:
            self.audit.denied(call, right, name, partial(authorizer.rule, peer.principal, peer.host, right, name))
        return False

    def viewer(self, call: Call) -> Viewer | None:
        """Return the client as the authorizer knows it; None without an authorizer."""
        return None if self.authorizer is None else self.authorizer.viewer(call.peer.principal, call.peer.host)

    def allows_some(self, call: Call, right: Right) -> bool:
        """Tell whether the client may have a right to a resource of whatever name."""
        if self.authorizer is None:
            return True
        return self.authorizer.allows_some(call.peer.principal, call.peer.host, right)

    def error_code(self, call: Call, right: Right, name: str = CLUSTER_NAME) -> int:
        """The error code for a client without a right; NONE if it has it."""
        return NONE if self.allows(call, right, name) else ERRORS[right.resource_type]

    def check(self, call: Call, right: Right, name: str = CLUSTER_NAME) -> None:
        """Raises KafkaError where the client lacks a right."""
        if not self.allows(call, right, name):
            raise KafkaError(ERRORS[right.resource_type], f"Not authorized to {right} {name}")

    def operations(self, call: Call, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Bit n is set if the client may do AclOperation n with the resource."""
        if self.authorizer is None:
            return ALL_OPERATIONS[resource_type]
        return _bits(
            [
                operation
                for operation in _OPERATIONS[resource_type]
                if self.allows(call, right_of(operation, resource_type), name, tells=False)
            ]
        )
