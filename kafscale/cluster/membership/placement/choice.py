"""Chooses leaders of new partitions, and moves that give all brokers the same load (decision 0048).

The choice is deterministic; `BalancePlanner` makes it from the loads that brokers report.

Brokers get the same load if there is any; if loads are alike, small or unknown they get the same number of partitions,
those of each topic spread first. A partition that an operator has assigned to a broker does not move for balance.

Nothing moves for load before a broker has BEGIN more or less than the average; then partitions move until that broker
is within END of it. Balance by number stays within END as well. A partition does not move if that would leave two
brokers as far apart as before, nor if it makes no difference beside a partition that is too busy for any broker.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice

import attrs
import trio

from kafscale.cluster.membership.peers.liveness import Liveness
from kafscale.cluster.membership.peers.loads import FRESH_SECONDS, UNKNOWN, HeardLoads, Loads, by_topic
from kafscale.cluster.membership.records import BrokerRecord, Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.formats.manifest import PartitionId
from kafscale.log.load import SAMPLE_SECONDS, BrokerLoad, LoadMeter

BEGIN, END = 0.15, 0.05  # of the average weight
TURN_MOST = 0.75  # of the distance between two brokers: a heavier partition would turn it round
CLASSES = 8  # moves that close as many eighths of the distance are as good
LEAST = 0.05  # of the distance: the least sum of the weights that could move
PARTITION_BYTES_PER_SECOND = 16 << 10  # an upload of a few KiB every few seconds takes about as much CPU
IDLE_BYTES_PER_SECOND = 1 << 20  # of a broker: with less load on average, numbers count more than load


@attrs.frozen
class Move:
    """A partition that is to be led by another broker; `epoch` is that of its placement when this was decided."""

    topic_id: bytes
    index: int
    epoch: int
    target: int


def leaders_count(placements: Mapping[bytes, Sequence[Placement]]) -> dict[int, int]:
    """Count the partitions that each broker leads; a moving one counts for its target."""
    counts: dict[int, int] = {}
    for row in placements.values():
        for placement in row:
            broker_id = placement.leader if placement.target is None else placement.target
            counts[broker_id] = counts.get(broker_id, 0) + 1
    return counts


def leaders_of_new(
    count: int, brokers: Collection[int], led: Mapping[int, float], of_topic: Mapping[int, int]
) -> list[int]:
    """Choose a leader for each of `count` new partitions of a topic, which weigh 1 each.

    `led` is the number or weight of the partitions of each broker, `of_topic` the number of those of this topic.
    """
    total, own = {broker: led.get(broker, 0) for broker in brokers}, Counter(of_topic)
    chosen: list[int] = []
    for _ in range(count):
        broker_id = min(brokers, key=lambda broker: (own[broker], total[broker], broker))
        chosen.append(broker_id)
        own[broker_id] += 1
        total[broker_id] += 1
    return chosen


def moves_for_balance(
    placements: Mapping[bytes, Sequence[Placement]],
    brokers: Collection[int],
    movable: Collection[int],
    max_count: int,
    *,
    loads: Loads = UNKNOWN,
    evens: bool = True,
) -> Sequence[Move]:
    """Choose partitions to move, `max_count` at most.

    `brokers` may lead; only partitions of the `movable` brokers, which serve, can move. A movable broker that may not
    lead gives everything away. Assigned partitions go back to their broker. Moving ones count for their target. Without
    `evens` nothing else moves.
    """
    if not brokers:
        return ()
    plan = _MovePlan(placements, sorted(brokers), movable, Weights.of(placements, brokers, loads))
    return list(islice(chain(plan.returns(), plan.evictions(), plan.evening() if evens else ()), max_count))


@attrs.frozen
class Weights:
    """Weights of partitions: 1, and 1 for each `unit_bytes_per_second`; None without known loads."""

    loads: Loads
    unit_bytes_per_second: float | None

    @classmethod
    def of(
        cls, placements: Mapping[bytes, Sequence[Placement]], brokers: Collection[int], loads: Loads = UNKNOWN
    ) -> Weights:
        if not loads.is_known:
            return cls(loads, None)
        idle = IDLE_BYTES_PER_SECOND * len(brokers) / max(1, sum(map(len, placements.values())))
        return cls(loads, max(PARTITION_BYTES_PER_SECOND, idle))

    def busiest(self, topic_id: bytes) -> Mapping[int, float]:
        return {index: self._of(load) for index, load in self.loads.busiest.get(topic_id, {}).items()}

    def other(self, leader: int) -> float:
        return self._of(self.loads.others.get(leader, 0.0))

    def of_one(self, placements: Mapping[bytes, Sequence[Placement]], partition_id: PartitionId) -> float:
        topic_id, index = partition_id
        load = self.loads.busiest.get(topic_id, {}).get(index)
        return self.other(placements[topic_id][index].leader) if load is None else self._of(load)

    def surplus(self, placements: Mapping[bytes, Sequence[Placement]], brokers: Collection[int]) -> dict[int, float]:
        """Return the weight of each broker's partitions beyond their number; empty without loads."""
        if self.unit_bytes_per_second is None:
            return {}
        weights, counts = self.of_brokers(placements), leaders_count(placements)
        return {broker_id: weights.get(broker_id, 0) - counts.get(broker_id, 0) for broker_id in brokers}

    def _of(self, bytes_per_second: float) -> float:
        unit = self.unit_bytes_per_second
        return 1 if unit is None else 1 + bytes_per_second / unit

    def of_brokers(self, placements: Mapping[bytes, Sequence[Placement]]) -> dict[int, float]:
        """Return the weight of each broker's partitions; a moving one counts for its target."""
        weights: dict[int, float] = {}
        for topic_id, row in placements.items():
            busiest = self.busiest(topic_id)
            for index, placement in enumerate(row):
                broker_id = placement.leader if placement.target is None else placement.target
                weight = busiest.get(index) or self.other(placement.leader)
                weights[broker_id] = weights.get(broker_id, 0) + weight
        return weights


