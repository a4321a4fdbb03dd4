"""The input and output of an assignor.

`Partitions` are sets of partitions by topic id: what a member has, is to have, or is to give up. Such a mapping never
changes once it is made and has no empty set, so two of them can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]

NO_PARTITIONS: Partitions = {}
NONE_OF_TOPIC: frozenset[int] = frozenset()


def count(partitions: Partitions) -> int:
    """Return how many partitions these are."""
    return sum(map(len, partitions.values()))


def intersect(one: Partitions, other: Partitions) -> bool:
    """Tell whether any partition is in both."""
    return any(not partitions.isdisjoint(other.get(topic_id, ())) for topic_id, partitions in one.items())


def is_subset(one: Partitions, other: Partitions) -> bool:
    """Tell whether the other has all partitions of the one."""
    return all(partitions <= other.get(topic_id, NONE_OF_TOPIC) for topic_id, partitions in one.items())


def difference(one: Partitions, other: Partitions) -> Partitions:
    """Return what the one has and the other has not."""
    left = {topic_id: partitions - other.get(topic_id, NONE_OF_TOPIC) for topic_id, partitions in one.items()}
    return {topic_id: partitions for topic_id, partitions in left.items() if partitions}


def intersection(one: Partitions, other: Partitions) -> Partitions:
    """Return what both have."""
    both = {topic_id: partitions & other[topic_id] for topic_id, partitions in one.items() if topic_id in other}
    return {topic_id: partitions for topic_id, partitions in both.items() if partitions}


def union(one: Partitions, other: Partitions) -> Partitions:
    """Return what either has."""
    joined = dict(one)
    for topic_id, partitions in other.items():
        joined[topic_id] = partitions | joined.get(topic_id, NONE_OF_TOPIC)
    return joined


@attrs.frozen(kw_only=True)
class MemberSpec:
    """A member: topics by id, and what it was to have before. As in Kafka 4.1 no assignor looks at the rack."""

    instance_id: str | None = None
    rack_id: str | None = None
    topic_ids: frozenset[bytes]
    previous: Partitions = NO_PARTITIONS


@attrs.frozen(kw_only=True)
class GroupSpec:
    """A group: members by id, and the number of partitions of each topic that anybody subscribes to.

    No partition is in the previous assignment of two members, and none is there that does not exist.
    """

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[bytes, int]

    @property
    def is_homogeneous(self) -> bool:
        """All members subscribe to the same topics."""
        return len({member.topic_ids for member in self.members.values()}) <= 1


Assignor: TypeAlias = Callable[[GroupSpec], Mapping[str, Partitions]]
