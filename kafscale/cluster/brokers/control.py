"""What one of the brokers does for all: checkpoints of the metadata, balance, and the end of streams nobody needs.

Any broker can: it becomes the controller by a commit that finds no other one which serves. It is controller for a term,
whose number is in the keys of its checkpoints. One that is suspended and goes on as if nothing had happened does no
harm: what it decides are commits that fail as it has not seen the latest, and its checkpoints are older than those of
the later term.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Set

import attrs
import trio

from kafscale.cluster.brokers.placements import PlacementWriter
from kafscale.cluster.brokers.placing import Move, moves_for_balance
from kafscale.cluster.brokers.records import (
    CONTROLLER_KEY,
    NEXT_NUMBER_KEY,
    ControllerRecord,
    Placement,
    record_key,
)
from kafscale.cluster.brokers.state import ClusterState
from kafscale.cluster.metadata.base import PlannedFrom, Transaction
from kafscale.cluster.metadata.checkpoint import INTERVAL_SECONDS, Checkpointer
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.errors import KafkaError, StoreError
from kafscale.formats.wal_objects import WalPosition
from kafscale.log.wal.streams import delete_unneeded
from kafscale.store.base import ObjectStore
from kafscale.store.version_writer import VersionWriter
from kafscale.store.versions import list_versions

LOOK_SECONDS = 1.0
BALANCE_SECONDS = 5.0  # between two looks; while a broker is drained, there is one every LOOK_SECONDS
MOVES_AT_ONCE_COUNT = 50  # partitions that are on their way for the sake of balance
HEAD_TARGET_BYTES = 128 << 10  # a checkpoint is written as soon as the head is larger; each commit writes it

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True, repr=False)
class Controller:
    """The part of broker `broker_id`, whose incarnation is given, in what one does for all; `run` it beside.

    `store` is the background view.
    """

    broker_id: int
    incarnation: int
    metadata: SharedMetadataStore
    state: ClusterState
    writer: PlacementWriter
    store: ObjectStore
    namespace: str
    _checkpointer: Checkpointer | None = attrs.field(default=None, init=False)
    _kept_until: int = attrs.field(default=0, init=False)
    _balance_at: float = attrs.field(default=0.0, init=False)
    _needed: Set[int] | None = attrs.field(default=None, init=False)  # the streams that were when it looked last

    def __attrs_post_init__(self) -> None:
        self.metadata.kept_until = lambda: self._kept_until if self.is_mine else 0

    @property
    def is_mine(self) -> bool:
        """Tell whether this broker is the controller, as far as it knows."""
        controller = self.state.controller
        return controller is not None and self._is_self(controller)

    def _is_self(self, controller: ControllerRecord) -> bool:
        return (controller.broker_id, controller.incarnation) == (self.broker_id, self.incarnation)

    async def run(self) -> None:
        """Do it, while it is this broker's to do, until cancelled. Raises Fenced, StorageFailed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._every, LOOK_SECONDS, self._claim_if_vacant)
            nursery.start_soon(self._every, LOOK_SECONDS, self._keep_short)
            nursery.start_soon(self._every, INTERVAL_SECONDS, self.write_checkpoint)
            nursery.start_soon(self._every, LOOK_SECONDS, self._balance)
            nursery.start_soon(self._every, BALANCE_SECONDS, self._delete_streams)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except (StoreError, KafkaError) as exc:
                logger.warning("the controller tries again later: %s", exc)
            await trio.sleep(seconds)

    # ---- who it is -------------------------------------------------------------------------------------------------

    async def _claim_if_vacant(self) -> None:
        if not self._is_vacant():
            return

        async def plan(revision: int) -> Transaction | None:
            if not self._is_vacant():
                return None
            term = self.state.next_number
            record = ControllerRecord(broker_id=self.broker_id, incarnation=self.incarnation, term=term)
            puts = {CONTROLLER_KEY: encode(record), NEXT_NUMBER_KEY: encode(term + 1)}
            keys = [*puts, *map(record_key, self.state.brokers)]
            return Transaction(puts=puts, planned_from=PlannedFrom(revision=revision, keys=keys), essential=True)

        await self.state.follower.commit_planned(plan)
        if self.is_mine:
            logger.info("this broker is the controller")

    def _is_vacant(self) -> bool:
        controller = self.state.controller
        if controller is None:
            return True
        record = self.state.live().get(controller.broker_id)
        return record is None or record.incarnation != controller.incarnation

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    async def _keep_short(self) -> None:
        if self.is_mine and self.metadata.head_bytes > HEAD_TARGET_BYTES:
            await self.write_checkpoint()

    async def write_checkpoint(self) -> None:
        """Write one if this broker is the controller and something has changed. Raises StoreError, Fenced."""
        if not self.is_mine:
            self._checkpointer = None
            return
        if self._checkpointer is None:
            self._checkpointer = await self._begin_checkpoints()
        await self._checkpointer.write_if_changed()

    async def _begin_checkpoints(self) -> Checkpointer:
        controller = self.state.controller
        assert controller is not None
        writer = VersionWriter(store=self.store, namespace=self.namespace, kind="checkpoint", epoch=controller.term)
        writer.inherit(await list_versions(self.store, self.namespace, "checkpoint"))

        def keep(position: WalPosition) -> None:
            self._kept_until = position.number

        self._kept_until = 0
        return Checkpointer(
            versions=writer, local=self.metadata.local, position=lambda: self.metadata.applied, on_kept=keep
        )

    # ---- streams ---------------------------------------------------------------------------------------------------

    async def _delete_streams(self) -> None:
        """Delete those that nobody needs any more; looks at the bucket only when another set of them is needed."""
        if not self.is_mine:
            self._needed = None
            return
        needed, before = self.state.needed_streams(), self.state.next_number
        if needed != self._needed:
            alone_until = self.metadata.applied.epoch
            await delete_unneeded(self.store, self.namespace, needed, before=before, alone_until=alone_until)
            self._needed = needed

    # ---- balance ---------------------------------------------------------------------------------------------------

    async def _balance(self) -> None:
        if not self.is_mine:
            return
        live = self.state.live()
        if all(record.may_lead for record in live.values()) and trio.current_time() < self._balance_at:
            return
        self._balance_at = trio.current_time() + BALANCE_SECONDS
        eligible = [broker_id for broker_id, record in live.items() if record.may_lead]
        moving = sum(each.target is not None for row in self.state.placements.values() for each in row)
        moves = moves_for_balance(self.state.placements, eligible, live, max(0, MOVES_AT_ONCE_COUNT - moving))
        async with trio.open_nursery() as nursery:
            for move in moves:
                nursery.start_soon(self._name_target, move)

    async def _name_target(self, move: Move) -> None:
        def with_target(current: Placement, _number: int) -> Placement:
            return attrs.evolve(current, target=move.target)

        await self.writer.change(move.topic_id, move.index, move.epoch, with_target)
