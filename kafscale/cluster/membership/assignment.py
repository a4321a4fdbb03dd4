"""Answers the APIs: brokers, the controller, leaders of partitions, coordinators of groups.

The log tells which partitions this broker really serves: one that is handed over leaves the log before another leader
is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import attrs

from kafscale.cluster.coordinator.partitions import coordinator_partition
from kafscale.cluster.membership.node import Node
from kafscale.cluster.membership.records import NOBODY, BrokerRecord, BrokerState, Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME
from kafscale.cluster.registries.topic_records import Topic

CACHED_TOPICS_MAX_COUNT = 100_000  # topics whose leaders are kept until brokers or placements change


@attrs.frozen(cache_hash=True)  # every topic of a Metadata reply looks its layout up by it
class Leader:
    """The broker that leads a partition, its leader epoch, and the partition's replicas if they are assigned."""

    node_id: int
    epoch: int
    replicas: tuple[int, ...] = ()


@attrs.define(eq=False, repr=False)
class Assignment:
    """Brokers and leaders as this broker, `node`, knows them. A partition whose leader is not live has no leader."""

    node: Node
    state: ClusterState
    find_topic: Callable[[str], Topic | None]
    _nodes: Mapping[int, Node] = attrs.field(factory=dict, init=False)
    _seen_revision: int = attrs.field(default=-1, init=False)
    # By topic id: the number of partitions, and their leaders.
    _leaders: dict[bytes, tuple[int, tuple[Leader | None, ...]]] = attrs.field(factory=dict, init=False)

    @property
    def controller_id(self) -> int:
        """Return the id of the live controller, -1 without one, as Kafka does."""
        controller = self.state.controller
        return NOBODY if controller is None or controller.broker_id not in self._live() else controller.broker_id

    def brokers(self) -> Sequence[Node]:
        return tuple(self._live().values())

    def fenced(self) -> Sequence[Node]:
        """Return the registered brokers that do not serve now."""
        brokers = sorted(self.state.brokers.items())
        return [self._node(broker_id, record) for broker_id, record in brokers if record.state is not BrokerState.LIVE]

    def coordinator(self, group_id: str) -> Node | None:
        """Return the broker that coordinates a group now, if any; before the topic exists a lone broker does."""
        topic = self.find_topic(CONSUMER_OFFSETS_NAME)
        if topic is None:
            return self._live().get(self.node.node_id) if len(self.state.brokers) == 1 else None
        leader = self.leader(topic, coordinator_partition(group_id, topic.partition_count))
        return None if leader is None else self._live().get(leader.node_id)

    def leader(self, topic: Topic, index: int) -> Leader | None:
        """Return the present leader of a partition that the topic has, if any."""
        leaders = self.leaders(topic)
        return leaders[index if len(leaders) > 1 else 0]

    def leaders(self, topic: Topic) -> tuple[Leader | None, ...]:
        """Return the leader of each partition in order, or a single leader of all."""
        live = self._live()
        partition_count, known = self._leaders.get(topic.topic_id, (0, ()))
        if partition_count != topic.partition_count:
            placements = self.state.placements.get(topic.topic_id, ())
            found = [_leader(placement) if placement.leader in live else None for placement in placements]
            missing_count = topic.partition_count - len(found)
            known = (*found[: topic.partition_count], *(None,) * missing_count)
            if len({*known}) == 1:
                known = known[:1]  # a Metadata answer looks its layout up by these
            if len(self._leaders) >= CACHED_TOPICS_MAX_COUNT:
                self._leaders.clear()
            self._leaders[topic.topic_id] = topic.partition_count, known
        return known

    def waiting(self, topic: Topic) -> Mapping[int, int]:
        """Return the partitions without a leader, each with the broker that it waits for."""
        if None not in self.leaders(topic):
            return {}
        live, placements = self._live(), self.state.placements.get(topic.topic_id, ())
        return {index: placement.leader for index, placement in enumerate(placements) if placement.leader not in live}

    def led_here(self, topic: Topic) -> Mapping[int, int]:
        """Return the partitions of this broker, each with its leader epoch."""
        placements = self.state.placements.get(topic.topic_id, ())
        return {
            index: placement.epoch
            for index, placement in enumerate(placements)
            if placement.leader == self.node.node_id
        }

    def _live(self) -> Mapping[int, Node]:
        """Return the live brokers by id; they and the leaders are cached until brokers or placements change."""
        if self._seen_revision != self.state.revision:
            self._seen_revision = self.state.revision
            self._leaders.clear()
            self._nodes = {broker_id: self._node(broker_id, record) for broker_id, record in self.state.live().items()}
        return self._nodes

    def _node(self, broker_id: int, record: BrokerRecord) -> Node:
        return Node(
            node_id=broker_id,
            cluster_id=self.node.cluster_id,
            broker_epoch=record.incarnation,
            advertised=record.endpoints,
            rack=record.rack,
        )


def _leader(placement: Placement) -> Leader:
    """Return a partition's leader, with its replicas only if the leader is one of them."""
    replicas = placement.replicas if placement.leader in placement.replicas else ()
    return _shared_leader(placement.leader, placement.epoch, replicas)


@lru_cache(maxsize=1024)
def _shared_leader(node_id: int, epoch: int, replicas: tuple[int, ...]) -> Leader:
    return Leader(node_id, epoch, replicas)
