import math

import pytest

from kafscale.store.wrappers.allowance import CUT_FACTOR, Allowance


def refuse(allowance, in_use_count=None):
    """A SlowDown to an operation that has just begun."""
    count = allowance.count if in_use_count is None else in_use_count
    allowance.slowed_down(cuts_before_count=allowance.cuts_count, in_use_count=count)


def test_a_refusal_cuts_and_answers_raise_up_to_the_limit():
    allowance = Allowance(64)
    refuse(allowance)
    assert allowance.count == math.floor(64 * CUT_FACTOR)
    for _ in range(10_000):
        allowance.answered()
        assert allowance.count <= 64
    assert allowance.count == 64


def test_as_many_answers_as_are_allowed_raise_it_by_about_one():
    allowance = Allowance(64)
    refuse(allowance, 30)
    before = allowance.count
    for _ in range(before + 2):
        allowance.answered()
    assert allowance.count == before + 1


def test_all_that_began_before_a_cut_cause_no_other():
    allowance = Allowance(64)
    for _ in range(64):
        allowance.slowed_down(cuts_before_count=0, in_use_count=64)
    assert allowance.cuts_count == 1
    refuse(allowance)
    assert allowance.count == math.floor(64 * CUT_FACTOR * CUT_FACTOR) - 1  # of whole operations


def test_a_cut_starts_from_what_was_under_way():
    allowance = Allowance(64)
    refuse(allowance, 10)
    assert allowance.count == 7


def test_one_is_always_allowed():
    allowance = Allowance(3)
    for _ in range(20):
        refuse(allowance)
    assert allowance.count == 1


@pytest.mark.parametrize("allowance", [Allowance(math.inf), Allowance(64, is_adaptive=False)])
def test_what_is_off_stays_as_it_is(allowance):
    before = allowance.count
    allowance.slowed_down(cuts_before_count=0, in_use_count=10)
    allowance.answered()
    assert allowance.count == before
    assert allowance.cuts_count == 0
