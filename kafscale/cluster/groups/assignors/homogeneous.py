"""Uniform assignment where all members subscribe to the same topics.

With P partitions and M members each gets P // M, and P % M of them one more. First each member keeps what it had up to
its share; then what nobody has fills up those who are below theirs. Cost: linear in members and partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from kafscale.cluster.groups.assignors.partitions import NO_PARTITIONS, NONE_OF_TOPIC, Partitions
from kafscale.cluster.groups.assignors.spec import GroupSpec


@attrs.frozen
class _Run:
    """Partitions of one topic that nobody has."""

    topic_id: bytes
    partitions: list[int]


@attrs.define(eq=False, repr=False)
class _Pool:
    """Partitions that nobody has, in the order in which they are handed out."""

    runs: list[_Run] = attrs.field(factory=list)
    _next_run: int = attrs.field(default=0, init=False)
    _next_partition: int = attrs.field(default=0, init=False)

    def add(self, topic_id: bytes, partitions: Iterable[int]) -> None:
        self.runs.append(_Run(topic_id, list(partitions)))

    def give(self, kept: Partitions, count: int) -> Partitions:
        """Return what a member keeps, and so many partitions more, or what is left."""
        grown = dict(kept)
        while count and self._next_run < len(self.runs):
            run = self.runs[self._next_run]
            given = run.partitions[self._next_partition : self._next_partition + count]
            if given:
                grown[run.topic_id] = grown.get(run.topic_id, NONE_OF_TOPIC).union(given)
            count -= len(given)
            self._next_partition += len(given)
            if self._next_partition == len(run.partitions):
                self._next_run += 1
                self._next_partition = 0
        return grown


@attrs.define(eq=False, repr=False)
class _Share:
    """What a member keeps of what it had, and what it may get beside that."""

    kept: Partitions
    room: int


def assign_homogeneous(spec: GroupSpec) -> Mapping[str, Partitions]:
    """Return what each member is to have."""
    topic_ids: frozenset[bytes] = next((member.topic_ids for member in spec.members.values()), frozenset())
    if not topic_ids:
        return dict.fromkeys(spec.members, NO_PARTITIONS)
    pool = _unassigned(spec, topic_ids)
    total = sum(spec.partition_counts[topic_id] for topic_id in topic_ids)
    share, extra_left = divmod(total, len(spec.members))
    assignment: dict[str, Partitions] = {}
    unfilled: dict[str, int] = {}
    for position, (member_id, member) in enumerate(spec.members.items()):
        may_have_extra = extra_left > 0
        kept = _keep(member.previous, topic_ids, share + may_have_extra, pool)
        # An extra one that it does not have already is left for those who have, unless all that follow must take one.
        if kept.room and may_have_extra and len(spec.members) - position > extra_left:
            kept.room -= 1
            may_have_extra = False
        extra_left -= may_have_extra
        assignment[member_id] = kept.kept
        if kept.room:
            unfilled[member_id] = kept.room
    for member_id, room in unfilled.items():
        assignment[member_id] = pool.give(assignment[member_id], room)
    return assignment


def _unassigned(spec: GroupSpec, topic_ids: frozenset[bytes]) -> _Pool:
    assigned: dict[bytes, set[int]] = {topic_id: set() for topic_id in topic_ids}
    for member in spec.members.values():
        for topic_id, partitions in member.previous.items():
            if topic_id in assigned:
                assigned[topic_id].update(partitions)
    pool = _Pool()
    for topic_id in sorted(topic_ids):
        taken, count = assigned[topic_id], spec.partition_counts[topic_id]
        if len(taken) < count:
            pool.add(topic_id, (partition for partition in range(count) if partition not in taken))
    return pool


def _keep(previous: Partitions, topic_ids: frozenset[bytes], quota: int, pool: _Pool) -> _Share:
    """Keep up to so many partitions; what is above that goes to the pool."""
    kept: dict[bytes, frozenset[int]] = {}
    for topic_id, partitions in previous.items():
        if topic_id not in topic_ids:
            continue
        if len(partitions) <= quota:
            kept[topic_id] = partitions
            quota -= len(partitions)
            continue
        in_order = sorted(partitions)
        if quota:
            kept[topic_id] = frozenset(in_order[:quota])
        pool.add(topic_id, in_order[quota:])
        quota = 0
    return _Share(kept, quota)
