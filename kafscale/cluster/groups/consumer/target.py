"""The target assignment of a group: who is to have what at this epoch. Members get there one by one, later."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from kafscale.cluster.groups.assignors.partitions import NO_PARTITIONS, Partitions, count
from kafscale.cluster.groups.assignors.spec import GroupSpec, MemberSpec
from kafscale.cluster.groups.assignors.table import ASSIGNORS
from kafscale.cluster.groups.consumer.members import Subscription
from kafscale.cluster.groups.consumer.state import GroupState
from kafscale.cluster.groups.consumer.topics import Topics


def preferred_assignor(state: GroupState, configured: tuple[str, ...]) -> str:
    """Return the assignor that most members ask for; among equals, or if none does, the one configured first."""
    return max(configured, key=lambda name: state.assignors[name])


def compute_target(
    state: GroupState, topics: Topics, assignor: str, *, waiting: Collection[str] = ()
) -> Mapping[str, Partitions]:
    """Return what each member is to have. Cost: about linear in members and partitions, see `assignors`.

    Members that are `waiting` have no topics of their expressions yet (`viewers`).
    """
    return ASSIGNORS[assignor](_spec(state, topics, waiting))


def covers_subscriptions(state: GroupState, topics: Topics) -> bool:
    """Tell whether the target assignment has everything, as it does unless records are missing, or there is nobody."""
    if not state.members:
        return True
    assigned = sum(map(count, state.targets.values()))
    known = (topics.by_name.get(name) for name in state.subscribed_topic_names())
    return assigned == sum(topic.partition_count for topic in known if topic is not None)


def _spec(state: GroupState, topics: Topics, waiting: Collection[str]) -> GroupSpec:
    topic_ids: dict[Subscription, frozenset[bytes]] = {}
    without_regex = {each: attrs.evolve(state.members[each].subscription, topic_regex="") for each in waiting}
    for subscription in dict.fromkeys([*state.subscriptions, *without_regex.values()]):
        known = (topics.by_name.get(name) for name in state.topic_names_of(subscription))
        topic_ids[subscription] = frozenset(topic.topic_id for topic in known if topic is not None)
    counts = {id: topics.by_id[id].partition_count for id in frozenset().union(*topic_ids.values())}
    previous = _Previous(counts)
    return GroupSpec(
        members={
            member.member_id: MemberSpec(
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                topic_ids=topic_ids[without_regex.get(member.member_id, member.subscription)],
                previous=previous.of(state.target(member.member_id)),
            )
            for member in state.members.values()
        },
        partition_counts=counts,
    )


class _Previous:
    """Makes sure that no partition was to be with two members.

    It may be so where only some records of a target assignment were written before a crash.
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
