"""A broker that is being stopped has others lead what it leads, before it stops: clients go on with them at once.

    its record says that it leaves    nobody gives it partitions any more
    a pause                           for others that are being stopped at the same time to say so, too
    a target for each partition       those who serve and do not leave; the leader hands over as for any move
    nothing is led here any more      or the time is up: what is left waits for this broker, as if it had been killed

Where nobody is left to lead, as when a whole cluster is stopped, nothing moves. With its next start the record of a
broker is written anew, and partitions come back to it by balance.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

import attrs
import trio

from kafscale.cluster.brokers.placements import PlacementWriter
from kafscale.cluster.brokers.placing import moves_for_balance
from kafscale.cluster.brokers.records import BrokerRecord, BrokerState, record_key
from kafscale.cluster.brokers.state import ClusterState
from kafscale.cluster.metadata.base import PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.errors import KafkaError, StoreError

PAUSE_SECONDS = 0.5

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Leaving:
    """The last that an incarnation of broker `broker_id` does as one of several. `refresh` looks what others do.

    `silent` tells of which brokers nothing was heard lately: those may be dead, and are given nothing.
    """

    broker_id: int
    incarnation: int
    state: ClusterState
    writer: PlacementWriter
    refresh: Callable[[], Awaitable[None]]
    silent: Callable[[], Collection[int]]

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
            await self._name_targets()
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
        key = record_key(self.broker_id)

        async def plan(revision: int) -> Transaction | None:
            record = self.state.brokers.get(self.broker_id)
            if record is None or record.incarnation != self.incarnation:
                return None
            planned_from = PlannedFrom(revision=revision, keys=[key])
            return Transaction(puts={key: encode(change(record))}, planned_from=planned_from, essential=True)

        await self.state.follower.commit_planned(plan)

    async def _name_targets(self) -> None:
        others, placements = self._others(), self.state.placements
        moves = moves_for_balance(placements, others, [self.broker_id], sum(map(len, placements.values())))
        if not moves:
            return
        logger.info("others are to lead %d partitions", len(moves))
        await self.writer.name_targets(moves)
