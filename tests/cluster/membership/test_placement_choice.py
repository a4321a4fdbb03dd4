from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs
from hypothesis import given
from hypothesis import strategies as st

from kafscale.cluster.membership.placement.choice import Move, leaders_of_new, moves_for_balance
from kafscale.cluster.membership.records import Placement, decode_row, encode_row

ROUNDS_MAX_COUNT = 4
BROKERS = st.sets(st.integers(0, 6), min_size=1)
placements = st.builds(
    Placement,
    st.integers(0, 6),
    st.integers(0, 9),
    st.integers(-1, 9),
    st.integers(0, 99),
    st.none() | st.integers(0, 6),
    replicas=st.just(()) | st.tuples(st.integers(0, 6)) | st.tuples(st.integers(0, 6), st.integers(0, 6)),
    recover=st.lists(st.integers(0, 9), max_size=3).map(tuple),
)
topics = st.dictionaries(st.binary(min_size=16, max_size=16), st.lists(placements, min_size=1, max_size=12), max_size=5)


@given(st.lists(placements, max_size=100))
def test_a_placement_row_round_trips(row: list[Placement]) -> None:
    assert decode_row(encode_row(row)) == row


@given(st.integers(0, 50), BROKERS, st.dictionaries(st.integers(0, 6), st.integers(0, 9)))
def test_a_new_topic_is_spread_evenly(count: int, brokers: set[int], led: dict[int, int]) -> None:
    leaders = leaders_of_new(count, brokers, led, {})
    counts = Counter(dict.fromkeys(brokers, 0)) + Counter(leaders)
    assert len(leaders) == count
    assert set(leaders) <= brokers
    of_each = [counts[each] for each in brokers]
    assert max(of_each) - min(of_each) <= 1


@given(topics, BROKERS, st.sets(st.integers(0, 6)), st.integers(0, 100))
def test_moves_end_and_leave_nothing_to_do(
    found: dict[bytes, list[Placement]], brokers: set[int], movable: set[int], max_count: int
) -> None:
    moves = moves_for_balance(found, brokers, movable, max_count)
    assert len(moves) <= max_count
    for move in moves:
        placement = found[move.topic_id][move.index]
        assert placement.target is None
        assert placement.leader in movable
        assert move.target in brokers
        assert move.target != placement.leader
        assert move.epoch == placement.epoch
    after = _with_moves(found, moves_for_balance(found, brokers, movable, 1000))
    assert not moves_for_balance(after, brokers, movable, 1000)
    if movable >= set(range(7)):
        for _ in range(ROUNDS_MAX_COUNT):  # what had to leave a broker can move once more
            done = {topic_id: [_moved(each) for each in row] for topic_id, row in after.items()}
            after = _with_moves(done, moves_for_balance(done, brokers, movable, 1000))
        assert after == done


def _with_moves(found: dict[bytes, list[Placement]], moves: Sequence[Move]) -> dict[bytes, list[Placement]]:
    after = {topic_id: list(row) for topic_id, row in found.items()}
    for move in moves:
        after[move.topic_id][move.index] = attrs.evolve(after[move.topic_id][move.index], target=move.target)
    return after


def _moved(placement: Placement) -> Placement:
    return placement if placement.target is None else attrs.evolve(placement, leader=placement.target, target=None)


def test_a_broker_that_is_drained_gives_everything_away() -> None:
    row = [Placement(1, 0, 0, 0)] * 4
    moves = moves_for_balance({bytes(16): row}, [2, 3], [1, 2, 3], 100)
    assert Counter(move.target for move in moves) == {2: 2, 3: 2}


def test_partitions_of_a_dead_broker_are_not_balanced() -> None:
    row = [Placement(1, 0, 0, 0)] * 4
    assert not moves_for_balance({bytes(16): row}, [2, 3], [2, 3], 100)


def test_a_partition_assigned_to_a_broker_moves_there_and_stays() -> None:
    free, here, there = (
        Placement(1, 0, 0, 0),
        Placement(1, 0, 0, 0, replicas=(1,)),
        Placement(1, 0, 0, 0, replicas=(2,)),
    )
    row = [here, here, here, free, there]
    moves = moves_for_balance({bytes(16): row}, [1, 2, 3], [1, 2, 3], 100)
    assert sorted((move.index, move.target) for move in moves) == [(3, 3), (4, 2)]


def test_partitions_assigned_to_an_ineligible_broker_are_balanced() -> None:
    row = [Placement(1, 0, 0, 0, replicas=(2, 1))] * 4
    moves = moves_for_balance({bytes(16): row}, [1, 3], [1, 2, 3], 100)
    assert Counter(move.target for move in moves) == {3: 2}
    assert not moves_for_balance({bytes(16): [Placement(2, 0, 0, 0, replicas=(2, 1))] * 4}, [1, 2, 3], [1, 2, 3], 100)


def test_assigned_partitions_of_a_full_broker_do_not_block_balancing_of_others() -> None:
    row = [Placement(1, 0, 0, 0, replicas=(1,))] * 9 + [Placement(2, 0, 0, 0)] * 4
    moves = moves_for_balance({bytes(16): row}, [1, 2, 3], [1, 2, 3], 100)
    assert Counter(move.target for move in moves) == {3: 2}