@attrs.frozen
class _LeaderCandidate:
    """A partition that may move; its leader has `surplus` more of its topic than the other broker."""

    weight: float
    surplus: int
    partition_id: PartitionId


class _MovePlan:
    """Numbers and weights as they will be when all moves so far are done."""

    def __init__(
        self,
        placements: Mapping[bytes, Sequence[Placement]],
        brokers: Sequence[int],
        movable: Collection[int],
        weights: Weights,
    ) -> None:
        self.placements = placements
        self.brokers, self.able = brokers, frozenset(brokers)
        self.movable = movable
        self.weights = weights
        self.number: Counter[int] = Counter()
        self.weight: dict[int, float] = dict.fromkeys(brokers, 0)
        self.of_topic: dict[bytes, Counter[int]] = {}
        self.busy: dict[int, dict[PartitionId, float]] = {}  # by leader: movable, with a weight of its own
        self.free: dict[int, dict[bytes, list[int]]] = {}  # by leader and topic, last first: other movable ones
        self.away: list[PartitionId] = []  # not led by the broker that they are assigned to
        for topic_id, row in placements.items():
            self._count_topic(topic_id, row)

    def _count_topic(self, topic_id: bytes, row: Sequence[Placement]) -> None:
        busiest = self.weights.busiest(topic_id)
        free: dict[int, list[int]] = {}
        counts = self.of_topic[topic_id] = Counter()
        for index, placement in enumerate(row):
            leader, target = placement.leader, placement.target
            if target is not None:
                counts[target] += 1
                self._add_weight(target, busiest.get(index) or self.weights.other(leader))
            elif placement.replicas and placement.replicas[0] in self.able:
                if leader != placement.replicas[0]:
                    self.away.append((topic_id, index))
                counts[leader] += 1
                self._add_weight(leader, busiest.get(index) or self.weights.other(leader))
            elif index in busiest:
                counts[leader] += 1
                self._add_weight(leader, busiest[index])
                self.busy.setdefault(leader, {})[topic_id, index] = busiest[index]
            elif leader in free:
                free[leader].append(index)
            else:
                free[leader] = [index]
        for leader, indexes in free.items():
            counts[leader] += len(indexes)
            self._add_weight(leader, len(indexes) * self.weights.other(leader))
            self.free.setdefault(leader, {})[topic_id] = indexes
        self.number.update(counts)

    def _add_weight(self, broker_id: int, weight: float) -> None:
        self.weight[broker_id] = self.weight.get(broker_id, 0) + weight

    # ---- necessary moves -------------------------------------------------------------------------------------------

    def returns(self) -> Iterator[Move]:
        """Yield moves of partitions back to the broker that they are assigned to."""
        for topic_id, index in self.away:
            placement = self.placements[topic_id][index]
            if placement.leader in self.movable:
                weight = self.weights.of_one(self.placements, (topic_id, index))
                yield self._move((topic_id, index), weight, placement.replicas[0])

    def evictions(self) -> Iterator[Move]:
        """Yield moves away from brokers that may not lead, heaviest first."""
        for leader in sorted(set(self.movable) - set(self.brokers)):
            busy = self.busy.get(leader, {})
            for partition_id in sorted(busy, key=lambda busy_id: (-busy[busy_id], busy_id)):
                yield self._move(partition_id, busy.pop(partition_id), self._new_leader(partition_id[0]))
            for topic_id, free in self.free.get(leader, {}).items():
                while free:
                    yield self._move((topic_id, free.pop()), self.weights.other(leader), self._new_leader(topic_id))

    def _new_leader(self, topic_id: bytes) -> int:
        own = self.of_topic[topic_id]
        return min(self.brokers, key=lambda broker: (own[broker], self.weight[broker], broker))

    # ---- balance ---------------------------------------------------------------------------------------------------

    def evening(self) -> Iterator[Move]:
        """Yield moves until none is worth it: first by weight, if that is far from even, and then by number."""
        far: set[int] = set()
        while True:
            far |= self._far()
            move = (self._next_by_weight(far) if far else None) or self._next_by_number()
            if move is None:
                return
            yield move

    @property
    def _average(self) -> float:
        return sum(self.weight[broker_id] for broker_id in self.brokers) / len(self.brokers)

    def _far(self) -> set[int]:
        average = self._average
        return {broker_id for broker_id in self.brokers if abs(self.weight[broker_id] - average) > BEGIN * average}

    def _sources(self) -> list[int]:
        return [
            broker_id
            for broker_id in self.brokers
            if broker_id in self.movable and (self.busy.get(broker_id) or self.free.get(broker_id))
        ]

    def _next_by_weight(self, far: Collection[int]) -> Move | None:
        """Choose the best move from a heavy broker to the lightest, until the far ones are close to the average."""
        weight, average = self.weight, self._average
        target = min(self.brokers, key=lambda broker: (weight[broker], broker))
        is_light = target in far and weight[target] < (1 - END) * average
        for source in sorted(self._sources(), key=lambda broker: (-weight[broker], broker)):
            if weight[source] <= (1 if is_light else 1 + END) * average:
                return None
            if not is_light and source not in far:
                continue
            distance = weight[source] - weight[target]
            worth = [
                candidate for candidate in self._candidates(source, target) if candidate.weight <= TURN_MOST * distance
            ]
            if worth and self._movable_weight(source, TURN_MOST * distance) >= LEAST * distance:
                return self._take(source, max(worth, key=partial(_worth, distance)), target)
        return None

    def _next_by_number(self) -> Move | None:
        """Choose a partition of a broker that leads more than another, if weights stay as even."""
        number, average, is_uneven = self.number, self._average, bool(self._far())
        targets = sorted(self.brokers, key=lambda broker: (number[broker], self.weight[broker], broker))
        for source in sorted(self._sources(), key=lambda broker: (-number[broker], broker)):
            lightest = self._lightest(source)
            for target in targets:
                if number[source] - number[target] < 2:
                    break
                most = (self.weight[source] - self.weight[target]) / 2
                if not is_uneven:
                    above, below = (1 + END) * average - self.weight[target], self.weight[source] - (1 - END) * average
                    most = max(most, min(above, below))
                if lightest <= most:
                    fitting = [candidate for candidate in self._candidates(source, target) if candidate.weight <= most]
                    best = max(fitting, key=lambda found: (found.surplus, -found.weight, found.partition_id))
                    return self._take(source, best, target)
        return None

    def _movable_weight(self, source: int, most: float) -> float:
        other = self.weights.other(source)
        free_count = sum(map(len, self.free.get(source, {}).values())) if other <= most else 0
        return free_count * other + sum(load for load in self.busy.get(source, {}).values() if load <= most)

    def _lightest(self, source: int) -> float:
        others = [self.weights.other(source)] if self.free.get(source) else []
        return min([*others, *self.busy.get(source, {}).values()])

    def _candidates(self, source: int, target: int) -> list[_LeaderCandidate]:
        """Return the busy partitions, and the best of the others, which all weigh the same."""
        of_topic = self.of_topic

        def surplus(topic_id: bytes) -> int:
            return of_topic[topic_id][source] - of_topic[topic_id][target]

        found = [
            _LeaderCandidate(weight, surplus(partition_id[0]), partition_id)
            for partition_id, weight in self.busy.get(source, {}).items()
        ]
        if free := self.free.get(source):
            topic_id = max(free, key=lambda candidate_id: (surplus(candidate_id), candidate_id))
            found.append(
                _LeaderCandidate(self.weights.other(source), surplus(topic_id), (topic_id, free[topic_id][-1]))
            )
        return found

    def _take(self, source: int, candidate: _LeaderCandidate, target: int) -> Move:
        topic_id, _ = candidate.partition_id
        if self.busy.get(source, {}).pop(candidate.partition_id, None) is None:
            self.free[source][topic_id].pop()
            if not self.free[source][topic_id]:
                del self.free[source][topic_id]
        return self._move(candidate.partition_id, candidate.weight, target)

    def _move(self, partition_id: PartitionId, weight: float, target: int) -> Move:
        topic_id, index = partition_id
        placement = self.placements[topic_id][index]
        for counts in (self.number, self.of_topic[topic_id]):
            counts[placement.leader] -= 1
            counts[target] += 1
        self._add_weight(placement.leader, -weight)
        self._add_weight(target, weight)
        return Move(topic_id, index, placement.epoch, target)


