"""Which brokers a client is told of, and how it reaches each: by the listener that it came by.

A broker that has no address of that listener is left out, and what it leads or coordinates counts as led or coordinated
by nobody just now: the client could not go there. Nor is one told of that has left.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kafscale.api.handling.calls import Peer
from kafscale.api.handling.services import Services
from kafscale.cluster.membership.node import Endpoint, Node


@attrs.frozen
class ReachableBroker:
    """A broker, and where a client connects to it."""

    node: Node
    at: Endpoint


def reachable_brokers(services: Services, peer: Peer) -> Sequence[ReachableBroker]:
    """Return the brokers that are there and that this client can connect to."""
    found = ((node, endpoint_of(services, node, peer)) for node in services.assignment.brokers())
    return [ReachableBroker(node, at) for node, at in found if at is not None]


def fenced_brokers(services: Services, peer: Peer) -> Sequence[ReachableBroker]:
    """Return the brokers that do not serve, and where this client could connect to them if they did."""
    found = ((node, endpoint_of(services, node, peer)) for node in services.assignment.fenced())
    return [ReachableBroker(node, at) for node, at in found if at is not None]


def reachable_broker(services: Services, node_id: int, peer: Peer) -> ReachableBroker | None:
    """Return the broker of this id; None if it is not there, or can't be connected to by this client."""
    found = (each for each in reachable_brokers(services, peer) if each.node.node_id == node_id)
    return next(found, None)


def endpoint_of(services: Services, node: Node, peer: Peer) -> Endpoint | None:
    """Return where a client of this broker connects to `node`; None if it can't.

    The address that the client has reached leads to this broker only: it stands for no other one's wildcard.
    """
    is_this = node.node_id == services.node.node_id
    return node.endpoint(peer) if is_this else node.advertised.get(peer.listener_name)
