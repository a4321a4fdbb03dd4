"""Clients of a memory broker as whom one likes, without a login; and the lists that say what they may."""

from __future__ import annotations

from typing import Any

from kafscale.api.handling.calls import Peer
from kafscale.broker import Broker
from kafscale.client.connection import Connection
from kafscale.config import Address, AuthorizerKind
from kafscale.security.acls import AclBinding, AclOperation, PatternType, Permission, ResourceType
from kafscale.security.principals import USER, Principal
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_settings
from tests.devtools.fakes.memory_network import memory_stream_pair
from tests.devtools.fakes.stream_transport import StreamTransport

HOST = "192.0.2.1"


def acl_settings(**changes: Any) -> Any:
    """Settings of a broker with lists, whose super user is `root`."""
    return memory_settings(**{"authorizer": AuthorizerKind.ACL, "super_users": ("User:root",)} | changes)


async def connect_as(broker: MemoryBroker, user: str, *, host: str = HOST) -> Connection:
    """Connect the project's own client as this user."""
    ours, theirs = memory_stream_pair()
    peer = Peer(
        host=host,
        port=1024,
        listener_name="PLAINTEXT",
        reached_host="192.0.2.2",
        reached_port=9092,
        principal=Principal(USER, user),
    )
    broker.nursery.start_soon(broker.broker.acceptor.serve, StreamTransport(theirs), peer)
    return await Connection.over(ours, Address("192.0.2.2", 9092))


def binding(
    user: str,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    *,
    pattern_type: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> AclBinding:
    """A list about a user from any host."""
    return AclBinding(
        resource_type=resource_type,
        pattern_type=pattern_type,
        resource_name=name,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission=permission,
    )


async def grant(broker: Broker, *bindings: AclBinding) -> None:
    """Add lists as an administrator does."""
    assert await broker.services.acls.create(bindings) == [None] * len(bindings)
