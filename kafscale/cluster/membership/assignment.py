"""Who leads which partition, which brokers there are, who is the controller, and who coordinates a group.

Every API asks here, and none assumes that it is this broker. As long as there is one broker, it is the answer to each
question, and the leader epoch of every partition is the epoch that the broker claimed when it started.

What is answered is what clients are told. Which partitions this broker really serves is in its log: a partition that is
handed over leaves the log before another leader is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.topic_index import Topic


@attrs.frozen(cache_hash=True)  # every topic of a Metadata reply looks its layout up by it
class Leader:
    """Which broker leads a partition, and its leader epoch; and the partition's replicas, if they are assigned."""

    node_id: int
    epoch: int
    replicas: tuple[int, ...] = ()


@attrs.define(eq=False, repr=False)
class Assignment:
    """The assignment of a cluster of one broker: `node`, which leads everything."""

    node: Node
    _leader: Leader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._leader = Leader(self.node.node_id, self.node.broker_epoch)

    @property
    def is_alone(self) -> bool:
        """Tell whether this broker leads everything, and always will."""
        return True

    @property
    def controller_id(self) -> int:
        """The id of the broker that decides about the others."""
        return self.node.node_id

    def brokers(self) -> Sequence[Node]:
        """The brokers that clients may connect to."""
        return (self.node,)

    def fenced(self) -> Sequence[Node]:
        """Return the brokers that are known and serve nobody just now."""
        return ()

    def coordinator(self, group_id: str) -> Node | None:
        """The broker that coordinates a group; None if there is none just now."""
        return self.node

    def leader(self, topic: Topic, index: int) -> Leader | None:
        """Return who leads a partition that the topic has; None if nobody does just now."""
        return self._leader

    def leaders(self, topic: Topic) -> tuple[Leader | None, ...]:
        """Return the leader of each partition in order, or a single one that leads them all."""
        return (self._leader,)

    def waiting(self, topic: Topic) -> Mapping[int, int]:
        """Return which broker, that does not serve, the partitions wait for that nobody leads just now."""
        return {}

    def led_here(self, topic: Topic) -> Mapping[int, int]:
        """The partitions that this broker is to lead, and the leader epoch of each."""
        return dict.fromkeys(range(topic.partition_count), self._leader.epoch)
