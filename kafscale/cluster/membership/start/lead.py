"""What a start has when it may act: the metadata, the log in the bucket, and whom to ask whether it still may."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import attrs
import trio

from kafscale.cluster.membership.leading.epoch_starts import Beginnings, decide_begin
from kafscale.cluster.membership.leading.leading import begun
from kafscale.cluster.membership.peers.heartbeats import Heartbeats
from kafscale.cluster.membership.peers.leader_notices import Telling, Told
from kafscale.cluster.membership.peers.lease import Lease
from kafscale.cluster.membership.peers.loads import load_of
from kafscale.cluster.membership.peers.peer_calls import BrokerCalls
from kafscale.cluster.membership.peers.senders import Senders
from kafscale.cluster.membership.peers.store_loss import StoreLoss
from kafscale.cluster.membership.peers.suspension_check import Wakefulness
from kafscale.cluster.membership.placement.balance import Balance
from kafscale.cluster.membership.placement.controller import Controller
from kafscale.cluster.membership.placement.disk_room import DiskRoom
from kafscale.cluster.membership.placement.leaving import Leaving
from kafscale.cluster.membership.placement.new_topics import place_topics
from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.start.claim import WATCH_SECONDS, Claimed, LeadCheck, release, watch_claim
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer
from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.cluster.registries.topic_index import TopicDraft
from kafscale.concurrency.clocks import elapsed
from kafscale.concurrency.nurseries import ungrouped
from kafscale.errors import DamagedObject, Fenced, StoreError
from kafscale.formats.manifest import PartitionId
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.partition.partition import Partition
from kafscale.log.wal.journal import Handle
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import Earlier, Streams
from kafscale.metrics import Metrics
from kafscale.store.opening.views import StoreViews
from kafscale.wire.error_codes import STALE_BROKER_EPOCH
from kafscale.wire.messages.brokers import OwnHeartbeatRequest, OwnHeartbeatResponse, Surplus

REST_SECONDS = 5.0  # between two looks while the controller tells what is new, and nobody asks
ASKED_SECONDS = 10.0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Several:
    """What a broker beside others has."""

    broker_id: int
    state: ClusterState
    writer: PlacementWriter
    beginnings: Beginnings
    controller: Controller
    balance: Balance
    streams: Streams
    senders: Senders
    heartbeats: Heartbeats
    calls: BrokerCalls
    telling: Telling
    told: Told
    store_loss: StoreLoss
    lease: Lease

    async def heard(self, request: OwnHeartbeatRequest) -> OwnHeartbeatResponse:
        """Answer a heartbeat: the sender learns whether it may still act, and what all have to do.

        If it may, this returns when what it says has begun is committed, or can't be. A sender that is not the broker
        that it claims to be changes nothing.
        """
        code = self.senders.error_code(request)
        if code == STALE_BROKER_EPOCH:
            return OwnHeartbeatResponse(is_caught_up=True, is_fenced=True)
        if code:
            return OwnHeartbeatResponse(error_code=code)
        self.senders.look_for_newer(request)
        self.told.note(request.released)  # before anybody looks what is committed, and acts on it
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
            await self.beginnings.take(request)
        return response

    def is_told_of_all(self) -> bool:
        """Tell whether the controller tells this broker all the time what is committed.

        Not the controller itself, nor who may acknowledge for a while behind a look
        (`kafscale.cluster.membership.peers.lease`).
        """
        record = self.state.brokers.get(self.broker_id)
        is_leased = record is None or record.acknowledges_locally
        return not is_leased and not self.controller.is_mine and self.heartbeats.is_told_of_all()

    def place(self, draft: TopicDraft, transaction: Transaction) -> Transaction:
        """Add who is to lead what a transaction of topics creates. Raises KafkaError."""
        surplus = self.balance.weigh() if self.controller.is_mine else self.balance.surplus()
        return place_topics(self.state, surplus, draft, transaction)

    def begun(self, partition_id: PartitionId) -> Sequence[EpochStart]:
        """Return where the last epoch of a partition began that was decided, as `resolve` wants it."""
        placement = self.state.placement(*partition_id)
        return () if placement is None else begun(placement)

    def is_lost(self, entry: WalEntry) -> bool:
        """Tell whether others lead the partition of an entry of this broker's log, and began before it.

        So it is where an operator has given this broker up.
        """
        placement = self.state.placement(entry.topic_id, entry.partition)
        return (
            placement is not None
            and placement.decided_epoch > entry.leader_epoch
            and placement.decided_offset <= entry.base_offset
        )

    async def is_deleted(self, partition_id: PartitionId) -> bool:
        """Look whether the topic of a partition that was there is deleted by now. Raises StoreError, DamagedObject."""
        await self.controller.metadata.refresh()
        return self.state.placement(*partition_id) is None

    async def end_streams(self, partitions: Collection[PartitionId]) -> Earlier:
        """End the streams that these partitions are to be recovered from. Raises DamagedObject, StoreError."""
        return await self.streams.end({each: self.state.recover(each) for each in partitions})

    async def decide(self, partitions: Sequence[Partition]) -> None:
        """Commit where the epochs of partitions that this broker has found begin; nobody is served yet.

        What is deleted meanwhile is closed soon. Raises Fenced if another one leads any of them by now, StoreError.
        """
        with ungrouped():
            async with trio.open_nursery() as nursery:
                for partition in partitions:
                    nursery.start_soon(self._decide, partition)

    async def _decide(self, partition: Partition) -> None:
        if not await decide_begin(self.writer, partition):
            self._check_leads(partition)

    def _check_leads(self, partition: Partition) -> None:
        placement = self.state.placement(*partition.partition_id)
        if placement is not None and placement.epoch != partition.leader_epoch:
            raise Fenced(f"broker {self.broker_id} was replaced while it started: {partition} is led elsewhere")

    def disk_room(self, log_lacks_room: Callable[[], bool], looked_at: Callable[[], float]) -> DiskRoom:
        """Return what watches the disk. `looked_at` tells when the bucket was looked at last."""
        return DiskRoom(
            broker_id=self.broker_id,
            incarnation=self.controller.incarnation,
            state=self.state,
            check_metadata=self.controller.metadata.check_room,
            log_lacks_room=log_lacks_room,
            looked_at=looked_at,
        )

    @property
    def leaving(self) -> Leaving:
        """Return what has others lead what this broker leads."""
        return Leaving(
            broker_id=self.broker_id,
            incarnation=self.controller.incarnation,
            state=self.state,
            writer=self.writer,
            refresh=self.controller.metadata.refresh,
            silent=self.heartbeats.liveness.silent,
            loads=self.balance.loads_of_own,
        )


@attrs.define(kw_only=True, eq=False, repr=False)
class Lead:
    """What a broker works with that leads everything, or its part of it; `run` it before `metadata` is changed.

    `views` are those of the store, guarded: nothing is deleted that a successor may want. `epoch` is the number of this
    start, which no other has. `journal` is the log in the bucket, None if this broker writes none. `earlier` is what it
    held at the start; beside others, what `end_earlier` has found. `check` looks on demand, every `watch_seconds`
    at least. `checkpointer` is None beside others, of whom one writes checkpoints for all, and so is `claimed`: there
    nobody claims the bucket.
    """

    views: StoreViews
    epoch: int
    metadata: GroupCommit
    journal: S3Wal | None
    earlier: Earlier
    check: LeadCheck
    checkpointer: Checkpointer | None
    claimed: Claimed | None = None
    several: Several | None = None
    watch_seconds: float = WATCH_SECONDS
    wakefulness: Wakefulness = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.wakefulness = Wakefulness(self.check.confirm)

    def register(self, metrics: Metrics) -> None:
        """Show the metadata, and the log in the bucket if this broker writes one, to whoever scrapes."""
        self.metadata.register(metrics)
        if self.journal is not None:
            self.journal.register(metrics)
        if self.several is not None:
            self.several.controller.register(metrics)
            self.several.balance.meter.register(metrics)

    async def end_earlier(self, partitions: Collection[PartitionId]) -> None:
        """Know what earlier incarnations have left of partitions that are led here, before anything is listed of them.

        Raises DamagedObject, StoreError.
        """
        if self.several is not None:
            self.earlier = await self.several.end_streams(partitions)
            if self.journal is not None:
                self.journal.earlier = self.earlier

    async def replay_earlier(self, handle: Handle) -> None:
        """Hand the record batches that the bucket's log held at the start to `handle`, where no `Log` replays them.

        Raises DamagedObject, StoreError.
        """
        await (self.earlier if self.journal is None else self.journal).replay(handle)

    @property
    def deletes_topics(self) -> bool:
        """Tell whether this broker deletes the objects of deleted topics, which one does for all."""
        return self.several is None or self.several.controller.is_mine

    async def catch_up(self) -> None:
        """Return when what other brokers had committed before is known here, or the store can't be asked.

        However many ask, at most one look is under way.
        """
        with suppress(StoreError, DamagedObject, Fenced):  # who watches the lead sees to the last of these
            await self.check.confirm()

    def has_led_lately(self) -> bool:
        """Tell whether a look has found a moment ago that this broker may act; if not, there will be one at once."""
        has_led = self.check.has_led_within(2 * self.watch_seconds)
        if not has_led:
            self.check.sooner.set()
        return has_led

    async def write_last_checkpoint(self) -> None:
        """Write a checkpoint of the metadata, if it is this broker's to do and something has changed.

        Raises StoreError, Fenced.
        """
        if self.several is not None:
            await self.several.controller.write_checkpoint()
        elif self.checkpointer is not None:
            await self.checkpointer.write_if_changed()

    async def release(self, namespace: str) -> None:
        """Say that a broker alone has stopped in order, so that one with another id may follow. Raises StoreError."""
        if self.claimed is not None:
            with suppress(DamagedObject):
                await release(self.views.background, namespace, self.claimed.claim)

    def _may_rest(self) -> bool:
        """Tell whether nobody needs a look just now.

        The controller tells that nothing is new, and nobody asks this broker what others could answer better by now.
        """
        now = elapsed()
        return (
            self.several is not None
            and self.several.is_told_of_all()
            and not self.several.store_loss.is_suspected()
            and now - self.check.led_at < REST_SECONDS
            and now - self.check.asked_at >= ASKED_SECONDS
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the metadata durable, and look whether another broker has taken over. Raises Fenced, StorageFailed."""
        with ungrouped():
            async with trio.open_nursery() as nursery:
                if self.journal is not None:
                    await nursery.start(self.journal.run)
                await nursery.start(self.metadata.run)
                if self.several is not None:
                    nursery.start_soon(self.several.state.run)
                    nursery.start_soon(self.several.controller.run)
                    nursery.start_soon(self.several.heartbeats.run)
                    nursery.start_soon(self.several.calls.run)
                    nursery.start_soon(self.several.telling.run)
                    nursery.start_soon(self.wakefulness.run)
                if self.checkpointer is not None:
                    nursery.start_soon(self.checkpointer.run)
                nursery.start_soon(watch_claim, self.check, self.watch_seconds, self._may_rest)
                task_status.started()
