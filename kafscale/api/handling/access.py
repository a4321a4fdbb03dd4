"""Rights of clients. Refusals are logged as JSON lines by `kafscale.audit`.

Without an authorizer every client may do everything. A client can be refused any number of times. So equal refusals are
logged once in a period, and at most LINES_MAX_COUNT in all; the others are counted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

import attrs
import trio

from kafscale.api.handling.calls import Call
from kafscale.cluster.registries.acls import AclRegistry
from kafscale.config import AuthorizerKind, Settings
from kafscale.errors import KafkaError
from kafscale.security.acls import CLUSTER_NAME, ERRORS, AclOperation, ResourceType, Right, right_of
from kafscale.security.authorizer import AclAuthorizer, Viewer
from kafscale.wire.error_codes import NONE

PERIOD_SECONDS: Final = 10.0
LINES_MAX_COUNT: Final = 100  # of a period
NAME_MAX_LENGTH: Final = 300  # of a name from a client

logger = logging.getLogger("kafscale.audit")


@attrs.define(eq=False, repr=False)
class AuditLog:
    _began: float = attrs.field(default=0.0, init=False)
    _written: set[tuple[str, str, Right, str]] = attrs.field(factory=set, init=False)
    _left_out_count: int = attrs.field(default=0, init=False)

    def denied(self, call: Call, right: Right, name: str, rule: Callable[[], str]) -> None:
        """Log a refusal. `rule` returns the name of the rule; it is called only if a line is written."""
        now = trio.current_time()
        if now >= self._began + PERIOD_SECONDS:
            self.sum_up()
            self._began = now
        key = str(call.peer.principal), call.peer.host, right, name[:NAME_MAX_LENGTH]
        if key in self._written or len(self._written) >= LINES_MAX_COUNT:
            self._left_out_count += 1
            return
        self._written.add(key)
        _write(
            "denied",
            call,
            operation=right.operation.name,
            resource_type=right.resource_type.name,
            resource_name=key[3],
            rule=rule(),
        )

    def changed(self, event: str, call: Call, **what: str) -> None:
        _write(event, call, **what)

    def sum_up(self) -> None:
        if self._left_out_count:
            logger.info("%s", json.dumps({"event": "denied", "left_out_count": self._left_out_count}))
        self._left_out_count = 0
        self._written.clear()


def _write(event: str, call: Call, **what: str) -> None:
    peer = call.peer
    line = {
        "event": event,
        "principal": str(peer.principal),
        "host": peer.host,
        "listener": peer.listener_name,
        "client_id": call.client_id[:NAME_MAX_LENGTH],
        "api_key": call.api_key,
        **what,
    }
    logger.info("%s", json.dumps(line))


NOT_ASKED: Final = -(2**31)
# Operations of each type of resource, in the bits of KIP-430 (AclEntry.supportedOperations).
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
    authorizer: AclAuthorizer | None = None
    audit: AuditLog = attrs.field(factory=AuditLog)

    @classmethod
    def of(cls, settings: Settings, acls: AclRegistry) -> Access:
        """Return the access of these ACLs. Without an authorizer in the settings everything is allowed."""
        if settings.authorizer is AuthorizerKind.NONE:
            return cls()
        authorizer = AclAuthorizer(
            super_users=frozenset(settings.super_users),
            allows_without_acls=settings.allow_everyone_if_no_acl_found,
            acls=acls.index,
        )
        acls.follow(authorizer.changed)
        return cls(authorizer=authorizer)

    def allows(self, call: Call, right: Right, name: str = CLUSTER_NAME, *, tells: bool = True) -> bool:
        """Tell whether the client has a right to a resource. Logs a refusal, unless `tells` is False."""
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
        return None if self.authorizer is None else self.authorizer.viewer(call.peer.principal, call.peer.host)

    def allows_some(self, call: Call, right: Right) -> bool:
        if self.authorizer is None:
            return True
        return self.authorizer.allows_some(call.peer.principal, call.peer.host, right)

    def error_code(self, call: Call, right: Right, name: str = CLUSTER_NAME) -> int:
        """Return NONE, or the error code of a client without the right."""
        return NONE if self.allows(call, right, name) else ERRORS[right.resource_type]

    def check(self, call: Call, right: Right, name: str = CLUSTER_NAME) -> None:
        if not self.allows(call, right, name):
            raise KafkaError(ERRORS[right.resource_type], f"Not authorized to {right} {name}")

    def operations(self, call: Call, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return bits: bit n is set if the client may do AclOperation n with the resource (KIP-430)."""
        if self.authorizer is None:
            return ALL_OPERATIONS[resource_type]
        return _bits(
            [
                operation
                for operation in _OPERATIONS[resource_type]
                if self.allows(call, right_of(operation, resource_type), name, tells=False)
            ]
        )
