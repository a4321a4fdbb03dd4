"""Assignments of clusters of two and three brokers, of which one is under test: partitions may be led by the others.

    assignment = TwoBrokers.of(running.broker)
    assignment.others["orders", 1] = Leader(OTHER_ID, 7)          # clients are told so from now on
    await hand_over(running.broker, "orders", 1)                  # and so it is: this broker leads it no more
    await take_over(running.broker, "orders", 1, epoch=8)         # the other one has given it back

    assignment = ThreeBrokers.of(running.broker)                  # before there are topics: it leads a third of each

The other brokers do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import attrs
import trio

from kafscale.broker import Broker
from kafscale.cluster.coordinator.partitions import coordinator_partition
from kafscale.cluster.membership.assignment import Assignment, Leader
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME
from kafscale.cluster.registries.topics import Topic, TopicRegistry
from kafscale.errors import KafkaError
from kafscale.log.hand_over import acquire_partition, release_partition
from kafscale.log.partition.partition import Partition
from kafscale.wire.error_codes import INVALID_REPLICA_ASSIGNMENT

OTHER_ID = 9
OTHER_ENDPOINTS = {"PLAINTEXT": Endpoint("other.example", 9094), "INSIDE": Endpoint("other.inside", 9095)}
THIRD_ID = 8
THIRD_ENDPOINTS = {"PLAINTEXT": Endpoint("third.example", 9096)}
OTHERS_EPOCH = 40  # the leader epoch of what the others lead


@attrs.define(eq=False)
class TwoBrokers(Assignment):
    """`others` has the partitions that are not led as one broker alone would lead them; None for led by nobody."""

    state: ClusterState = attrs.field(default=cast("ClusterState", None))  # nothing here asks it
    find_topic: Callable[[str], Topic | None] = attrs.field(default=lambda _name: None)
    others: dict[tuple[str, int], Leader | None] = attrs.field(factory=dict)
    other_coordinates: bool = False
    groups: dict[str, Node | None] = attrs.field(factory=dict)  # of those that are coordinated otherwise; None: nobody
    other_controls: bool = False
    other_is_up: bool = True

    @classmethod
    def of(cls, broker: Broker) -> TwoBrokers:
        """Give a broker this assignment."""
        assignment = cls(broker.services.node)
        broker.services.assignment = assignment
        return assignment

    @property
    def other(self) -> Node:
        return Node(node_id=OTHER_ID, cluster_id=self.node.cluster_id, broker_epoch=1, advertised=OTHER_ENDPOINTS)

    @property
    def controller_id(self) -> int:
        return OTHER_ID if self.other_controls else self.node.node_id

    def brokers(self) -> Sequence[Node]:
        return (self.node, self.other) if self.other_is_up else (self.node,)

    def fenced(self) -> Sequence[Node]:
        return ()

    def waiting(self, topic: Topic) -> Mapping[int, int]:
        return {}

    def coordinator(self, group_id: str) -> Node | None:
        return self.groups.get(group_id, self.other if self.other_coordinates else self.node)

    def leader(self, topic: Topic, index: int) -> Leader | None:
        own = Leader(self.node.node_id, self.node.broker_epoch)
        return self.others.get((topic.name, index), own)

    def leaders(self, topic: Topic) -> tuple[Leader | None, ...]:
        return tuple(self.leader(topic, index) for index in range(topic.partition_count))

    def led_here(self, topic: Topic) -> Mapping[int, int]:
        leaders = enumerate(self.leaders(topic))
        return {
            index: leader.epoch
            for index, leader in leaders
            if leader is not None and leader.node_id == self.node.node_id
        }


@attrs.define(eq=False)
class ThreeBrokers(TwoBrokers):
    """The brokers lead every third partition of each topic: the first of them this one, the second OTHER_ID.

    Who leads a partition of `__consumer_offsets` coordinates its groups. `racks` and `endpoints` may be changed.
    """

    partition_count: Callable[[], int] = attrs.field(default=int)  # of `__consumer_offsets`
    third_is_up: bool = True
    racks: dict[int, str] = attrs.field(factory=dict)
    endpoints: dict[int, Mapping[str, Endpoint | None]] = attrs.field(
        factory=lambda: {OTHER_ID: OTHER_ENDPOINTS, THIRD_ID: THIRD_ENDPOINTS}
    )

    @classmethod
    def of(cls, broker: Broker) -> ThreeBrokers:
        topics = broker.services.topics
        assignment = cls(broker.services.node, partition_count=lambda: _partition_count(topics))
        broker.services.assignment = assignment
        return assignment

    def brokers(self) -> Sequence[Node]:
        are_up = {OTHER_ID: self.other_is_up, THIRD_ID: self.third_is_up}
        return (self.node, *(self._pretended(other_id) for other_id in (OTHER_ID, THIRD_ID) if are_up[other_id]))

    def coordinator(self, group_id: str) -> Node | None:
        count = self.partition_count()
        leader = self._leader_of(CONSUMER_OFFSETS_NAME, coordinator_partition(group_id, count)) if count else None
        return next(
            (broker for broker in self.brokers() if leader is not None and broker.node_id == leader.node_id), None
        )

    def leader(self, topic: Topic, index: int) -> Leader | None:
        return self._leader_of(topic.name, index)

    def _leader_of(self, topic: str, index: int) -> Leader | None:
        node_id = (self.node.node_id, OTHER_ID, THIRD_ID)[index % 3]
        epoch = self.node.broker_epoch if node_id == self.node.node_id else OTHERS_EPOCH
        return self.others.get((topic, index), Leader(node_id, epoch))

    def _pretended(self, node_id: int) -> Node:
        return Node(
            node_id=node_id,
            cluster_id=self.node.cluster_id,
            broker_epoch=OTHERS_EPOCH,
            advertised=self.endpoints[node_id],
            rack=self.racks.get(node_id),
        )


@attrs.define(eq=False)
class ScriptedMover:
    """Notes what it is to move; a partition of `refused` can't be. With `is_quick` it is led there at once."""

    assignment: TwoBrokers
    moves: list[tuple[str, int, int]] = attrs.field(factory=list)
    refused: set[tuple[str, int]] = attrs.field(factory=set)
    on_their_way: dict[tuple[str, int], int] = attrs.field(factory=dict)
    replicas: dict[tuple[str, int], Sequence[int]] = attrs.field(factory=dict)
    is_quick: bool = False

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:
        await trio.lowlevel.checkpoint()
        target = replicas[0]
        if (topic.name, index) in self.refused:
            raise KafkaError(INVALID_REPLICA_ASSIGNMENT, f"broker {target} is about to leave")
        self.replicas[topic.name, index] = replicas
        leader = self.assignment.leader(topic, index)
        if leader is not None and leader.node_id == target:
            self.on_their_way.pop((topic.name, index), None)
            return
        self.moves.append((topic.name, index, target))
        if self.is_quick:
            self.assignment.others[topic.name, index] = Leader(target, OTHERS_EPOCH + 1)
        else:
            self.on_their_way[topic.name, index] = target

    async def stay(self, topic: Topic, index: int) -> None:
        await trio.lowlevel.checkpoint()
        leader = self.assignment.leader(topic, index)
        assert leader is not None
        del self.on_their_way[topic.name, index]
        self.replicas[topic.name, index] = (leader.node_id,)

    async def release(self, topic: Topic, index: int) -> None:
        await trio.lowlevel.checkpoint()
        del self.replicas[topic.name, index]

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        if not is_so():
            await trio.sleep_forever()

    def assigned(self, topic: Topic) -> Mapping[int, Sequence[int]]:
        return {index: replicas for (name, index), replicas in self.replicas.items() if name == topic.name}

    def targets(self, topic: Topic) -> Mapping[int, int]:
        return {index: target for (name, index), target in self.on_their_way.items() if name == topic.name}


def _partition_count(topics: TopicRegistry) -> int:
    topic = topics.get(CONSUMER_OFFSETS_NAME)
    return 0 if topic is None else topic.partition_count


async def hand_over(broker: Broker, topic: str, index: int) -> None:
    """Let a broker give up a partition."""
    partition = broker.services.log.partition_named(topic, index)
    assert partition is not None
    await release_partition(broker.services.log, partition)


async def take_over(broker: Broker, topic: str, index: int, *, epoch: int) -> Partition:
    """Let a broker lead a partition with this epoch; return when it does."""
    services, assignment = broker.services, broker.services.assignment
    assert isinstance(assignment, TwoBrokers)
    found = services.topics.get(topic)
    assert found is not None
    spec = attrs.evolve(services.topic_spec(found), leader_epochs={index: epoch})
    partition = await acquire_partition(services.log, spec, index)
    assignment.others[topic, index] = Leader(services.node.node_id, epoch)
    return partition
