"""The result of a successful start: this broker as a member of its cluster.

`LoneMember` has the bucket to itself, `SharingMember` shares it with other brokers. The answers here are those of a
cluster of one; `SharingMember` overrides them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

import attrs
import trio

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.membership.assignment import Assignment
from kafscale.cluster.membership.leading.leading import AllPartitions, EpochStarts, Leading, begun, decide_begin
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.membership.peers.heartbeats import Heartbeats, LeaderNotices, ReleasedContents, heartbeat
from kafscale.cluster.membership.peers.lease import AcknowledgementLease, SuspensionCheck
from kafscale.cluster.membership.peers.liveness import Liveness, StoreLoss
from kafscale.cluster.membership.peers.loads import load_of
from kafscale.cluster.membership.peers.peer_connections import BrokerCalls, Connect, Senders
from kafscale.cluster.membership.placement.administration import Mover
from kafscale.cluster.membership.placement.choice import BalancePlan, BalancePlanner
from kafscale.cluster.membership.placement.controller import Controller
from kafscale.cluster.membership.placement.leaving import Departure, DiskRoom
from kafscale.cluster.membership.placement.writer import PlacementWriter, place_topics
from kafscale.cluster.membership.start.claim import WATCH_SECONDS, Claimed, LeadCheck, release, watch_claim
from kafscale.cluster.membership.start.recovery import MetadataExtents
from kafscale.cluster.membership.state import ClusterState, LoneState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer
from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.cluster.registries.topic_records import Topic, TopicDraft
from kafscale.cluster.registries.topics import TopicRegistry
from kafscale.cluster.transactions.remote_coordinators import RemoteCoordinators, no_peers
from kafscale.concurrency.clocks import elapsed
from kafscale.concurrency.nurseries import ungrouped
from kafscale.config import Durability, Settings
from kafscale.errors import DamagedObject, Fenced, StoreError
from kafscale.formats.manifest import PartitionId
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.hand_over import Recovering
from kafscale.log.load import LoadMeter
from kafscale.log.log import Log, TopicSpec
from kafscale.log.partition.partition import Partition
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.journal import Handle
from kafscale.log.wal.local_wal import LeadLease, LocalLog
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import Earlier, Streams
from kafscale.metrics import Metrics
from kafscale.store.opening.views import StoreViews
from kafscale.wire.error_codes import BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH
from kafscale.wire.messages.brokers import OwnHeartbeatRequest, OwnHeartbeatResponse, Surplus

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
        """Return the moves for balance if these topics (None: all) were not assigned; None unless the controller."""
        return None

    async def serve(self, log: Log) -> None:
        """Work for the cluster while this broker serves, until cancelled."""

    # ---- the end ---------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Move the partitions of this broker to others, however long that takes."""

    @abstractmethod
    async def write_last_checkpoint(self) -> None:
        """Write a checkpoint of the metadata if that is up to this broker. Raises StoreError, Fenced."""

    async def settle_metadata(self) -> None:
        """Wait until the bucket alone has all metadata. Raises Fenced."""

    @abstractmethod
    async def tell_stopped(self, *, has_flushed: bool) -> None:
        """Record the stop, and whether all records are in segments. Raises StoreError, KafkaError."""

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

    async def settle_metadata(self) -> None:
        await self.checkpointer.write_until_done()

    async def tell_stopped(self, *, has_flushed: bool) -> None:
        """Release the claim, so that a broker with another id may follow, if the bucket has all records."""
        if has_flushed or self.settings.durability is not Durability.WAL:
            with suppress(DamagedObject):
                await release(self.views.background, self.settings.namespace, self.claimed.claim)

    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return [self.checkpointer.run]


LOOK_SECONDS = 0.5  # between two looks at the commits of others
REST_SECONDS = 5.0  # between two looks while the controller reports changes and no client asks
ASKED_SECONDS = 10.0


