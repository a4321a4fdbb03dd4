from __future__ import annotations

from collections import Counter

import attrs
from hypothesis import given
from hypothesis import strategies as st

from kafscale.cluster.brokers.placing import leaders_of_new, moves_for_balance
from kafscale.cluster.brokers.records import Placement, decode_row, encode_row

BROKERS = st.sets(st.integers(0, 6), min_size=1)
placements = st.builds(
    Placement,
    st.integers(0, 6),
    st.integers(0, 9),
    st.integers(-1, 9),
    st.integers(0, 99),
    st.none() | st.integers(0, 6),
)
topics = st.dictionaries(st.binary(min_size=16, max_size=16), st.lists(placements, min_size=1, max_size=12), max_size=5)


@given(st.lists(placements, max_size=100))
def test_a_row_is_read_as_it_was_written(row: list[Placement]) -> None:
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
    after = {topic_id: list(row) for topic_id, row in found.items()}
    for move in moves_for_balance(found, brokers, movable, 1000):
        after[move.topic_id][move.index] = attrs.evolve(after[move.topic_id][move.index], target=move.target)
    assert not moves_for_balance(after, brokers, movable, 1000)
    done = {topic_id: [_moved(each) for each in row] for topic_id, row in after.items()}
    if movable >= set(range(7)):
        assert not moves_for_balance(done, brokers, movable, 1000) or any(
            each.leader not in brokers for row in done.values() for each in row
        )


def _moved(placement: Placement) -> Placement:
    return placement if placement.target is None else attrs.evolve(placement, leader=placement.target, target=None)


def test_a_broker_that_is_drained_gives_everything_away() -> None:
    row = [Placement(1, 0, 0, 0)] * 4
    moves = moves_for_balance({bytes(16): row}, [2, 3], [1, 2, 3], 100)
    assert Counter(move.target for move in moves) == {2: 2, 3: 2}


def test_what_a_dead_broker_leads_stays() -> None:
    row = [Placement(1, 0, 0, 0)] * 4
    assert not moves_for_balance({bytes(16): row}, [2, 3], [2, 3], 100)
