"""The assignment of a cluster of several brokers: what the APIs ask, answered from what the metadata says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from kafscale.cluster.coordinator.partitioning import coordinator_partition
from kafscale.cluster.membership.assignment import Assignment, Leader
from kafscale.cluster.membership.node import Node
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.registries.topic_index import Topic
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME

_NOBODY = -1  # Kafka's id of a controller that is not known


@attrs.define(eq=False, repr=False)
class ClusterAssignment(Assignment):
    """Which brokers there are, and who leads what. `node` is this one; `find_topic` finds a topic by name.

    A partition whose leader is not live is led by nobody, as far as clients are told.
    """

    state: ClusterState
    find_topic: Callable[[str], Topic | None]
    _nodes: Mapping[int, Node] = attrs.field(factory=dict, init=False)
    _seen_revision: int = attrs.field(default=-1, init=False)
    _leaders: dict[bytes, tuple[Leader | None, ...]] = attrs.field(factory=dict, init=False)

    @property
    def is_alone(self) -> bool:
        return False

    @property
    def controller_id(self) -> int:
        controller = self.state.controller
        return _NOBODY if controller is None or controller.broker_id not in self._live() else controller.broker_id

    def brokers(self) -> Sequence[Node]:
        return tuple(self._live().values())

    def fenced(self) -> Sequence[Node]:
        brokers = sorted(self.state.brokers.items())
        return [self._node(each, record) for each, record in brokers if record.state is not BrokerState.LIVE]

    def coordinator(self, group_id: str) -> Node | None:
        topic = self.find_topic(CONSUMER_OFFSETS_NAME)
        if topic is None:
            return None
        leader = self.leader(topic, coordinator_partition(group_id, topic.partition_count))
        return None if leader is None else self._live().get(leader.node_id)

    def leader(self, topic: Topic, index: int) -> Leader | None:
        return self.leaders(topic)[index]

    def leaders(self, topic: Topic) -> tuple[Leader | None, ...]:
        live = self._live()
        known = self._leaders.get(topic.topic_id)
        if known is None or len(known) != topic.partition_count:
            placements = self.state.placements.get(topic.topic_id, ())
            found = [_leader(each) if each.leader in live else None for each in placements]
            missing_count = topic.partition_count - len(found)
            known = (*found[: topic.partition_count], *(None,) * missing_count)
            self._leaders[topic.topic_id] = known
        return known

    def waiting(self, topic: Topic) -> Mapping[int, int]:
        if None not in self.leaders(topic):
            return {}
        live, placements = self._live(), self.state.placements.get(topic.topic_id, ())
        return {index: each.leader for index, each in enumerate(placements) if each.leader not in live}

    def led_here(self, topic: Topic) -> Mapping[int, int]:
        placements = self.state.placements.get(topic.topic_id, ())
        return {index: each.epoch for index, each in enumerate(placements) if each.leader == self.node.node_id}

    def _live(self) -> Mapping[int, Node]:
        """The nodes of live brokers by id; made anew, as the leaders are, when something has changed."""
        if self._seen_revision != self.state.revision:
            self._seen_revision = self.state.revision
            self._leaders.clear()
            self._nodes = {each: self._node(each, record) for each, record in self.state.live().items()}
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
    """Return who leads a partition, as one of the brokers that it is assigned to if it is one of them."""
    replicas = placement.replicas if placement.leader in placement.replicas else ()
    return Leader(placement.leader, placement.epoch, replicas)