@attrs.define(kw_only=True, eq=False, repr=False)
class SharingMember(ClusterMember):
    """An incarnation, `epoch`, of one of several brokers. `connect` opens connections to the others, if possible."""

    metadata: SharedMetadataStore
    connect: Connect | None
    leads_all: bool = attrs.field(default=False, init=False)
    liveness: Liveness = attrs.field(init=False)
    calls: BrokerCalls = attrs.field(init=False)
    balance: BalancePlanner = attrs.field(init=False)
    store_loss: StoreLoss = attrs.field(init=False)
    heartbeats: Heartbeats = attrs.field(init=False)
    lease: AcknowledgementLease = attrs.field(init=False)
    controller: Controller = attrs.field(init=False)
    epoch_starts: EpochStarts = attrs.field(init=False)
    streams: Streams = attrs.field(init=False)
    senders: Senders = attrs.field(init=False)
    leader_notices: LeaderNotices = attrs.field(init=False)
    released_contents: ReleasedContents = attrs.field(factory=ReleasedContents, init=False)
    suspension_check: SuspensionCheck = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.watch_seconds = LOOK_SECONDS
        self._make_peers()
        self._make_controller()
        self.streams = Streams(
            store=self.views.acknowledge,
            namespace=self.settings.namespace,
            incarnation=self.epoch,
            alone_until=self.metadata.applied.epoch,
        )

    def _make_peers(self) -> None:
        settings, state, check = self.settings, self.state, self.check
        self.liveness = Liveness(settings.broker_session_timeout_seconds)
        self.balance = BalancePlanner(state=state, liveness=self.liveness, meter=LoadMeter())
        self.store_loss = StoreLoss(
            broker_id=state.broker_id,
            timeout_seconds=settings.broker_store_timeout_seconds,
            reach=self.views.reach,
            liveness=self.liveness,
        )
        self.heartbeats = Heartbeats(
            state=state,
            liveness=self.liveness,
            store_loss=self.store_loss,
            connect=self.connect,
            revision=self._revision,
            look_soon=self._look_soon,
            load=self.balance.meter.load,
            take_surplus=self.balance.take_surplus,
        )
        self.calls = BrokerCalls(state, self.connect)
        self.leader_notices = LeaderNotices(state=state, calls=self.calls, revision=self._revision)
        self.senders = Senders(state=state, revision=self._revision, look_soon=self._look_soon)
        self.lease = AcknowledgementLease(self.liveness, lambda: check.led_at, check.confirm)
        self.suspension_check = SuspensionCheck(check.confirm)

    def _make_controller(self) -> None:
        self.controller = Controller(
            metadata=self.metadata,
            state=self.state,
            writer=self.writer,
            store=self.views.background,
            namespace=self.settings.namespace,
            liveness=self.liveness,
            balance=self.balance,
            store_loss=self.store_loss,
        )
        self.epoch_starts = EpochStarts(
            metadata=self.metadata,
            state=self.state,
            writer=self.writer,
            calls=self.calls,
        )

    def _revision(self) -> int:
        return self.metadata.applied.number

    def _look_soon(self, told_revision: int) -> None:
        self.metadata.note_newer(told_revision)
        self.check.sooner.set()

    @property
    def deletes_topics(self) -> bool:
        return self.controller.is_mine

    # ---- parts that need the log or the topics ---------------------------------------------------------------------

    def leader_of(self, log: Log, topics: TopicRegistry, spec: Spec) -> Leading:
        recovering: Recovering | None = None
        if self.journal is not None:
            recovering = Recovering(log=log, journal=self.journal, streams=self.streams)
        return Leading(
            recovering=recovering,
            state=self.state,
            writer=self.writer,
            epoch_starts=self.epoch_starts,
            log=log,
            find_topic=topics.by_id,
            spec=spec,
            tell=self.leader_notices.tell,
            released_contents=self.released_contents,
            look=partial(self.check.confirm_lately, 2 * self.watch_seconds),
        )

    def remote_coordinators(
        self, leader: Callable[[TopicPartition], int | None], coordinated_at: Callable[[str], TopicPartition]
    ) -> RemoteCoordinators:
        return RemoteCoordinators(
            ask=self.calls.ask,
            leader=leader,
            coordinated_at=coordinated_at,
            heartbeat=lambda: heartbeat(self.state, self._revision()),
        )

    # ---- recovery, before anything is served -----------------------------------------------------------------------

    async def end_earlier(self, partitions: Collection[PartitionId]) -> None:
        self.earlier = await self.streams.end({partition: self.state.recover(partition) for partition in partitions})
        if self.journal is not None:
            self.journal.earlier = self.earlier

    def begun(self, partition_id: PartitionId) -> Sequence[EpochStart]:
        placement = self.state.placement(*partition_id)
        return () if placement is None else begun(placement)

    def is_lost(self, entry: WalEntry) -> bool:
        placement = self.state.placement(entry.topic_id, entry.partition)
        return (
            placement is not None
            and placement.decided_epoch > entry.leader_epoch
            and placement.decided_offset <= entry.base_offset
        )

    async def is_deleted(self, partition_id: PartitionId) -> bool:
        await self.metadata.refresh()
        return self.state.placement(*partition_id) is None

    async def decide(self, partitions: Sequence[Partition]) -> None:
        with ungrouped():
            async with trio.open_nursery() as nursery:
                for partition in partitions:
                    nursery.start_soon(self._decide, partition)

    async def _decide(self, partition: Partition) -> None:
        if await decide_begin(self.writer, partition):
            return
        placement = self.state.placement(*partition.partition_id)  # None: deleted meanwhile, and closed soon
        if placement is not None and placement.epoch != partition.leader_epoch:
            raise Fenced(f"broker {self.state.broker_id} was replaced while it started: {partition} is led elsewhere")

    # ---- while it serves -------------------------------------------------------------------------------------------

    def place(self, draft: TopicDraft, transaction: Transaction) -> Transaction:
        surplus = self.balance.weigh() if self.controller.is_mine else self.balance.surplus()
        return place_topics(self.state, surplus, draft, transaction)

    async def catch_up(self) -> None:
        with suppress(StoreError, DamagedObject, Fenced):  # the watch raises them
            await self.check.confirm()

    def has_led_lately(self) -> bool:
        has_led = self.check.has_led_within(2 * self.watch_seconds)
        if not has_led:
            self.check.sooner.set()
        return has_led

    async def wait_awake(self) -> None:
        await self.suspension_check.wait()

    async def heard(self, request: OwnHeartbeatRequest) -> OwnHeartbeatResponse:
        """Answer a heartbeat: tell its sender whether it may act and, as the controller, the surplus of each broker.

        Returns when the reported epoch starts are committed, or can't be. A false sender changes nothing.
        """
        code = self.senders.error_code(request)
        if code == STALE_BROKER_EPOCH:
            return OwnHeartbeatResponse(is_caught_up=True, is_fenced=True)
        if code:
            return OwnHeartbeatResponse(error_code=code)
        self.senders.look_for_newer(request)
        self.released_contents.note(request.released)  # before a look at the metadata that acts on it
        is_current = self.heartbeats.heard(request.broker_id, request.broker_epoch, request.current_metadata_offset)
        response = OwnHeartbeatResponse(
            is_caught_up=True, is_fenced=not is_current, store_silent_ms=self.store_loss.silent_ms
        )
        if is_current and request.load is not None:
            self.balance.take(request.broker_id, request.broker_epoch, load_of(request.load))
            if self.controller.is_mine:
                weighed = self.balance.weigh().items()
                response.surpluses = [Surplus(broker_id=broker_id, weight=weight) for broker_id, weight in weighed]
        if is_current and request.begun:
            await self.epoch_starts.take(request)
        return response

    def plan_balance(self, released: Collection[bytes] | None) -> BalancePlan | None:
        controller = self.state.controller
        is_mine = controller is not None and controller.broker_id == self.state.broker_id
        return self.balance.plan(released) if is_mine else None

    async def serve(self, log: Log) -> None:
        self.balance.meter.partitions = log.partitions.values
        self.controller.serving.set()
        room = DiskRoom(
            state=self.state,
            log=log,
            looked_at=lambda: self.check.led_at,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.balance.meter.run)
            nursery.start_soon(room.run)

    # ---- the end ---------------------------------------------------------------------------------------------------

    @property
    def _leaving(self) -> Departure:
        return Departure(
            state=self.state,
            writer=self.writer,
            refresh=self.metadata.refresh,
            balance=self.balance,
        )

    async def hand_over(self) -> None:
        await self._leaving.run()

    async def write_last_checkpoint(self) -> None:
        await self.controller.write_checkpoint()

    async def tell_stopped(self, *, has_flushed: bool) -> None:
        await self._leaving.tell_stopped(has_flushed=has_flushed)

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def register(self, metrics: Metrics) -> None:
        super().register(metrics)
        self.controller.register(metrics)
        self.balance.meter.register(metrics)

    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        tasks: list[Callable[[], Awaitable[None]]] = [
            self.controller.run,
            self.heartbeats.run,
            self.calls.run,
            self.leader_notices.run,
            self.suspension_check.run,
        ]
        if self.settings.durability is not Durability.WAL:  # otherwise it acknowledges without the store
            tasks.append(self.store_loss.run)
        return tasks

    def may_rest(self) -> bool:
        """Tell whether the controller reports changes to this broker, and no client asks for a look.

        Never with a log of its own, which acknowledges for a while after a look (`membership.peers.lease`).
        """
        record, now = self.state.brokers.get(self.state.broker_id), elapsed()
        is_leased = record is None or record.acknowledges_locally
        return (
            not is_leased
            and not self.controller.is_mine
            and self.heartbeats.is_told_of_all()
            and not self.store_loss.is_suspected()
            and now - self.check.led_at < REST_SECONDS
            and now - self.check.asked_at >= ASKED_SECONDS
        )
