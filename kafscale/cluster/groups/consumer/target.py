"""The target assignment of a group at one epoch, and the next step of one member towards it.

A member first gives up partitions that it is not to keep, and confirms that by no longer reporting them. Then it moves
to the target's epoch and gets the partitions that no other member has. Partitions that others have yet to give up it
gets later, heartbeat by heartbeat. So no two members ever have the same partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from kafscale.cluster.groups.common.assignors import (
    NO_PARTITIONS,
    Assignor,
    GroupSpec,
    MemberSpec,
    Partitions,
    assign_ranges,
    assign_uniformly,
    count,
    difference,
    intersect,
    intersection,
    union,
)
from kafscale.cluster.groups.common.topics import KnownTopics
from kafscale.cluster.groups.consumer.members import Member, MemberState, TopicSubscription
from kafscale.cluster.groups.consumer.state import GroupState

ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}  # by the names of clients


def next_step(state: GroupState, member: Member, target_epoch: int, owned: Partitions | None) -> Member:
    """Return the member after its next step; `owned` are the partitions that it reports, None if it does not."""
    if member.is_reconciled_to(target_epoch):
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_has(owned, member.pending_revocation):
            return member
        return _towards_target(state, attrs.evolve(member, member_epoch=member.member_epoch + 1), member, owned)
    return _towards_target(state, member, member, owned)


def _towards_target(state: GroupState, member: Member, before: Member, owned: Partitions | None) -> Member:
    """Return the member at the target's epoch, or at its own epoch while it has partitions to revoke."""
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
    return owned is None or intersect(owned, to_revoke)


def _at(member: Member, epoch: int, state: MemberState, assigned: Partitions, pending: Partitions) -> Member:
    next_member = attrs.evolve(member, state=state, assigned=assigned, pending_revocation=pending)
    return attrs.evolve(next_member, member_epoch=epoch, previous_member_epoch=member.member_epoch)


def preferred_assignor(state: GroupState, configured: Sequence[str]) -> str:
    """Return the assignor that most members ask for; of several, the one configured first."""
    return max(configured, key=lambda name: state.assignors[name])


def compute_target(
    state: GroupState, topics: KnownTopics, assignor: str, *, waiting: Collection[str] = ()
) -> Mapping[str, Partitions]:
    """Return the target assignment by member; `waiting` members have no topics of their expressions yet."""
    return ASSIGNORS[assignor](_spec(state, topics, waiting))


def covers_subscriptions(state: GroupState, topics: KnownTopics) -> bool:
    """Tell whether the target assignment has all partitions. It has not if records are missing."""
    if not state.members:
        return True
    assigned = sum(map(count, state.targets.values()))
    known = (topics.by_name.get(name) for name in state.subscribed_topic_names())
    return assigned == sum(topic.partition_count for topic in known if topic is not None)


def _spec(state: GroupState, topics: KnownTopics, waiting: Collection[str]) -> GroupSpec:
    topic_ids: dict[TopicSubscription, frozenset[bytes]] = {}
    without_regex = {
        member_id: attrs.evolve(state.members[member_id].subscription, topic_regex="") for member_id in waiting
    }
    for subscription in dict.fromkeys([*state.subscriptions, *without_regex.values()]):
        known = (topics.by_name.get(name) for name in state.topic_names_of(subscription))
        topic_ids[subscription] = frozenset(topic.topic_id for topic in known if topic is not None)
    counts = {id: topics.by_id[id].partition_count for id in frozenset().union(*topic_ids.values())}
    previous = _Previous(counts)
    return GroupSpec(
        members={
            member.member_id: MemberSpec(
                instance_id=member.instance_id,
                topic_ids=topic_ids[without_regex.get(member.member_id, member.subscription)],
                previous=previous.of(state.target(member.member_id)),
            )
            for member in state.members.values()
        },
        partition_counts=counts,
    )


class _Previous:
    """Keeps each partition in one member's previous assignment.

    It is in two if only some records of a target assignment were written before a crash.
    """

    def __init__(self, partition_counts: Mapping[bytes, int]) -> None:
        self._taken: dict[bytes, set[int]] = {topic_id: set() for topic_id in partition_counts}

    def of(self, target: Partitions) -> Partitions:
        if not target:
            return NO_PARTITIONS
        previous: dict[bytes, frozenset[int]] = {}
        for topic_id, partitions in target.items():
            taken = self._taken.get(topic_id)
            if taken is None:
                continue
            if not taken.isdisjoint(partitions):
                partitions = partitions.difference(taken)
            if partitions:
                taken.update(partitions)
                previous[topic_id] = partitions
        return previous