def _worth(distance: float, candidate: _LeaderCandidate) -> tuple[int, int, PartitionId]:
    """Return the sort key of candidates: first by closed eighths of the distance between two brokers."""
    closed = distance - abs(distance - 2 * candidate.weight)
    return int(CLASSES * closed // distance), candidate.surplus, candidate.partition_id


PLANNED_MOST_COUNT = 1000  # moves in the answer to a client


@attrs.define(kw_only=True)
class Led:
    """Partitions and load of a broker; 0 bytes a second if the load is unknown."""

    partition_count: int = 0
    bytes_per_second: float = 0.0


@attrs.frozen(kw_only=True)
class BalancePlan:
    """Partitions of each broker `now`, and `then`, when all `moves` are done.

    `is_waiting`: balance waits until all brokers report their load.
    """

    is_waiting: bool
    loads: Loads
    now: Mapping[int, Led]
    then: Mapping[int, Led]
    moves: Sequence[Move]


@attrs.define(eq=False, kw_only=True, repr=False)
class BalancePlanner:
    """Plans balance; decides if this broker is the controller. `meter` measures this broker's own partitions."""

    state: ClusterState
    liveness: Liveness
    meter: LoadMeter
    _heard: HeardLoads = attrs.field(factory=HeardLoads, init=False)
    _surplus: Mapping[int, float] = attrs.field(factory=dict, init=False)
    _surplus_at: float = attrs.field(default=-math.inf, init=False)

    def take(self, broker_id: int, incarnation: int, load: BrokerLoad) -> None:
        """Note a reported load, if the broker is registered with this incarnation."""
        record = self.state.brokers.get(broker_id)
        if record is not None and record.incarnation == incarnation:
            self._heard.take(broker_id, incarnation, load)

    def loads(self) -> Loads | None:
        """Return the loads of all brokers that are heard of; None while some have not reported yet."""
        if not self.liveness.is_watching:
            return UNKNOWN
        self.take(self.state.broker_id, self.state.incarnation, self.meter.load())
        return self._heard.look({broker_id: record.incarnation for broker_id, record in self._serving().items()})

    def known_loads(self) -> Loads:
        return self.loads() or UNKNOWN

    def loads_of_own(self) -> Loads:
        """Return the known loads; those of this broker's own partitions always are."""
        known = self.loads()
        if known is not None and known.is_known:
            return known
        load = self.meter.load()
        return Loads(by_topic(load.busiest.items()), {self.state.broker_id: load.of_others})

    def surplus(self) -> Mapping[int, float]:
        """Return the weight of each broker's partitions beyond their number; empty if the last report is old."""
        return self._surplus if trio.current_time() - self._surplus_at <= FRESH_SECONDS else {}

    def take_surplus(self, surplus: Mapping[int, float]) -> None:
        self._surplus, self._surplus_at = surplus, trio.current_time()

    def weigh(self) -> Mapping[int, float]:
        """Return the surplus as the controller: computed anew when brokers have measured anew."""
        if trio.current_time() - self._surplus_at >= SAMPLE_SECONDS:
            placements, serving = self.state.placements, self._serving()
            self.take_surplus(Weights.of(placements, serving, self.known_loads()).surplus(placements, serving))
        return self._surplus

    def moves(self, max_count: int) -> Sequence[Move]:
        return self._moves(self.state.placements, max_count, self.loads())

    def plan(self, released: Collection[bytes] | None = ()) -> BalancePlan:
        """Plan moves as if the partitions of these topics, or of all with None, were not assigned."""
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
        """Return the brokers whose partitions may move; a leaving one names targets itself."""
        return {
            broker_id: record
            for broker_id, record in self.state.live().items()
            if record.stays and (broker_id == self.state.broker_id or self.liveness.is_heard(broker_id))
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
