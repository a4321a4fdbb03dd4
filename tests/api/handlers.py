"""Ask a handler as a client would, without a connection: request and response go through their bytes."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import attrs
import trio

from kafscale.api.handling.access import Access
from kafscale.api.handling.calls import Api, Call, Peer
from kafscale.api.handling.quotas import Quotas
from kafscale.cluster.membership.assignment import Assignment
from kafscale.cluster.membership.node import Node
from kafscale.cluster.membership.placement.administration import Mover
from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.records import BrokerRecord, BrokerState
from kafscale.cluster.membership.state import ClusterState, LoneState
from kafscale.cluster.registries.client_quotas import ClientQuotas
from kafscale.config import Settings
from kafscale.metrics import Metrics
from kafscale.security.principals import ANONYMOUS, USER, Principal
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.codec import decode, encode

LOCAL_LOG = SimpleNamespace(is_last_word=True)  # `internal`, which does not check for a takeover by another broker


def some_services(**components: object) -> Any:
    """Services with only these components: a handler that reaches for another one raises AttributeError.

    A `node` comes with the assignment of a cluster of that one broker.
    """
    if isinstance(node := components.get("node"), Node):
        components.setdefault("assignment", lone_assignment(node, components.get("topics")))
    components.setdefault("access", Access())
    components.setdefault("quotas", some_quotas())
    components.setdefault("catch_up", trio.lowlevel.checkpoint)
    components.setdefault("mover", lone_mover())
    components.setdefault("membership", SimpleNamespace(records={}))
    components.setdefault("has_led_lately", lambda: True)
    components.setdefault("pattern_thread", trio.CapacityLimiter(1))
    return SimpleNamespace(**components)


def lone_mover() -> Mover:
    """The mover of a lone broker, which moves nothing."""
    state = ClusterState(MemoryMetadataStore())
    return Mover(state, PlacementWriter(state))


def lone_assignment(node: Node, topics: Any = None) -> Assignment:
    """The assignment of a lone broker, which leads all of these topics."""
    record = BrokerRecord(
        incarnation=node.broker_epoch,
        state=BrokerState.LIVE,
        endpoints=node.advertised,
        directory_id="",
        acknowledges_locally=False,
        rack=node.rack,
    )
    state = LoneState(MemoryMetadataStore(), node.node_id, record=record)
    if topics is None:
        return Assignment(node, state, lambda name: None)
    state.lead_all(topics)
    return Assignment(node, state, topics.get)


def some_quotas(client_quotas: ClientQuotas | None = None) -> Quotas:
    """Quotas that are as they are set, and none by the settings."""
    client_quotas = client_quotas or ClientQuotas(MemoryMetadataStore())
    return Quotas(settings=Settings(), client_quotas=client_quotas, metrics=Metrics())


def services_of_listeners(client_quotas: ClientQuotas | None = None) -> Any:
    """Make the services that a listener needs."""
    client_quotas = client_quotas or ClientQuotas(MemoryMetadataStore())
    quotas = some_quotas(client_quotas)
    return SimpleNamespace(client_quotas=client_quotas, quotas=quotas, draining=trio.Event())


def some_peer() -> Peer:
    return Peer(host="192.0.2.1", port=1024, listener_name="PLAINTEXT", reached_host="127.0.0.1", reached_port=9092)


def some_call(client_id: str = "test", user: str = ANONYMOUS.name) -> Call:
    """A call of which only the sender matters."""
    peer = attrs.evolve(some_peer(), principal=Principal(USER, user))
    return Call(api_key=0, version=0, correlation_id=1, client_id=client_id, peer=peer)


async def ask(api: Api, services: Any, request: object, *, version: int | None = None, peer: Peer | None = None) -> Any:
    """The response to `request` as a client of `version` (default: the highest) reads it.

    What the version does not carry is lost on the way, in both directions, as it is on the wire.
    """
    if version is None:
        version = api.max_version
    assert api.min_version <= version <= api.max_version
    received: Any = decode(api.request, version, b"".join(encode(request, version)))
    call = Call(api_key=api.key, version=version, correlation_id=1, client_id="test", peer=peer or some_peer())
    response = api.handle(services, call, received)
    if inspect.isawaitable(response):
        response = await response
    return decode(api.response, version, b"".join(encode(response, version)))
