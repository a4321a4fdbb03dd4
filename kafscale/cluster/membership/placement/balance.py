"""Chooses the partitions that should move, by what brokers lead and the loads that they have reported."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import attrs
import trio

from kafscale.cluster.membership.peers.liveness import Liveness
from kafscale.cluster.membership.peers.loads import FRESH_SECONDS, UNKNOWN, HeardLoads, Loads, by_topic
from kafscale.cluster.membership.placement.choice import Move, Weights, moves_for_balance
from kafscale.cluster.membership.records import BrokerRecord, Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.formats.manifest import PartitionId
from kafscale.log.load import SAMPLE_SECONDS, BrokerLoad, LoadMeter

PLANNED_MOST_COUNT = 1000  # moves in an answer to a client that asks what would move


@attrs.define(kw_only=True)
class Led:
    """Partitions and load that a broker leads or is to lead; 0 bytes a second where the load is not known."""

    partition_count: int = 0
    bytes_per_second: float = 0.0


@attrs.frozen(kw_only=True)
class BalancePlan:
    """Partitions that brokers lead `now`, and `then`, when all `moves` are done, by broker id.

    `loads` has the busiest partitions. `is_waiting`: balance waits until all brokers report their load.
    """

    is_waiting: bool
    loads: Loads
    now: Mapping[int, Led]
    then: Mapping[int, Led]
    moves: Sequence[Move]


@attrs.define(eq=False, kw_only=True, repr=False)
class BalancePlanner:
    """The part of an incarnation of broker `broker_id` in it, which decides where that is the controller.

    `meter` measures what it leads itself, `liveness` tells which of the others it hears of.
    """

    broker_id: int
    incarnation: int
    state: ClusterState
    liveness: Liveness
    meter: LoadMeter
    _heard: HeardLoads = attrs.field(factory=HeardLoads, init=False)
    _surplus: Mapping[int, float] = attrs.field(factory=dict, init=False)
    _surplus_at: float = attrs.field(default=-math.inf, init=False)

    def take(self, broker_id: int, incarnation: int, load: BrokerLoad) -> None:
        """Take the load that a broker reports, if it is registered with this incarnation."""
        record = self.state.brokers.get(broker_id)
        if record is not None and record.incarnation == incarnation:
            self._heard.take(broker_id, incarnation, load)

    def loads(self) -> Loads | None:
        """Return the loads of all brokers that are heard of; None while it is not known whether all tell theirs."""
        if not self.liveness.is_watching:
            return UNKNOWN
        self.take(self.broker_id, self.incarnation, self.meter.load())
        return self._heard.look({broker_id: record.incarnation for broker_id, record in self._serving().items()})

    def known_loads(self) -> Loads:
        """Return the loads as far as they are known."""
        return self.loads() or UNKNOWN

    def loads_of_own(self) -> Loads:
        """Return the loads as far as they are known, which those of what this broker leads itself always are."""
        known = self.loads()
        if known is not None and known.is_known:
            return known
        load = self.meter.load()
        return Loads(by_topic(load.busiest.items()), {self.broker_id: load.of_others})

    def surplus(self) -> Mapping[int, float]:
        """Return what the partitions of each broker weigh beyond their number, where that is known lately."""
        return self._surplus if trio.current_time() - self._surplus_at <= FRESH_SECONDS else {}

    def take_surplus(self, surplus: Mapping[int, float]) -> None:
        """The controller tells it."""
        self._surplus, self._surplus_at = surplus, trio.current_time()

    def weigh(self) -> Mapping[int, float]:
        """Find it out, as the controller: anew when brokers have measured anew."""
        if trio.current_time() - self._surplus_at >= SAMPLE_SECONDS:
            placements, serving = self.state.placements, self._serving()
            self.take_surplus(Weights.of(placements, serving, self.known_loads()).surplus(placements, serving))
        return self._surplus

    def moves(self, max_count: int) -> Sequence[Move]:
        """Choose what should move now."""
        return self._moves(self.state.placements, max_count, self.loads())

    def plan(self, released: Collection[bytes] | None = ()) -> BalancePlan:
        """Choose what would move, if nothing of these topics were assigned to a broker; of all topics with None."""
        loads = self.loads()
        placements = {
            topic_id: [attrs.evolve(placement, replicas=()) for placement in row]
            if released is None or topic_id in released
            else row
            for topic_id, row in self.state.placements.items()
        }
        moves = self._moves(placements, PLANNED_MOST_COUNT, loads)
        known = loads or UNKNOWN
        targets = {(move.topic_id, move.index): move.target for move in moves}
        return BalancePlan(
            is_waiting=loads is None,
            loads=known,
            now=self._led(placements, known, {}),
            then=self._led(placements, known, targets),
            moves=moves,
        )

    def _moves(
        self, placements: Mapping[bytes, Sequence[Placement]], max_count: int, loads: Loads | None
    ) -> Sequence[Move]:
        serving = self._serving()
        return moves_for_balance(
            placements,
            [broker_id for broker_id, record in serving.items() if record.may_lead],
            serving,
            max_count,
            loads=loads or UNKNOWN,
            evens=loads is not None,
        )

    def _serving(self) -> Mapping[int, BrokerRecord]:
        """Return whose partitions may move; one that leaves names targets itself, unless others leave, too."""
        return {
            broker_id: record
            for broker_id, record in self.state.live().items()
            if record.stays and (broker_id == self.broker_id or self.liveness.is_heard(broker_id))
        }

    def _led(
        self, placements: Mapping[bytes, Sequence[Placement]], loads: Loads, targets: Mapping[PartitionId, int]
    ) -> Mapping[int, Led]:
        found = {broker_id: Led() for broker_id in self.state.live()}
        for topic_id, row in placements.items():
            busiest = loads.busiest.get(topic_id, {})
            for index, placement in enumerate(row):
                target = targets.get((topic_id, index), placement.target)
                led = found.setdefault(placement.leader if target is None else target, Led())
                led.partition_count += 1
                led.bytes_per_second += busiest.get(index, loads.others.get(placement.leader, 0.0))
        return found
