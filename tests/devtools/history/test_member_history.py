"""Tests of the checker of consumer groups: each violation is planted once, and found."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from tests.devtools.history.member_history import Assigned, Membership, MembersSeen, kinds

SESSION_SECONDS, REBALANCE_SECONDS = 10.0, 5.0


@attrs.define(eq=False)
class Scene:
    """Two members of a group with two partitions, at epoch 2, and a time that a test sets."""

    now: float = 0.0
    seen: MembersSeen = attrs.field(init=False)
    one: Membership = attrs.field(init=False)
    other: Membership = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.seen = MembersSeen(
            now=lambda: self.now, session_seconds=SESSION_SECONDS, rebalance_seconds=REBALANCE_SECONDS
        )
        self.one, self.other = self.seen.joining("one"), self.seen.joining("other")
        self.beat(self.one, 1, {0, 1})
        self.beat(self.other, 2, set())
        self.beat(self.one, 1, {0})
        self.seen.gave_up(self.one, frozenset({1}))
        self.beat(self.one, 2)
        self.beat(self.other, 2, {1})

    def beat(self, member: Membership, epoch: int, assigned: set[int] | None = None) -> None:
        """A heartbeat that is answered at once."""
        began = self.seen.sending(member)
        told: Assigned | None = None if assigned is None else frozenset(assigned)
        self.seen.answered(member, epoch, told, began=began)

    def refuse(self, member: Membership, *, lost_count: int = 0, may_be_late: bool = False) -> None:
        for _ in range(lost_count + 1):
            self.seen.sending(member)
        self.seen.refused(member, "FENCED_MEMBER_EPOCH", may_be_late=may_be_late)


def test_members_that_share_partitions_and_leave_are_accepted() -> None:
    scene = Scene()
    scene.seen.committed(scene.one, 0, epoch=2, began=0.0)
    assert scene.seen.disagreement([scene.one, scene.other], range(2)) == ""
    scene.seen.left(scene.other)
    scene.beat(scene.one, 3, {0, 1})
    assert scene.seen.disagreement([scene.one], range(2)) == ""
    assert scene.seen.problems == []


def two_owners(scene: Scene) -> None:
    scene.beat(scene.one, 3, {0, 1})


def one_that_died_too_early(scene: Scene) -> None:
    scene.now = SESSION_SECONDS - 0.1
    scene.beat(scene.one, 3, {0, 1})


def one_that_does_not_give_up_too_early(scene: Scene) -> None:
    scene.now = 1.0
    scene.beat(scene.other, 2, set())
    scene.now = REBALANCE_SECONDS + 0.9
    scene.beat(scene.one, 3, {0, 1})


def taken_away(scene: Scene) -> None:
    scene.now = SESSION_SECONDS
    scene.beat(scene.one, 3, {0, 1})
    scene.beat(scene.other, 2)


def epoch_back(scene: Scene) -> None:
    scene.beat(scene.one, 1)


def refused(scene: Scene) -> None:
    scene.refuse(scene.one)


def refused_after_a_new_start(scene: Scene) -> None:
    scene.now = 5.0
    scene.seen.began_anew(5.0)
    scene.refuse(scene.one, lost_count=1, may_be_late=True)


def refused_as_it_joins(scene: Scene) -> None:
    scene.refuse(scene.seen.joining("one"), may_be_late=True)


def refused_as_it_leaves(scene: Scene) -> None:
    known_until = scene.seen.left(scene.one)
    scene.seen.leave_refused(scene.one, "FENCED_INSTANCE_ID", known_until=known_until)


def refused_offsets(scene: Scene) -> None:
    scene.seen.commit_refused(scene.one, "STALE_MEMBER_EPOCH")


def commit_at_another_epoch(scene: Scene) -> None:
    scene.seen.committed(scene.one, 0, epoch=1, began=0.0)


def commit_of_one_that_was_told(scene: Scene) -> None:
    scene.now = SESSION_SECONDS
    scene.refuse(scene.one)
    scene.seen.committed(scene.one, 0, epoch=2, began=scene.now + 0.1)


def commit_of_what_is_another_ones(scene: Scene) -> None:
    scene.now = SESSION_SECONDS
    scene.beat(scene.one, 3, {0, 1})
    scene.seen.committed(scene.other, 1, epoch=2, began=scene.now + 0.1)


def nobody_has_one(scene: Scene) -> None:
    scene.seen.did_not_agree(scene.seen.disagreement([scene.one, scene.other], range(3)))


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (two_owners, "two owners"),
        (one_that_died_too_early, "two owners"),
        (one_that_does_not_give_up_too_early, "two owners"),
        (taken_away, "taken away unasked"),
        (epoch_back, "epoch went back"),
        (refused, "refused without cause"),
        (refused_after_a_new_start, "refused without cause"),
        (refused_as_it_leaves, "refused without cause"),
        (refused_as_it_joins, "refused without cause"),
        (refused_offsets, "refused without cause"),
        (commit_at_another_epoch, "zombie"),
        (commit_of_one_that_was_told, "zombie"),
        (commit_of_what_is_another_ones, "zombie"),
        (nobody_has_one, "no agreement"),
    ],
)
def test_each_planted_violation_is_reported(plant: Callable[[Scene], None], kind: str) -> None:
    scene = Scene()
    plant(scene)
    assert list(kinds(scene.seen.problems)) == [kind]


def test_partitions_reassigned_after_a_session_timeout_are_accepted() -> None:
    scene = Scene()
    scene.now = SESSION_SECONDS
    scene.beat(scene.one, 3, {0, 1})
    scene.seen.committed(scene.other, 1, epoch=2, began=scene.now - 0.1)
    scene.refuse(scene.other)
    assert scene.seen.problems == []


def test_a_member_that_revokes_too_slowly_may_be_fenced() -> None:
    scene = Scene()
    scene.now = 1.0
    scene.beat(scene.other, 2, set())
    scene.now = REBALANCE_SECONDS + 1
    scene.refuse(scene.other)
    scene.beat(scene.one, 3, {0, 1})
    assert scene.seen.problems == []


def test_refusals_after_lost_answers_that_raised_the_epoch_are_accepted() -> None:
    scene = Scene()
    scene.seen.sending(scene.one)
    scene.seen.commit_refused(scene.one, "STALE_MEMBER_EPOCH")
    scene.refuse(scene.one, lost_count=1, may_be_late=True)
    assert scene.seen.problems == []


def test_differences_after_a_lost_disk_are_forgiven() -> None:
    scene = Scene()
    scene.seen.forgive()
    scene.beat(scene.one, 1, {0, 1})
    scene.refuse(scene.other)
    known_until = scene.seen.left(scene.other)
    scene.seen.leave_refused(scene.other, "FENCED_INSTANCE_ID", known_until=known_until)
    assert scene.seen.problems == []


def test_a_new_broker_gives_everybody_a_session_from_its_start_on() -> None:
    scene = Scene()
    scene.now = 5.0
    scene.beat(scene.other, 2)  # answered by the older one, which has not heard
    scene.seen.began_anew(2.0)
    scene.now = 2.0 + SESSION_SECONDS
    scene.beat(scene.one, 3, {0, 1})
    assert scene.seen.problems == []


def test_a_member_that_reports_a_revocation_too_late_may_be_fenced() -> None:
    """Seeds 30283 and 30394: the broker that was to be told had died."""
    scene = Scene()
    scene.beat(scene.one, 2, set())
    scene.seen.gave_up(scene.one, frozenset({0}))
    scene.now = REBALANCE_SECONDS + 0.1
    scene.refuse(scene.one)
    assert scene.seen.problems == []


def test_a_member_that_lost_the_answer_asking_it_to_revoke_may_be_fenced() -> None:
    """Seed 30351."""
    scene = Scene()
    scene.seen.sending(scene.one)
    scene.now = REBALANCE_SECONDS + 0.1
    scene.refuse(scene.one)
    assert scene.seen.problems == []


def test_a_revoking_member_that_lost_an_answer_asking_for_more_may_be_fenced() -> None:
    """Seed 41475: its epoch was raised as it had given up the first, and it reports the second."""
    scene = Scene()
    scene.beat(scene.one, 2, set())
    scene.refuse(scene.one, lost_count=1, may_be_late=True)
    assert scene.seen.problems == []


def test_a_late_join_frees_only_partitions_of_the_same_member() -> None:
    scene = Scene()
    scene.seen.left(scene.one)
    third = scene.seen.joining("third")
    scene.seen.sending(third)
    scene.beat(third, 3, {0})
    scene.beat(scene.other, 4, {0, 1})
    scene.beat(third, 4)
    assert scene.seen.problems == []
    scene.beat(third, 4, {0})
    assert list(kinds(scene.seen.problems)) == ["two owners"]  # of others nothing is forgiven
