"""The result of a successful start: this broker as a member of its cluster.

`LoneMember` has the bucket to itself, `SharingMember` shares it with other brokers. The answers here are those of a
cluster of one; `SharingMember` overrides them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress

import attrs
import trio

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.membership.assignment import Assignment
from kafscale.cluster.membership.leading.leading import AllPartitions, Leading
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.membership.placement.administration import Mover
from kafscale.cluster.membership.placement.choice import BalancePlan
from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.start.claim import WATCH_SECONDS, Claimed, LeadCheck, release, watch_claim
from kafscale.cluster.membership.start.recovery import MetadataExtents
from kafscale.cluster.membership.state import ClusterState, LoneState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer
from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.cluster.registries.topic_index import Topic, TopicDraft
from kafscale.cluster.registries.topics import TopicRegistry
from kafscale.cluster.transactions.remote_coordinators import RemoteCoordinators, no_peers
from kafscale.concurrency.nurseries import ungrouped
from kafscale.config import Durability, Settings
from kafscale.errors import DamagedObject
from kafscale.formats.manifest import PartitionId
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.log import Log, TopicSpec
from kafscale.log.partition.partition import Partition
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.journal import Handle
from kafscale.log.wal.local_wal import LeadLease, LocalLog
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import Earlier
from kafscale.metrics import Metrics
from kafscale.store.opening.views import StoreViews
from kafscale.wire.error_codes import BROKER_ID_NOT_REGISTERED
from kafscale.wire.messages.brokers import OwnHeartbeatRequest, OwnHeartbeatResponse

Spec = Callable[[Topic], TopicSpec]


class HeldLease:
    """A lease that is always good: a successor waits until this broker has looked at the claim."""

    def is_good(self) -> bool:
        return True

    async def wait(self) -> None:
        pass


@attrs.define(kw_only=True, eq=False, repr=False)
class ClusterMember:
    """A broker that may lead partitions; `run` it before `metadata` is changed.

    `views` of the store are guarded: nothing is deleted that a successor may want. `epoch` is the unique number of this
    start. `journal` is the log in the bucket, if this broker writes one, and `earlier` reads earlier ones. `check`
    looks in the bucket whether this broker may still act, every `watch_seconds` at least. `leads_all`: it leads every
    partition of the namespace. `lease` is that of a log on the local disk.
    """

    settings: Settings
    views: StoreViews
    epoch: int
    metadata: GroupCommit
    journal: S3Wal | None
    earlier: Earlier
    check: LeadCheck
    state: ClusterState
    watch_seconds: float = attrs.field(default=WATCH_SECONDS, init=False)
    leads_all: bool = attrs.field(default=True, init=False)
    lease: LeadLease = attrs.field(factory=HeldLease, init=False)
    writer: PlacementWriter = attrs.field(init=False)
    mover: Mover = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.writer = PlacementWriter(self.state)
        self.mover = Mover(self.state, self.writer)

    @property
    def deletes_topics(self) -> bool:
        """Tell whether this broker deletes the objects of deleted topics, as one broker does for all."""
        return True

    @property
    def endpoints(self) -> Mapping[str, Endpoint | None]:
        """Return the advertised endpoints of this broker by listener."""
        return self.state.brokers[self.settings.broker_id].endpoints

    def local_log(self, disk: Disk) -> LocalLog:
        return LocalLog(disk=disk, lease=self.lease, extents=MetadataExtents(self.metadata.local))

    # ---- parts that need the log or the topics ---------------------------------------------------------------------

    def assign(self, node: Node, topics: TopicRegistry) -> Assignment:
        return Assignment(node, self.state, topics.get)

    def leader_of(self, log: Log, topics: TopicRegistry, spec: Spec) -> AllPartitions | Leading:
        """Make the part that opens partitions which this broker is to lead, and hands over others."""
        return AllPartitions(log, spec)

    def remote_coordinators(
        self, leader: Callable[[TopicPartition], int | None], coordinated_at: Callable[[str], TopicPartition]
    ) -> RemoteCoordinators:
        return no_peers()

    # ---- recovery, before anything is served -----------------------------------------------------------------------

    async def end_earlier(self, partitions: Collection[PartitionId]) -> None:
        """End the streams that these partitions recover from. Raises DamagedObject, StoreError."""

    async def replay_earlier(self, handle: Handle) -> None:
        """Pass the batches of earlier logs in the bucket to `handle`. Raises DamagedObject, StoreError."""
        await (self.earlier if self.journal is None else self.journal).replay(handle)

    def begun(self, partition_id: PartitionId) -> Sequence[EpochStart]:
        """Return where the last decided epoch of a partition began."""
        return ()

    def is_lost(self, entry: WalEntry) -> bool:
        """Tell whether another broker leads the partition since before this entry of the log."""
        return False

    async def is_deleted(self, partition_id: PartitionId) -> bool:
        """Look whether another broker has deleted the topic of a partition. Raises StoreError, DamagedObject."""
        return False

    async def decide(self, partitions: Sequence[Partition]) -> None:
        """Commit where the epochs of recovered partitions begin. Raises Fenced if another broker leads one."""

    # ---- while it serves -------------------------------------------------------------------------------------------

    def place(self, draft: TopicDraft, transaction: Transaction) -> Transaction:
        """Add the leaders of new partitions to the transaction that creates them. Raises KafkaError."""
        return transaction

    async def catch_up(self) -> None:
        """Return when all earlier commits of other brokers are known here, or the store is away."""

    def has_led_lately(self) -> bool:
        """Tell whether a recent look found that this broker may act; if not, look soon."""
        return True

    async def wait_awake(self) -> None:
        """Return at once; after a suspension of this process when it has looked at the bucket. Raises Fenced."""

    async def heard(self, request: OwnHeartbeatRequest) -> OwnHeartbeatResponse:
        """Answer a heartbeat of another broker."""
        return OwnHeartbeatResponse(error_code=BROKER_ID_NOT_REGISTERED)

    def plan_balance(self, released: Collection[bytes] | None) -> BalancePlan | None:
        """Return the moves for balance if these topics, or all with None, had no assigned partitions.

        None unless this broker is the controller.
        """
        return None

    async def serve(self, log: Log) -> None:
        """Work for the cluster while this broker serves, until cancelled."""

    # ---- the end ---------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Move the partitions of this broker to others, however long that takes."""

    @abstractmethod
    async def write_last_checkpoint(self) -> None:
        """Write a checkpoint of the metadata if that is up to this broker. Raises StoreError, Fenced."""

    @abstractmethod
    async def tell_stopped(self, *, has_flushed: bool) -> None:
        """Record in the bucket that this broker has stopped, and whether all its records are in segments.

        Raises StoreError, KafkaError.
        """

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def register(self, metrics: Metrics) -> None:
        self.metadata.register(metrics)
        if self.journal is not None:
            self.journal.register(metrics)

    @abstractmethod
    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Return the tasks that run beside the metadata until the broker ends."""

    def may_rest(self) -> bool:
        """Tell whether the next look at the bucket may be skipped."""
        return False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the metadata durable, and look whether this broker may still act. Raises Fenced, StorageFailed."""
        with ungrouped():
            async with trio.open_nursery() as nursery:
                if self.journal is not None:
                    await nursery.start(self.journal.run)
                await nursery.start(self.metadata.run)
                for task in self.tasks():
                    nursery.start_soon(task)
                nursery.start_soon(watch_claim, self.check, self.watch_seconds, self.may_rest)
                task_status.started()


@attrs.define(kw_only=True, eq=False, repr=False)
class LoneMember(ClusterMember):
    """The only broker of its bucket, by its claim. `checkpointer` writes the metadata to the bucket."""

    state: LoneState
    checkpointer: Checkpointer
    claimed: Claimed

    def assign(self, node: Node, topics: TopicRegistry) -> Assignment:
        self.state.lead_all(topics)
        return super().assign(node, topics)

    async def write_last_checkpoint(self) -> None:
        await self.checkpointer.write_if_changed()

    async def tell_stopped(self, *, has_flushed: bool) -> None:
        """Release the claim, so that a broker with another id may follow, if the bucket has all records."""
        if has_flushed or self.settings.durability is not Durability.WAL:
            with suppress(DamagedObject):
                await release(self.views.background, self.settings.namespace, self.claimed.claim)

    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return [self.checkpointer.run]
