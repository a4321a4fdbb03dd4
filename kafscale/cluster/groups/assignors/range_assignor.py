"""Range: of each topic every subscriber gets one run of partitions, the first ones getting one more where it is uneven.

Members come in the same order for every topic, static ones first, so that topics with equally many partitions and the
same subscribers are shared out alike, and a join by partition number works. What members had before does not count.

Cost: linear in partitions and in members' topics; where all subscribe to the same topics, in partitions and members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from kafscale.cluster.groups.assignors.spec import GroupSpec, Partitions


def assign_ranges(spec: GroupSpec) -> Mapping[str, Partitions]:
    """Return what each member is to have."""
    assignment: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in spec.members}
    members = sorted(spec.members, key=lambda member_id: _order(spec, member_id))
    for topic in _subscribers(spec, members):
        runs = _runs(spec.partition_counts[topic.topic_id], len(topic.members))
        for member_id, run in zip(topic.members, runs, strict=False):
            assignment[member_id][topic.topic_id] = run
    return assignment


@attrs.frozen
class _Subscribed:
    topic_id: bytes
    members: Sequence[str]


def _subscribers(spec: GroupSpec, members: Sequence[str]) -> Iterable[_Subscribed]:
    if spec.is_homogeneous:
        topic_ids = spec.members[members[0]].topic_ids if members else frozenset()
        return [_Subscribed(topic_id, members) for topic_id in sorted(topic_ids)]
    by_topic: dict[bytes, list[str]] = {}
    for member_id in members:
        for topic_id in spec.members[member_id].topic_ids:
            by_topic.setdefault(topic_id, []).append(member_id)
    return [_Subscribed(topic_id, by_topic[topic_id]) for topic_id in sorted(by_topic)]


def _runs(partition_count: int, member_count: int) -> Iterator[frozenset[int]]:
    """Cut partitions into one run for each member; members beyond the number of partitions get none."""
    share, extra_count = divmod(partition_count, member_count)
    start = 0
    while start < partition_count:
        end = start + share + (extra_count > 0)
        extra_count -= 1
        yield frozenset(range(start, end))
        start = end


def _order(spec: GroupSpec, member_id: str) -> tuple[bool, str]:
    instance_id = spec.members[member_id].instance_id
    return instance_id is None, instance_id or member_id
