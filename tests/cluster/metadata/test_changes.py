"""What a publisher does that has missed changes itself; the rest is in the contract of the stores."""

from __future__ import annotations

import pytest

from kafscale.cluster.metadata.base import Change, PlannedFrom
from kafscale.cluster.metadata.changes import ChangeLog
from kafscale.errors import ChangesForgotten, PlanOutdated


def test_who_has_not_taken_what_was_missed_is_told_so_and_others_go_on() -> None:
    log = ChangeLog()
    told: list[str] = []
    slow = log.read(0, lambda: told.append("slow"))
    log.publish([Change(1, {"a/1": b""})])
    log.skip_to(7)
    assert told == ["slow", "slow"]
    with pytest.raises(ChangesForgotten):
        slow.take()
    with pytest.raises(ChangesForgotten):
        log.read(6)
    fresh = log.read(7)
    log.publish([Change(8, {"a/2": b""})])
    assert fresh.take() == [Change(8, {"a/2": b""})]


def test_it_is_not_known_what_was_changed_by_what_was_missed() -> None:
    log = ChangeLog()
    log.publish([Change(1, {"a/1": b""})])
    log.skip_to(7)
    assert isinstance(log.refusal(PlannedFrom(revision=6, keys=["b/1"])), PlanOutdated)
    assert log.refusal(PlannedFrom(revision=7, keys=["a/1"])) is None


def test_a_publisher_does_not_go_back() -> None:
    with pytest.raises(AssertionError, match="not later"):
        ChangeLog(3).skip_to(3)
