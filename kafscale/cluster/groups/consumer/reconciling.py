"""One member's next step towards its target assignment.

A member first gives up what it is not to keep, and says so by no longer reporting it; then it moves to the target's
epoch and gets what nobody else has. What others have yet to give up it gets later, one heartbeat after the other. So no
two members ever have the same partition.
"""

from __future__ import annotations

import attrs

from kafscale.cluster.groups.assignors.partitions import (
    NO_PARTITIONS,
    Partitions,
    count,
    difference,
    intersect,
    intersection,
    union,
)
from kafscale.cluster.groups.consumer.members import Member, MemberState
from kafscale.cluster.groups.consumer.state import GroupState


def next_step(state: GroupState, member: Member, target_epoch: int, owned: Partitions | None) -> Member:
    """Return the member after its next step, or as it is.

    `owned` is what the member reports to have; None if it does not say.
    """
    if member.is_reconciled_to(target_epoch):
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_has(owned, member.pending_revocation):
            return member
        return _towards_target(state, attrs.evolve(member, member_epoch=member.member_epoch + 1), member, owned)
    return _towards_target(state, member, member, owned)


def _towards_target(state: GroupState, member: Member, before: Member, owned: Partitions | None) -> Member:
    """Return the member at the target's epoch, or at its own one, while it has something to give up."""
    target = state.target(member.member_id)
    kept = intersection(member.assigned, target)
    to_revoke = difference(member.assigned, kept)
    if to_revoke and _still_has(owned, to_revoke):
        return _at(before, member.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, to_revoke)
    wanted = difference(target, kept)
    free = {topic_id: state.unowned(topic_id, partitions) for topic_id, partitions in wanted.items()}
    free = {topic_id: partitions for topic_id, partitions in free.items() if partitions}
    all_free = count(free) == count(wanted)
    next_state = MemberState.STABLE if all_free else MemberState.UNRELEASED_PARTITIONS
    return _at(before, state.assignment_epoch, next_state, union(kept, free), NO_PARTITIONS)


def _still_has(owned: Partitions | None, to_revoke: Partitions) -> bool:
    """Tell whether a member may still have any of these; one that says nothing may."""
    return owned is None or intersect(owned, to_revoke)


def _at(member: Member, epoch: int, state: MemberState, assigned: Partitions, pending: Partitions) -> Member:
    next_member = attrs.evolve(member, state=state, assigned=assigned, pending_revocation=pending)
    return attrs.evolve(next_member, member_epoch=epoch, previous_member_epoch=member.member_epoch)
