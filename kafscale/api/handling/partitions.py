"""Brokers, topics and partitions as a client finds them, and the errors where this broker does not lead a partition.

UNKNOWN_TOPIC_OR_PARTITION            there is no such topic, or it has no such partition
UNKNOWN_TOPIC_ID                      no topic has this id
NOT_LEADER_OR_FOLLOWER                another broker leads it, which Produce and Fetch name (KIP-951), or none does
FENCED_ or UNKNOWN_LEADER_EPOCH       the client knows another leader epoch than that of the partition (KIP-320)

A client is told of the brokers that it can reach by the listener that it used. A broker without an address of that
listener is left out, and its partitions and groups count as led by none.

This broker learns of a topic that another one has created within half a second, or when it asks (`know_topics`).
Metadata and changes by administrators ask; after a Produce or a Fetch clients try again by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol

import attrs

from kafscale.api.handling.calls import Peer
from kafscale.api.handling.services import Services
from kafscale.cluster.membership.assignment import Leader
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.registries.topic_index import Topic
from kafscale.concurrency.turns import Turns
from kafscale.errors import KafkaError
from kafscale.log.partition.partition import Partition
from kafscale.wire import error_codes
from kafscale.wire.messages.records import LeaderIdAndEpoch, NodeEndpoint


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
    found = (broker for broker in reachable_brokers(services, peer) if broker.node.node_id == node_id)
    return next(found, None)


def endpoint_of(services: Services, node: Node, peer: Peer) -> Endpoint | None:
    """Return where a client of this broker connects to `node`; None if it can't.

    The address that the client has reached leads to this broker only: it stands for no other one's wildcard.
    """
    is_this = node.node_id == services.node.node_id
    return node.endpoint(peer) if is_this else node.advertised.get(peer.listener_name)


async def know_topics(services: Services, names: Iterable[str] = (), topic_ids: Iterable[bytes] = ()) -> None:
    """Catch up with the other brokers if there is a topic among these, by name or id, that is not known here."""
    topics = services.topics
    found = chain((topics.get(name) for name in names), (topics.by_id(topic_id) for topic_id in topic_ids))
    await catch_up_if_any(services, (topic is None for topic in found))


async def catch_up_if_any(services: Services, unknown: Iterable[bool]) -> None:
    """Catch up with the other brokers if there is something among these that is not known here."""
    turns = Turns()
    for is_unknown in unknown:
        await turns.step()
        if is_unknown:
            await services.catch_up()
            return


ANY_EPOCH = -1  # the client does not have its leader epoch checked


class NotLeader(KafkaError):
    """NOT_LEADER_OR_FOLLOWER, and who leads the partition, where somebody else is known to."""

    def __init__(self, leader: Leader | None) -> None:
        super().__init__(error_codes.NOT_LEADER_OR_FOLLOWER, "this broker does not lead the partition")
        self.leader = leader


class PartitionAnswer(Protocol):
    """A response's part for one partition."""

    current_leader: LeaderIdAndEpoch


class Response(Protocol):
    """A response that says where leaders are."""

    node_endpoints: list[NodeEndpoint]


def name_of(services: Services, topic_id: bytes) -> str:
    """Return the name of the topic with this id; empty, which no topic is called, if there is no such topic."""
    topic = services.topics.by_id(topic_id)
    return "" if topic is None else topic.name


def find_partition(services: Services, name: str, index: int, *, topic_id: bytes | None = None) -> Partition | None:
    """The partition, if it is led here: by the name of its topic or, where one is given, by the topic's id."""
    return services.log.partition_named(name, index) if topic_id is None else services.log.partition(topic_id, index)


def led_partition(
    services: Services, name: str, index: int, *, topic_id: bytes | None = None, leader_epoch: int = ANY_EPOCH
) -> Partition:
    """Find the partition; `leader_epoch` is the one that the client knows. Raises KafkaError as said above."""
    partition = find_partition(services, name, index, topic_id=topic_id)
    if partition is None:
        raise _not_led(services, name, index, topic_id)
    if leader_epoch != ANY_EPOCH and leader_epoch != partition.leader_epoch:
        is_older = leader_epoch < partition.leader_epoch
        raise KafkaError(error_codes.FENCED_LEADER_EPOCH if is_older else error_codes.UNKNOWN_LEADER_EPOCH)
    return partition


def _not_led(services: Services, name: str, index: int, topic_id: bytes | None) -> KafkaError:
    topic = services.topics.get(name) if topic_id is None else services.topics.by_id(topic_id)
    if topic is None:
        return KafkaError(error_codes.UNKNOWN_TOPIC_OR_PARTITION if topic_id is None else error_codes.UNKNOWN_TOPIC_ID)
    if not 0 <= index < topic.partition_count:
        return KafkaError(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    return NotLeader(leader_elsewhere(services, topic, index))


def leader_elsewhere(services: Services, topic: Topic, index: int) -> Leader | None:
    """Return who leads a partition that is not led here, where somebody else is known to."""
    leader = services.assignment.leader(topic, index)
    if leader is not None and leader.node_id == services.node.node_id:
        return None  # it is on its way in or out: a client that is sent here would come back at once
    return leader


def tell_leader(
    services: Services, peer: Peer, leader: Leader | None, answer: PartitionAnswer, response: Response
) -> None:
    """Say who leads a partition, if that is known, and how this client reaches that broker (KIP-951)."""
    if leader is None:
        return
    if all(endpoint.node_id != leader.node_id for endpoint in response.node_endpoints):
        broker = reachable_broker(services, leader.node_id, peer)
        if broker is None:
            return
        endpoint = NodeEndpoint(node_id=leader.node_id, host=broker.at.host, port=broker.at.port, rack=broker.node.rack)
        response.node_endpoints.append(endpoint)
    answer.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
