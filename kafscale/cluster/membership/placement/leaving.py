"""Moves the partitions of a broker to others: of one that is being stopped, and of one whose disk is full.

A stopping broker (`Departure`) says so in its record, pauses for others that stop at the same time, and names a target
for each partition until it leads nothing or the time is up: the rest waits for it, as if it had been killed. Without
another broker nothing moves.

A full disk (`DiskRoom`): a broker with a log of its own acknowledges nothing then. Without room for FULL_SECONDS its
partitions move as those of a drained broker, until it has had room for ROOM_SECONDS. This does not happen while the
bucket is away; nor if it would leave less than half of the brokers, or only those of the same machine: if they share
one disk, the last of them would have to lead everything.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Set

import attrs
import trio

from kafscale.cluster.membership.placement.choice import BalancePlanner, moves_for_balance
from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, record_key
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.concurrency.clocks import elapsed
from kafscale.errors import KafkaError, StorageFull, StoreError
from kafscale.log.log import Log

PAUSE_SECONDS = 0.5
LOOK_SECONDS = 1.0  # for partitions that were on their way here, and targets that are gone

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Departure:
    """The last work of this incarnation. `refresh` applies the commits of others.

    Brokers that were not heard of lately get nothing, and no target gets all busy partitions.
    """

    state: ClusterState
    writer: PlacementWriter
    refresh: Callable[[], Awaitable[None]]
    balance: BalancePlanner

    async def run(self) -> None:
        """Return when nothing is led here, no other can lead it, or the store fails; if cancelled, the rest stays."""
        try:
            if not self._others():
                return
            await self._change_record(lambda record: attrs.evolve(record, is_leaving=True))
            await trio.sleep(PAUSE_SECONDS)
            await self.refresh()
            while not self._has_left():
                await self._name_targets()
                with trio.move_on_after(LOOK_SECONDS):
                    await self.state.wait_until(self._has_left)
        except (StoreError, KafkaError) as exc:
            logger.warning("not everything is led by others at this shutdown: %s", exc)

    def _others(self) -> Collection[int]:
        live, silent = self.state.live().items(), self.balance.liveness.silent()
        return [
            broker_id
            for broker_id, record in live
            if broker_id != self.state.broker_id and record.may_lead and broker_id not in silent
        ]

    def _has_left(self) -> bool:
        return not (self._others() and any(True for _ in self.state.led_by(self.state.broker_id)))

    async def tell_stopped(self, *, has_flushed: bool) -> None:
        """Record the stop, and whether all records are in segments. Raises StoreError, KafkaError."""

        def stopped(record: BrokerRecord) -> BrokerRecord:
            return attrs.evolve(record, state=BrokerState.STOPPED, is_leaving=False, has_flushed=has_flushed)

        await self._change_record(stopped)

    async def _change_record(self, change: Callable[[BrokerRecord], BrokerRecord]) -> None:

        def plan() -> Transaction | None:
            if (record := self.state.own) is None:
                return None
            return Transaction(puts={record_key(self.state.broker_id): encode(change(record))})

        await self.state.commit(plan)

    async def _name_targets(self) -> None:
        others = self._others()
        led = self.state.led_by(self.state.broker_id)
        lacking = {(topic_id, index) for topic_id, index, placement in led if placement.target not in others}
        if not lacking:
            return
        placements = dict(self.state.placements)
        for topic_id in {topic_id for topic_id, _ in lacking}:
            placements[topic_id] = [
                attrs.evolve(current, target=None) if (topic_id, index) in lacking else current
                for index, current in enumerate(placements[topic_id])
            ]
        moves = moves_for_balance(
            placements, others, [self.state.broker_id], len(lacking), loads=self.balance.loads_of_own()
        )
        if moves:
            logger.info("others are to lead %d partitions", len(moves))
            await self.writer.name_targets(moves)


FULL_SECONDS = 10.0  # half of the time that a producer waits
ROOM_SECONDS = 60.0
DISK_LOOK_SECONDS = 1.0
AWAY_SECONDS = 10.0  # since the last look at the bucket: it is away then


@attrs.define(eq=False, kw_only=True, repr=False)
class DiskRoom:
    """Watches the disk of this broker; `run` it.

    There is no room while metadata that can wait is refused, or appends to the log wait for room. `looked_at` returns
    the time of the last look at the bucket.
    """

    state: ClusterState
    log: Log
    looked_at: Callable[[], float]
    _has_room: bool = attrs.field(default=True, init=False)
    _since: float = attrs.field(default=-math.inf, init=False)

    async def run(self) -> None:
        while True:
            await trio.sleep(DISK_LOOK_SECONDS)
            try:
                await self._look()
            except (StoreError, KafkaError) as exc:
                logger.warning("the others can't be told now whether the disk has room: %s", exc)

    async def _look(self) -> None:
        has_room, now = await self._find_room(), trio.current_time()
        if has_room != self._has_room or elapsed() - self.looked_at() > AWAY_SECONDS:
            self._has_room, self._since = has_room, now
        if now - self._since >= (ROOM_SECONDS if has_room else FULL_SECONDS) and self._untold() is not None:
            await self.state.commit(self._plan, lambda: map(record_key, self.state.brokers))

    def _plan(self) -> Transaction | None:
        record = self._untold()
        if record is None:
            return None
        if self._has_room:
            logger.info("the disk has room: this broker may lead partitions again")
        elif self._has_targets(record):
            logger.error("the disk is full, or a quota: others are to lead what this broker leads until there is room")
        else:
            return None
        changed = attrs.evolve(record, has_no_room=not self._has_room)
        return Transaction(puts={record_key(self.state.broker_id): encode(changed)})

    def _untold(self) -> BrokerRecord | None:
        """Return this broker's record if it is outdated."""
        record = self.state.own
        return None if record is None or record.has_no_room is not self._has_room else record

    async def _find_room(self) -> bool:
        try:
            await self.state.store.check_room()
        except StorageFull:
            return False
        return not self.log.journal.lacks_room

    def _has_targets(self, own: BrokerRecord) -> bool:
        live, own_id = self.state.live(), self.state.broker_id
        targets = [record for broker_id, record in live.items() if broker_id != own_id and record.may_lead]
        return 2 * len(targets) >= len(live) and any(not _hosts(own) & _hosts(record) for record in targets)


def _hosts(record: BrokerRecord) -> Set[str]:
    return {endpoint.host for endpoint in record.endpoints.values() if endpoint is not None}
