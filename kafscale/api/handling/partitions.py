"""Finds brokers, topics and partitions for a client. Errors of a partition that this broker does not lead:

UNKNOWN_TOPIC_OR_PARTITION            the topic or the partition does not exist
UNKNOWN_TOPIC_ID                      no topic has this id
NOT_LEADER_OR_FOLLOWER                another broker leads it, which Produce and Fetch name (KIP-951), or none does
FENCED_ or UNKNOWN_LEADER_EPOCH       the client knows another leader epoch than that of the partition (KIP-320)

This broker learns of a new topic of another broker within half a second, or when it asks (`know_topics`). Metadata and
changes by administrators ask. After a Produce or Fetch clients try again by themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

import attrs

from kafscale.api.handling.calls import Peer
from kafscale.api.handling.services import Services
from kafscale.cluster.membership.assignment import Leader
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.registries.topic_records import Topic
from kafscale.concurrency.turns import Turns, distinct_partitions
from kafscale.errors import KafkaError
from kafscale.log.partition.partition import Partition
from kafscale.wire import error_codes
from kafscale.wire.messages.records import (
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    PartitionProduceResponse,
    ProduceResponse,
)


@attrs.frozen
class ReachableBroker:
    node: Node
    at: Endpoint


def reachable_brokers(services: Services, peer: Peer, *, fenced: bool = False) -> Sequence[ReachableBroker]:
    """Return the serving or the fenced brokers that have an address for this client."""
    nodes = services.assignment.fenced() if fenced else services.assignment.brokers()
    return [ReachableBroker(node, at) for node in nodes if (at := endpoint_of(services, node, peer)) is not None]


def reachable_broker(services: Services, node_id: int, peer: Peer) -> ReachableBroker | None:
    found = (broker for broker in reachable_brokers(services, peer) if broker.node.node_id == node_id)
    return next(found, None)


def endpoint_of(services: Services, node: Node, peer: Peer) -> Endpoint | None:
    """Return the address at which a client of this broker reaches `node`, if there is one.

    The address that the client used stands for a wildcard of this broker, not for that of another.
    """
    is_this = node.node_id == services.node.node_id
    return node.endpoint(peer) if is_this else node.advertised.get(peer.listener_name)


async def know_topics(services: Services, names: Iterable[str] = (), topic_ids: Iterable[bytes] = ()) -> None:
    """Catch up with the other brokers if a topic is unknown here."""
    topics = services.topics
    found = chain((topics.get(name) for name in names), (topics.by_id(topic_id) for topic_id in topic_ids))
    await catch_up_if_any(services, (topic is None for topic in found))


async def catch_up_if_any(services: Services, unknown: Iterable[bool]) -> None:
    turns = Turns()
    for is_unknown in unknown:
        await turns.step()
        if is_unknown:
            await services.catch_up()
            return


async def named_partitions(
    services: Services, named: Iterable[tuple[str, Iterable[int]]] | None
) -> Sequence[tuple[Topic, Collection[int]]]:
    """Return the topics of a request that exist, each once, and their named partitions; everything for None."""
    if named is None:
        return [(topic, range(topic.partition_count)) for topic in services.topics.all()]
    asked = await distinct_partitions(named, int)
    return [(topic, of) for name, of in asked.items() if (topic := services.topics.get(name)) is not None]


ANY_EPOCH = -1  # the client does not want its leader epoch checked


class NotLeader(KafkaError):
    """NOT_LEADER_OR_FOLLOWER, with the other broker that leads the partition, if it is known."""

    def __init__(self, leader: Leader | None) -> None:
        super().__init__(error_codes.NOT_LEADER_OR_FOLLOWER, "this broker does not lead the partition")
        self.leader = leader


def name_of(services: Services, topic_id: bytes) -> str:
    topic = services.topics.by_id(topic_id)
    return "" if topic is None else topic.name


def find_partition(services: Services, name: str, index: int, *, topic_id: bytes | None = None) -> Partition | None:
    """Return a partition that this broker leads, by its topic's id or else name."""
    return services.log.partition_named(name, index) if topic_id is None else services.log.partition(topic_id, index)


def led_partition(
    services: Services, name: str, index: int, *, topic_id: bytes | None = None, leader_epoch: int = ANY_EPOCH
) -> Partition:
    """Return a partition that this broker leads. Raises KafkaError as listed above."""
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
    """Return the other broker that leads a partition, if it is known."""
    leader = services.assignment.leader(topic, index)
    if leader is not None and leader.node_id == services.node.node_id:
        return None  # in the middle of a hand-over: a client that is sent here would come back at once
    return leader


def tell_leader(
    services: Services,
    peer: Peer,
    leader: Leader | None,
    answer: PartitionProduceResponse | PartitionData,
    response: ProduceResponse | FetchResponse,
) -> None:
    """Add the leader of a partition and its address to a response, if both are known (KIP-951)."""
    if leader is None:
        return
    if all(endpoint.node_id != leader.node_id for endpoint in response.node_endpoints):
        broker = reachable_broker(services, leader.node_id, peer)
        if broker is None:
            return
        endpoint = NodeEndpoint(node_id=leader.node_id, host=broker.at.host, port=broker.at.port, rack=broker.node.rack)
        response.node_endpoints.append(endpoint)
    answer.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
