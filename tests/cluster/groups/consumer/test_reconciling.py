"""One member's next step, by the cases of Kafka's CurrentAssignmentBuilderTest."""

from __future__ import annotations

import attrs
import pytest

from kafscale.cluster.groups.common.assignors import Partitions
from kafscale.cluster.groups.consumer.members import Member, MemberState
from kafscale.cluster.groups.consumer.state import GroupState, target_record
from kafscale.cluster.groups.consumer.target import next_step
from tests.cluster.groups.consumer_groups import GROUP_ID, partitions

STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS
NOTHING: Partitions = {}


def member(state: MemberState, epochs: tuple[int, int], has: Partitions, revokes: Partitions = NOTHING) -> Member:
    epoch, previous = epochs
    return Member(
        member_id="member",
        member_epoch=epoch,
        previous_member_epoch=previous,
        state=state,
        assigned=has,
        pending_revocation=revokes,
    )


def step(before: Member, target_epoch: int, target: Partitions, others: Partitions, owned: Partitions | None) -> Member:
    """The next step in a group where others have some partitions."""
    state = GroupState(GROUP_ID)
    for each in (before, Member(member_id="other", assigned=others)):
        state.apply(each.metadata_record(GROUP_ID))
        state.apply(each.assignment_record(GROUP_ID))
    state.apply(target_record(GROUP_ID, "member", target))
    state.apply(state.assignment_epoch_record(target_epoch))
    return next_step(state, before, target_epoch, owned)


BOTH = partitions(t={1, 2, 3}, u={4, 5, 6})
MORE = partitions(t={1, 2, 3, 4}, u={4, 5, 6, 7})
MOVED = partitions(t={2, 3, 4}, u={5, 6, 7})
KEPT, GIVEN_UP = partitions(t={2, 3}, u={5, 6}), partitions(t={1}, u={4})
LESS, GIVEN_UP_THEN = partitions(t={3}, u={6}), partitions(t={2}, u={5})
OTHERS = partitions(t={4}, u={7})
MORE_THAN_KEPT = partitions(t={2, 3, 4}, u={5, 6, 7})


@pytest.mark.parametrize(
    ("before", "target_epoch", "target", "others", "owned", "after"),
    [
        pytest.param(
            member(STABLE, (10, 10), BOTH), 11, BOTH, NOTHING, None, member(STABLE, (11, 10), BOTH), id="same"
        ),
        pytest.param(
            member(STABLE, (10, 10), BOTH), 11, MORE, NOTHING, None, member(STABLE, (11, 10), MORE), id="more"
        ),
        pytest.param(
            member(STABLE, (10, 10), BOTH),
            *(11, MOVED, NOTHING, None),
            member(UNREVOKED, (10, 10), KEPT, GIVEN_UP),
            id="something to give up",
        ),
        pytest.param(
            member(STABLE, (10, 10), BOTH),
            *(11, MORE, OTHERS, None),
            member(UNRELEASED, (11, 10), BOTH),
            id="more that others have",
        ),
        pytest.param(
            member(STABLE, (10, 10), BOTH),
            *(11, partitions(t={1, 2, 3}, u={4, 5, 7}), partitions(u={7}), NOTHING),
            member(UNRELEASED, (11, 10), partitions(t={1, 2, 3}, u={4, 5})),
            id="to give up what it says it has not",
        ),
        pytest.param(
            member(UNREVOKED, (10, 10), KEPT, GIVEN_UP),
            *(11, KEPT, NOTHING, KEPT),
            member(STABLE, (11, 10), KEPT),
            id="has given up",
        ),
        pytest.param(
            member(UNREVOKED, (10, 10), KEPT, GIVEN_UP),
            *(12, LESS, NOTHING, None),
            member(UNREVOKED, (10, 10), KEPT, GIVEN_UP),
            id="does not say",
        ),
        pytest.param(
            member(UNREVOKED, (10, 10), KEPT, GIVEN_UP),
            *(12, LESS, NOTHING, partitions(t={1, 2, 3}, u={5, 6})),
            member(UNREVOKED, (10, 10), KEPT, GIVEN_UP),
            id="still has one topic's",
        ),
        pytest.param(
            member(UNREVOKED, (10, 10), KEPT, GIVEN_UP),
            *(12, LESS, NOTHING, partitions(t={2, 3}, u={4, 5, 6})),
            member(UNREVOKED, (10, 10), KEPT, GIVEN_UP),
            id="still has the other's",
        ),
        pytest.param(
            member(UNREVOKED, (10, 10), KEPT, GIVEN_UP),
            *(12, LESS, NOTHING, KEPT),
            member(UNREVOKED, (11, 10), LESS, GIVEN_UP_THEN),
            id="has given up, and must give up more",
        ),
        pytest.param(
            member(UNREVOKED, (11, 10), KEPT),
            *(11, MORE_THAN_KEPT, OTHERS, KEPT),
            member(UNRELEASED, (11, 11), KEPT),
            id="has given up, and waits for others",
        ),
        pytest.param(
            member(UNRELEASED, (11, 11), KEPT),
            *(12, KEPT, NOTHING, None),
            member(STABLE, (12, 11), KEPT),
            id="waits for nothing any more",
        ),
        pytest.param(
            member(UNRELEASED, (11, 11), KEPT),
            *(11, MORE_THAN_KEPT, NOTHING, None),
            member(STABLE, (11, 11), MORE_THAN_KEPT),
            id="others have given up",
        ),
        pytest.param(
            member(UNRELEASED, (11, 11), KEPT),
            *(11, MORE_THAN_KEPT, OTHERS, None),
            member(UNRELEASED, (11, 11), KEPT),
            id="others have not given up",
        ),
        pytest.param(
            member(UNRELEASED, (11, 11), KEPT),
            *(12, LESS, OTHERS, None),
            member(UNREVOKED, (11, 11), LESS, GIVEN_UP_THEN),
            id="waits, and must give up",
        ),
        pytest.param(
            member(MemberState.UNKNOWN, (11, 10), KEPT, GIVEN_UP),
            *(12, LESS, NOTHING, NOTHING),
            member(STABLE, (12, 11), LESS),
            id="unknown state",
        ),
        pytest.param(
            member(UNRELEASED, (11, 11), KEPT),
            *(11, MORE_THAN_KEPT, partitions(t={4}), None),
            member(UNRELEASED, (11, 11), partitions(t={2, 3}, u={5, 6, 7})),
            id="some of the others have given up",
        ),
    ],
)
def test_the_next_step(
    before: Member, target_epoch: int, target: Partitions, others: Partitions, owned: Partitions | None, after: Member
) -> None:
    assert step(before, target_epoch, target, others, owned) == after


def test_a_member_does_not_revoke_and_receive_a_partition_in_one_step() -> None:
    """As in Kafka: the partition counts as somebody's until the step is done."""
    before = member(UNREVOKED, (10, 10), partitions(t={2}), partitions(t={1}))
    after = step(before, 12, partitions(t={1, 2}), NOTHING, partitions(t={2}))
    assert after == member(UNRELEASED, (12, 10), partitions(t={2}))
    assert attrs.evolve(after, state=STABLE).is_reconciled_to(12)
    assert not after.is_reconciled_to(12)
