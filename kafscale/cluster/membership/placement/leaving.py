"""Moves the partitions of a broker that is being stopped to others, so that clients go on with them at once.

    its record says that it leaves    it gets no more partitions
    a pause                           for brokers that are being stopped at the same time to say so, too
    a target for each partition       brokers that serve and do not leave; the leader hands over as for any move, also
                                      for partitions that come later, and again where a target dies or leaves
    nothing is led here any more      or the time is up: the rest waits for this broker, as if it had been killed

Where no other broker is left, as when a whole cluster is stopped, nothing moves. The next start of this broker writes
its record anew, and balance brings partitions back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

import attrs
import trio

from kafscale.cluster.membership.peers.loads import Loads
from kafscale.cluster.membership.placement.choice import moves_for_balance
from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, record_key
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.errors import KafkaError, StoreError

PAUSE_SECONDS = 0.5
LOOK_SECONDS = 1.0  # for partitions that were on their way here, and targets that are gone

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Departure:
    """The last work of an incarnation of broker `broker_id`. `refresh` looks at what others have committed.

    `silent` returns the brokers that were not heard of lately: they may be dead, and get nothing. `loads` returns the
    loads of partitions as far as they are known, so that no target gets all the busy ones.
    """

    broker_id: int
    incarnation: int
    state: ClusterState
    writer: PlacementWriter
    refresh: Callable[[], Awaitable[None]]
    silent: Callable[[], Collection[int]]
    loads: Callable[[], Loads]

    async def run(self) -> None:
        """Return when nothing is led here any more, or no other broker can lead it, or the store fails.

        It takes as long as that takes: cancelled, it leaves partitions here that have not moved yet.
        """
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
        live, silent = self.state.live().items(), self.silent()
        return [
            broker_id
            for broker_id, record in live
            if broker_id != self.broker_id and record.may_lead and broker_id not in silent
        ]

    def _has_left(self) -> bool:
        return not (self._others() and any(True for _ in self.state.led_by(self.broker_id)))

    async def tell_stopped(self, *, has_flushed: bool) -> None:
        """Tell that this broker serves no more, for now, and whether all it has is in segments.

        Raises StoreError, KafkaError.
        """

        def stopped(record: BrokerRecord) -> BrokerRecord:
            return attrs.evolve(record, state=BrokerState.STOPPED, is_leaving=False, has_flushed=has_flushed)

        await self._change_record(stopped)

    async def _change_record(self, change: Callable[[BrokerRecord], BrokerRecord]) -> None:
        """Change this broker's record, unless another incarnation has its own there."""

        def plan() -> Transaction | None:
            record = self.state.brokers.get(self.broker_id)
            if record is None or record.incarnation != self.incarnation:
                return None
            return Transaction(puts={record_key(self.broker_id): encode(change(record))})

        await self.state.commit(plan)

    async def _name_targets(self) -> None:
        """Name a target for each partition that is led here and has no target that stays."""
        others = self._others()
        led = self.state.led_by(self.broker_id)
        lacking = {(topic_id, index) for topic_id, index, placement in led if placement.target not in others}
        if not lacking:
            return
        placements = dict(self.state.placements)
        for topic_id in {topic_id for topic_id, _ in lacking}:
            placements[topic_id] = [
                attrs.evolve(current, target=None) if (topic_id, index) in lacking else current
                for index, current in enumerate(placements[topic_id])
            ]
        moves = moves_for_balance(placements, others, [self.broker_id], len(lacking), loads=self.loads())
        if moves:
            logger.info("others are to lead %d partitions", len(moves))
            await self.writer.name_targets(moves)
