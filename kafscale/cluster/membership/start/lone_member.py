"""A broker that has the bucket to itself: it leads every partition, and is always the controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.membership.assignment import Assignment
from kafscale.cluster.membership.leading.leading import AllPartitions, PartitionLeader
from kafscale.cluster.membership.node import Node
from kafscale.cluster.membership.placement.mover import Mover, NoMover
from kafscale.cluster.membership.start.claim import WATCH_SECONDS, Claimed, release
from kafscale.cluster.membership.start.member import ClusterMember, Spec
from kafscale.cluster.membership.state import LoneState
from kafscale.cluster.metadata.checkpoint import Checkpointer
from kafscale.cluster.registries.topics import TopicRegistry
from kafscale.cluster.transactions.remote_coordinators import RemoteCoordinators, no_peers
from kafscale.config import Durability
from kafscale.errors import DamagedObject
from kafscale.log.log import Log
from kafscale.log.wal.local_wal import Lease
from kafscale.wire.error_codes import BROKER_ID_NOT_REGISTERED
from kafscale.wire.messages.brokers import OwnHeartbeatRequest, OwnHeartbeatResponse


class HeldLease:
    """A lease that is always good: a successor waits until this broker has looked at the claim."""

    def is_good(self) -> bool:
        """Return True."""
        return True

    async def wait(self) -> None:
        """Return at once."""


@attrs.define(kw_only=True, eq=False, repr=False)
class LoneMember(ClusterMember):
    """The only broker of its bucket, by its claim. `checkpointer` writes the metadata to the bucket."""

    state: LoneState
    checkpointer: Checkpointer
    claimed: Claimed
    leads_all: bool = attrs.field(default=True, init=False)
    deletes_topics: bool = attrs.field(default=True, init=False)
    watch_seconds: float = attrs.field(default=WATCH_SECONDS, init=False)
    lease: Lease = attrs.field(factory=HeldLease, init=False)
    mover: Mover = attrs.field(factory=NoMover, init=False)

    def assign(self, node: Node, topics: TopicRegistry) -> Assignment:
        self.state.lead_all(topics)
        return super().assign(node, topics)

    def leader_of(self, log: Log, topics: TopicRegistry, spec: Spec) -> PartitionLeader:
        return AllPartitions(log, spec)

    def remote_coordinators(
        self, leader: Callable[[TopicPartition], int | None], coordinated_at: Callable[[str], TopicPartition]
    ) -> RemoteCoordinators:
        return no_peers()

    async def heard(self, request: OwnHeartbeatRequest) -> OwnHeartbeatResponse:
        return OwnHeartbeatResponse(error_code=BROKER_ID_NOT_REGISTERED)

    async def write_last_checkpoint(self) -> None:
        await self.checkpointer.write_if_changed()

    async def tell_stopped(self, *, has_flushed: bool) -> None:
        """Release the claim, so that a broker with another id may follow; not if the disk has what the bucket lacks."""
        if has_flushed or self.settings.durability is not Durability.WAL:
            with suppress(DamagedObject):
                await release(self.views.background, self.settings.namespace, self.claimed.claim)

    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return [self.checkpointer.run]
