"""Rounds: who waits for one, and for other things as well, is told of its end once and for all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafscale.concurrency.signals import Signal
from kafscale.errors import StorageFailed
from kafscale.log.wal.journal import Round

ENDS: list[Callable[[Round], None]] = [Round.succeed, lambda each: each.fail(StorageFailed("lost")), Round.put_off]


@pytest.mark.parametrize("end", ENDS)
def test_a_signal_registered_with_a_round_is_set_once_at_the_end_of_the_round(end: Callable[[Round], None]) -> None:
    round, signal, other = Round(), Signal(), Signal()
    for each in (signal, other, signal):
        round.tell(each)
    assert not signal.is_set()
    end(round)
    assert signal.is_set()
    assert other.is_set()
    signal.clear()
    end(round)
    assert not signal.is_set()


@pytest.mark.parametrize("end", ENDS)
def test_a_waiter_that_comes_after_a_round_returns_at_once(end: Callable[[Round], None]) -> None:
    """A round that was put off goes on being filled."""
    round, signal = Round(), Signal()
    end(round)
    round.tell(signal)
    assert signal.is_set()
