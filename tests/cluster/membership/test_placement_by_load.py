"""What moves where it is known how much is written to partitions and read from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.cluster.membership.peers.loads import Loads
from kafscale.cluster.membership.placement.choice import BEGIN, Move, Weights, leaders_of_new, moves_for_balance
from kafscale.cluster.membership.records import Placement

MIB = 1 << 20
TOPIC, OTHER = b"t" * 16, b"u" * 16
NOISE = 0.05
LOOKS_COUNT = 60
MOST_MOVES_OF_ONE = 4  # in all these looks; mostly none moves

Found = dict[bytes, list[Placement]]


@attrs.frozen(kw_only=True)
class Scene:
    """Who leads what, and the load of each partition."""

    brokers: Sequence[int]
    found: Found
    bytes_per_second: Mapping[tuple[bytes, int], float]

    def loads(self, noise: Random | None = None) -> Loads:
        by_topic: dict[bytes, dict[int, float]] = {}
        for (topic_id, index), each in self.bytes_per_second.items():
            factor = 1.0 if noise is None else noise.uniform(1 - NOISE, 1 + NOISE)
            by_topic.setdefault(topic_id, {})[index] = each * factor
        return Loads(by_topic, {})

    def moves(self, loads: Loads | None = None, max_count: int = 10_000) -> Sequence[Move]:
        return moves_for_balance(self.found, self.brokers, self.brokers, max_count, loads=loads or self.loads())

    def done(self, moves: Sequence[Move]) -> Scene:
        after = {topic_id: list(row) for topic_id, row in self.found.items()}
        for move in moves:
            after[move.topic_id][move.index] = attrs.evolve(after[move.topic_id][move.index], leader=move.target)
        return attrs.evolve(self, found=after)

    def underway(self, moves: Sequence[Move]) -> Scene:
        after = {topic_id: list(row) for topic_id, row in self.found.items()}
        for move in moves:
            after[move.topic_id][move.index] = attrs.evolve(after[move.topic_id][move.index], target=move.target)
        return attrs.evolve(self, found=after)

    def weights(self) -> list[float]:
        found = Weights.of(self.found, self.brokers, self.loads()).of_brokers(self.found)
        return [found.get(each, 0) for each in self.brokers]

    def led(self) -> list[int]:
        counts = Counter(each.leader for row in self.found.values() for each in row)
        return [counts[each] for each in self.brokers]

    def of_brokers(self) -> list[float]:
        found = dict.fromkeys(self.brokers, 0.0)
        for (topic_id, index), each in self.bytes_per_second.items():
            found[self.found[topic_id][index].leader] += each
        return list(found.values())


LOADS = st.just(0.0) | st.sampled_from([1e3, 1e6, 5e6, 2e7, 1e8]) | st.floats(1e3, 1e8)


@st.composite
def scenes(draw: st.DrawFn, loads: st.SearchStrategy[float] = LOADS) -> Scene:
    brokers = range(1, draw(st.integers(2, 6)) + 1)
    leaders = st.sampled_from(brokers)
    rows = draw(st.lists(st.lists(st.tuples(leaders, loads), min_size=1, max_size=12), min_size=1, max_size=6))
    found = {bytes([topic]) * 16: [Placement(leader, 1, 1, 0) for leader, _ in row] for topic, row in enumerate(rows)}
    told = {(bytes([topic]) * 16, i): load for topic, row in enumerate(rows) for i, (_, load) in enumerate(row)}
    return Scene(brokers=brokers, found=found, bytes_per_second=told)


@given(scenes())
def test_moves_end_and_nothing_moves_twice(scene: Scene) -> None:
    moves = scene.moves()
    assert moves == scene.moves()
    assert len({(move.topic_id, move.index) for move in moves}) == len(moves)
    assert not scene.underway(moves).moves()
    for count in range(len(moves)):
        assert scene.moves(max_count=count) == moves[:count]


@given(scenes())
def test_each_balance_move_is_an_improvement(scene: Scene) -> None:
    began = max(scene.weights())
    for move in scene.moves():
        before = scene
        scene = scene.done([move])
        apart = max(
            abs(a - b) for a, b in [(before.weights()[i], scene.weights()[i]) for i in range(len(before.led()))]
        )
        closer = sum(each**2 for each in scene.weights()) < sum(each**2 for each in before.weights())
        fewer_apart = sum(each**2 for each in scene.led()) < sum(each**2 for each in before.led())
        assert apart > 0
        assert closer or fewer_apart
    average = sum(scene.weights()) / len(scene.brokers)
    assert max(scene.weights()) <= max(began, (1 + BEGIN) * average)


@given(scenes(), st.randoms(use_true_random=False))
def test_a_balanced_cluster_stays_put_under_noise(scene: Scene, noise: Random) -> None:
    for _ in range(6):
        scene = scene.done(scene.moves())
    assert not scene.moves()
    moved: Counter[tuple[bytes, int]] = Counter()
    for _ in range(LOOKS_COUNT):
        moves = scene.moves(scene.loads(noise))
        moved.update((move.topic_id, move.index) for move in moves)
        scene = scene.done(moves)
    assert max(moved.values(), default=0) <= MOST_MOVES_OF_ONE


@given(scenes(st.just(3e6)))
def test_where_all_have_the_same_load_numbers_are_even_and_as_few_move_as_can(scene: Scene) -> None:
    moves = scene.moves()
    unknown = moves_for_balance(scene.found, scene.brokers, scene.brokers, 10_000)
    assert moves == unknown
    led = scene.led()
    after = scene.done(moves).led()
    assert max(after) - min(after) <= 1
    least = sum(sorted(led, reverse=True)[i] - each for i, each in enumerate(sorted(after, reverse=True))
                if sorted(led, reverse=True)[i] > each)  # fmt: skip
    assert len(moves) == least


@given(scenes(st.floats(0, 1e4)))
def test_little_load_leaves_numbers_even(scene: Scene) -> None:
    after = scene.done(scene.moves()).led()
    assert max(after) - min(after) <= 1


def _scene(rows: Mapping[bytes, Sequence[tuple[int, float]]], brokers: Sequence[int] = (1, 2, 3)) -> Scene:
    return Scene(
        brokers=brokers,
        found={topic_id: [Placement(leader, 1, 1, 0) for leader, _ in row] for topic_id, row in rows.items()},
        bytes_per_second={(topic_id, i): load for topic_id, row in rows.items() for i, (_, load) in enumerate(row)},
    )


def test_a_hot_topic_is_spread_and_others_make_room() -> None:
    scene = _scene({TOPIC: [(1, 10.0 * MIB)] * 6, OTHER: [(1, 0.0)] * 4 + [(2, 0.0)] * 10 + [(3, 0.0)] * 10})
    after = scene.done(scene.moves())
    assert after.of_brokers() == [20.0 * MIB] * 3
    assert after.led() == [10] * 3
    assert len(scene.moves()) == 8  # four of the hot topic, and four in exchange


def test_beside_a_partition_that_is_as_much_as_all_others_little_is_led() -> None:
    scene = _scene({TOPIC: [(1, 50.0 * MIB)], OTHER: [(1 + index % 3, 0.25 * MIB) for index in range(200)]})
    after = scene.done(scene.moves())
    assert after.led()[0] < 10
    assert abs(after.led()[1] - after.led()[2]) <= 1


def test_nothing_moves_that_makes_no_difference() -> None:
    scene = _scene({TOPIC: [(1, 50.0 * MIB)], OTHER: [(1 + index % 3, 0.0) for index in range(300)]})
    assert not scene.moves()


def test_a_difference_is_not_turned_round() -> None:
    scene = _scene({TOPIC: [(1, 10.0 * MIB)], OTHER: [(1, 1.0 * MIB)]}, (1, 2))
    scene.found[OTHER][0] = attrs.evolve(scene.found[OTHER][0], replicas=(1,))
    assert not scene.moves()  # the other broker would have as much more as this one has now


def test_a_joining_broker_gets_load_and_partitions() -> None:
    rows = {TOPIC: [(1, 8.0 * MIB)] * 6 + [(2, 8.0 * MIB)] * 6, OTHER: [(1, 0.0)] * 30 + [(2, 0.0)] * 30}
    after = _scene(rows).done(_scene(rows).moves())
    assert after.of_brokers() == [32.0 * MIB] * 3
    assert after.led() == [24] * 3


def test_a_drained_broker_gives_its_busiest_partition_to_the_least_loaded_broker() -> None:
    scene = _scene({TOPIC: [(1, 9.0 * MIB)], OTHER: [(1, 1.0 * MIB), (2, 9.0 * MIB), (3, 0.0)]})
    moves = moves_for_balance(scene.found, [2, 3], [1, 2, 3], 10, loads=scene.loads())
    assert [(move.topic_id, move.target) for move in moves] == [(TOPIC, 3), (OTHER, 3)] or moves[0].target == 3


def test_partitions_are_not_balanced_before_loads_have_arrived() -> None:
    row = [Placement(1, 0, 0, 0)] * 4 + [Placement(4, 0, 0, 0)]
    found = {TOPIC: row}
    assert moves_for_balance(found, [1, 2], [1, 2], 10)
    assert not moves_for_balance(found, [1, 2], [1, 2], 10, evens=False)
    moves = moves_for_balance(found, [1, 2], [1, 2, 4], 10, evens=False)
    assert [(move.index, move.target) for move in moves] == [(4, 2)]


def test_new_leaders_are_chosen_by_weight() -> None:
    assert leaders_of_new(3, [1, 2], {1: 10.0, 2: 7.5}, {}) == [2, 1, 2]
    assert leaders_of_new(1, [1, 2], {1: 3.0, 2: 7.5}, {1: 1}) == [2]  # those of a topic are spread first


def test_the_surplus_counts_only_partitions_with_load() -> None:
    found = {TOPIC: [Placement(1, 0, 0, 0), Placement(1, 0, 0, 0)], OTHER: [Placement(2, 0, 0, 0)] * 30}
    loads = Loads({TOPIC: {0: 20.0 * MIB}}, {2: 1.0 * MIB})
    weights = Weights.of(found, (1, 2, 3), loads)
    unit = weights.unit_bytes_per_second
    assert unit is not None
    assert weights.surplus(found, (1, 2, 3)) == pytest.approx({1: 20 * MIB / unit, 2: 30 * MIB / unit, 3: 0})
    assert Weights.of(found, (1, 2, 3)).surplus(found, (1, 2, 3)) == {}
