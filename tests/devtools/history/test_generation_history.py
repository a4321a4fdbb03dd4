"""Tests of the checker of classic groups: each violation is planted once, and found."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from tests.devtools.history.member_history import Assignment, GenerationsSeen, Participant, kinds

SESSION_SECONDS, REBALANCE_SECONDS = 10.0, 5.0


@attrs.define(eq=False)
class Scene:
    """Two members of a group with two partitions, in generation 2, and a time that a test sets."""

    now: float = 0.0
    seen: GenerationsSeen = attrs.field(init=False)
    one: Participant = attrs.field(init=False)
    other: Participant = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.seen = GenerationsSeen(
            now=lambda: self.now, session_seconds=SESSION_SECONDS, rebalance_seconds=REBALANCE_SECONDS
        )
        self.one, self.other = Participant(name="one", member_id="one"), Participant(name="other", member_id="other")
        self.get(self.one, 1, {0, 1}, "one/1")
        self.seen.gave_up(self.one)
        self.get(self.one, 2, {0}, "one/2")
        self.get(self.other, 2, {1}, "one/2")

    def get(
        self,
        member: Participant,
        generation: int,
        partitions: set[int],
        author: str,
        *,
        asked_before: int = 0,
        is_known: bool = True,
    ) -> None:
        """Record a SyncGroup that was sent `asked_before` generations before its answer."""
        got = Assignment(generation, frozenset(partitions), author)
        latest_then = self.seen.latest - asked_before
        self.seen.assigned(member, got, began=self.now, latest_then=latest_then, is_known=is_known)


def test_members_that_share_partitions_in_later_generations_are_accepted() -> None:
    scene = Scene()
    assert scene.seen.disagreement([scene.one, scene.other], range(2)) == ""
    scene.seen.committed(scene.one, 2, latest_then=2)
    scene.seen.gave_up(scene.other)
    scene.seen.gave_up(scene.one)
    scene.get(scene.one, 3, {0, 1}, "one/3")
    assert scene.seen.disagreement([scene.one], range(2)) == ""
    assert scene.seen.problems == []


def two_owners_of_a_generation(scene: Scene) -> None:
    scene.get(scene.one, 2, {0, 1}, "one/2")


def two_owners_one_after_the_other(scene: Scene) -> None:
    scene.now = REBALANCE_SECONDS - 0.1
    scene.seen.gave_up(scene.one)
    scene.get(scene.one, 3, {0, 1}, "one/3")


def a_part_of_another_assignment(scene: Scene) -> None:
    scene.get(Participant(name="third", member_id="third"), 2, set(), "other/1")


def an_earlier_generation(scene: Scene) -> None:
    scene.get(Participant(name="third", member_id="third"), 1, set(), "one/1")


def refused_without_cause(scene: Scene) -> None:
    scene.now = REBALANCE_SECONDS - 0.1
    scene.seen.refused(scene.one, "UNKNOWN_MEMBER_ID")


def refused_after_a_heartbeat(scene: Scene) -> None:
    scene.seen.heard(scene.one, began=8.0)
    scene.now = 8.0 + REBALANCE_SECONDS - 0.1
    scene.seen.refused(scene.one, "ILLEGAL_GENERATION")


def a_commit_of_before(scene: Scene) -> None:
    scene.seen.committed(scene.one, 1, latest_then=2)


def no_agreement(scene: Scene) -> None:
    scene.seen.did_not_agree(scene.seen.disagreement([scene.one], range(2)))


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (two_owners_of_a_generation, "two owners"),
        (two_owners_one_after_the_other, "two owners"),
        (a_part_of_another_assignment, "two assignments"),
        (an_earlier_generation, "generation went back"),
        (refused_without_cause, "refused without cause"),
        (refused_after_a_heartbeat, "refused without cause"),
        (a_commit_of_before, "zombie"),
        (no_agreement, "no agreement"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_each_planted_violation_is_reported(plant: Callable[[Scene], None], kind: str) -> None:
    scene = Scene()
    plant(scene)
    assert list(kinds(scene.seen.problems)) == [kind]


def late_takeover(scene: Scene) -> None:
    scene.now = REBALANCE_SECONDS
    scene.seen.gave_up(scene.one)
    scene.get(scene.one, 3, {0, 1}, "one/3")


def refused_late(scene: Scene) -> None:
    scene.now = REBALANCE_SECONDS
    scene.seen.refused(scene.one, "ILLEGAL_GENERATION")


def refused_by_a_former_coordinator(scene: Scene) -> None:
    scene.seen.refused(scene.one, "UNKNOWN_MEMBER_ID", is_known=False)


def repeated_by_a_former_coordinator(scene: Scene) -> None:
    scene.get(scene.one, 1, {0, 1}, "one/1", is_known=False)


def asked_before_the_rebalance(scene: Scene) -> None:
    scene.get(scene.one, 1, {0, 1}, "one/1", asked_before=1)


@pytest.mark.parametrize(
    "play",
    [
        late_takeover,
        refused_late,
        refused_by_a_former_coordinator,
        repeated_by_a_former_coordinator,
        asked_before_the_rebalance,
    ],
    ids=lambda play: play.__name__,
)
def test_late_and_repeated_answers_are_accepted(play: Callable[[Scene], None]) -> None:
    scene = Scene()
    play(scene)
    assert scene.seen.problems == []


def test_members_that_have_not_come_to_the_same_generation_do_not_agree() -> None:
    scene = Scene()
    scene.seen.gave_up(scene.one)
    scene.get(scene.one, 3, {0}, "one/3")
    assert "generations" in scene.seen.disagreement([scene.one, scene.other], range(2))
