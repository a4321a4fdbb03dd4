"""A broker that is being stopped has others lead what it leads, before it stops: clients go on with them at once.

    its record says that it leaves    nobody gives it partitions any more
    a pause                           for others that are being stopped at the same time to say so, too
    a target for each partition       those who serve and do not leave; the leader hands over as for any move. So it is
                                      for what comes later, and where who was named dies, or is being stopped, too
    nothing is led here any more      or the time is up: what is left waits for this broker, as if it had been killed

Where nobody is left to lead, as when a whole cluster is stopped, nothing moves. With its next start the record of a
broker is written anew, and partitions come back to it by balance.
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
LOOK_SECONDS = 1.0  # for what was on its way here, and for heirs that have gone

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Departure:
    """The last that an incarnation of broker `broker_id` does as one of several. `refresh` looks what others do.

    `silent` tells of which brokers nothing was heard lately: those may be dead, and are given nothing. `loads` tells
    what the partitions have to do, as far as that is known, so that no heir gets all that are busy.
    """

    broker_id: int
    incarnation: int
    state: ClusterState
    writer: PlacementWriter
    refresh: Callable[[], Awaitable[None]]
    silent: Callable[[], Collection[int]]
    loads: Callable[[], Loads]

    async def run(self) -> None:
        """Return when nothing is led here any more, or when nobody else can lead it, or the store fails.

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
        return [each for each, record in live if each != self.broker_id and record.may_lead and each not in silent]

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
        """Name one for all that is led here and for which nobody is named who stays."""
        others = self._others()
        led = self.state.led_by(self.broker_id)
        lacking = {(topic_id, index) for topic_id, index, each in led if each.target not in others}
        if not lacking:
            return
        placements = dict(self.state.placements)
        for topic_id in {topic_id for topic_id, _ in lacking}:
            placements[topic_id] = [
                attrs.evolve(each, target=None) if (topic_id, index) in lacking else each
                for index, each in enumerate(placements[topic_id])
            ]
        moves = moves_for_balance(placements, others, [self.broker_id], len(lacking), loads=self.loads())
        if moves:
            logger.info("others are to lead %d partitions", len(moves))
            await self.writer.name_targets(moves)
