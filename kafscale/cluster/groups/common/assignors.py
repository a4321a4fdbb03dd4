"""The assignors of consumer groups, `range` and `uniform`: functions from the members of a group to their partitions.

Range: of each topic every subscriber gets one run of partitions; the first runs are one longer where it is uneven.
Members come in the same order for every topic, static ones first, so a join by partition number works. The previous
assignment does not count. Cost: linear in partitions and in members' topics.

Uniform: members get equally many partitions, to within one, and keep what they had as far as that allows.
  Same subscriptions: with P partitions and M members each gets P // M, and P % M of them one more. Each member first
  keeps what it had, up to its share; free partitions fill up the others. Cost: linear in members and partitions.
  Different subscriptions: each member keeps its partitions of topics that it still subscribes to. Free ones go, topic
  by topic, to the subscriber with the fewest; topics with few subscribers for their partitions come first, since other
  topics can make up for them. Then partitions move, topic by topic, from the subscriber with the most to the one with
  the fewest until they are within one, in at most ROUNDS_MAX_COUNT passes. Subscriptions that overlap in a chain may
  end further apart, as in Kafka. Cost: (members' topics + partitions) * log(members), times the passes: mostly two.

`Partitions` are sets of partitions by topic id. Such a mapping never changes once it is made and has no empty set, so
two of them can be compared.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]

NO_PARTITIONS: Partitions = {}
NONE_OF_TOPIC: frozenset[int] = frozenset()


def count(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


def intersect(one: Partitions, other: Partitions) -> bool:
    """Tell whether any partition is in both."""
    return any(not partitions.isdisjoint(other.get(topic_id, ())) for topic_id, partitions in one.items())


def is_subset(one: Partitions, other: Partitions) -> bool:
    return all(partitions <= other.get(topic_id, NONE_OF_TOPIC) for topic_id, partitions in one.items())


def difference(one: Partitions, other: Partitions) -> Partitions:
    left = {topic_id: partitions - other.get(topic_id, NONE_OF_TOPIC) for topic_id, partitions in one.items()}
    return {topic_id: partitions for topic_id, partitions in left.items() if partitions}


def intersection(one: Partitions, other: Partitions) -> Partitions:
    both = {topic_id: partitions & other[topic_id] for topic_id, partitions in one.items() if topic_id in other}
    return {topic_id: partitions for topic_id, partitions in both.items() if partitions}


def union(one: Partitions, other: Partitions) -> Partitions:
    joined = dict(one)
    for topic_id, partitions in other.items():
        joined[topic_id] = partitions | joined.get(topic_id, NONE_OF_TOPIC)
    return joined


@attrs.frozen(kw_only=True)
class MemberSpec:
    """A member, with its previous target assignment. As in Kafka 4.1 no assignor looks at the rack."""

    instance_id: str | None = None
    topic_ids: frozenset[bytes]
    previous: Partitions = NO_PARTITIONS


@attrs.frozen(kw_only=True)
class GroupSpec:
    """A group: members by id, and the number of partitions of each subscribed topic.

    Each partition is in the previous assignment of one member at most, and exists.
    """

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[bytes, int]

    @property
    def is_homogeneous(self) -> bool:
        """Tell whether all members subscribe to the same topics."""
        return len({member.topic_ids for member in self.members.values()}) <= 1


Assignor: TypeAlias = Callable[[GroupSpec], Mapping[str, Partitions]]


def assign_ranges(spec: GroupSpec) -> Mapping[str, Partitions]:
    """Assign by range."""
    assignment: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in spec.members}
    members = sorted(spec.members, key=lambda member_id: _range_order(spec, member_id))
    for topic_id, subscribers in sorted(_subscribers(spec, members).items()):
        runs = _runs(spec.partition_counts[topic_id], len(subscribers))
        for member_id, run in zip(subscribers, runs, strict=False):
            assignment[member_id][topic_id] = run
    return assignment


def _subscribers(spec: GroupSpec, members: list[str]) -> Mapping[bytes, list[str]]:
    if spec.is_homogeneous:
        return dict.fromkeys(spec.members[members[0]].topic_ids if members else (), members)
    by_topic: dict[bytes, list[str]] = {}
    for member_id in members:
        for topic_id in spec.members[member_id].topic_ids:
            by_topic.setdefault(topic_id, []).append(member_id)
    return by_topic


def _runs(partition_count: int, member_count: int) -> Iterator[frozenset[int]]:
    """Cut partitions into one run for each member; members beyond the number of partitions get none."""
    share, extra_count = divmod(partition_count, member_count)
    start = 0
    while start < partition_count:
        end = start + share + (extra_count > 0)
        extra_count -= 1
        yield frozenset(range(start, end))
        start = end


def _range_order(spec: GroupSpec, member_id: str) -> tuple[bool, str]:
    instance_id = spec.members[member_id].instance_id
    return instance_id is None, instance_id or member_id


@attrs.frozen
class _Run:
    """Free partitions of one topic."""

    topic_id: bytes
    partitions: list[int]


@attrs.define(eq=False, repr=False)
class _Pool:
    """Free partitions, in the order in which they are handed out."""

    runs: list[_Run] = attrs.field(factory=list)
    _next_run: int = attrs.field(default=0, init=False)
    _next_partition: int = attrs.field(default=0, init=False)

    def add(self, topic_id: bytes, partitions: Iterable[int]) -> None:
        self.runs.append(_Run(topic_id, list(partitions)))

    def give(self, kept: Partitions, count: int) -> Partitions:
        """Return the kept partitions and up to `count` more."""
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


def assign_uniformly(spec: GroupSpec) -> Mapping[str, Partitions]:
    """Assign by uniform."""
    return _assign_homogeneous(spec) if spec.is_homogeneous else _Balancer.of(spec).assign()


def _assign_homogeneous(spec: GroupSpec) -> Mapping[str, Partitions]:
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
        assignment[member_id], room = _keep(member.previous, topic_ids, share + may_have_extra, pool)
        # An extra one that it does not have already is left for those who have, unless all that follow must take one.
        if room and may_have_extra and len(spec.members) - position > extra_left:
            room -= 1
            may_have_extra = False
        extra_left -= may_have_extra
        if room:
            unfilled[member_id] = room
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


def _keep(previous: Partitions, topic_ids: frozenset[bytes], quota: int, pool: _Pool) -> tuple[Partitions, int]:
    """Return up to `quota` kept partitions, and how many more fit; the others go to the pool."""
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
    return kept, quota


ROUNDS_MAX_COUNT = 16
FREE = -1


@attrs.frozen
class _BalancedTopic:
    """One topic while it is assigned: members are numbers, `owners` has one for each partition."""

    topic_id: bytes
    subscribers: list[int]
    owners: list[int]

    @property
    def order(self) -> tuple[float, int, bytes]:
        """Return the sort key: topics with the most partitions for each subscriber come first."""
        return -len(self.owners) / len(self.subscribers), len(self.subscribers), self.topic_id


@attrs.define(eq=False, repr=False)
class _Balancer:
    spec: GroupSpec
    topics: list[_BalancedTopic]
    sizes: list[int]  # how many partitions each member has

    @classmethod
    def of(cls, spec: GroupSpec) -> _Balancer:
        """Number the members, and begin with each member's previous partitions of its topics."""
        topics = {
            topic_id: _BalancedTopic(topic_id, [], [FREE] * count) for topic_id, count in spec.partition_counts.items()
        }
        sizes = [0] * len(spec.members)
        for index, member in enumerate(spec.members.values()):
            for topic_id in member.topic_ids:
                topics[topic_id].subscribers.append(index)
            for topic_id, partitions in member.previous.items():
                if topic_id in member.topic_ids:
                    sizes[index] += len(partitions)
                    for partition in partitions:
                        topics[topic_id].owners[partition] = index
        subscribed = [topic for topic in topics.values() if topic.subscribers]
        return cls(spec, sorted(subscribed, key=lambda topic: topic.order), sizes)

    def assign(self) -> Mapping[str, Partitions]:
        for topic in self.topics:
            self._share_out(topic)
        self._balance()
        members: list[dict[bytes, list[int]]] = [{} for _ in self.sizes]
        for topic in self.topics:
            for partition, owner in enumerate(topic.owners):
                members[owner].setdefault(topic.topic_id, []).append(partition)
        return {
            member_id: {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}
            for member_id, topics in zip(self.spec.members, members, strict=True)
        }

    def _by_load(self, topic: _BalancedTopic) -> list[int]:
        return sorted(topic.subscribers, key=lambda index: (self.sizes[index], index))

    def _share_out(self, topic: _BalancedTopic) -> None:
        """Give each free partition to the subscriber with the fewest partitions."""
        unassigned = [partition for partition, owner in enumerate(topic.owners) if owner == FREE]
        if not unassigned:
            return
        members = self._by_load(topic)
        fewest = [(self.sizes[index], rank) for rank, index in enumerate(members)]  # sorted, and so a heap
        for partition in unassigned:
            size, rank = fewest[0]
            heapq.heapreplace(fewest, (size + 1, rank))
            topic.owners[partition] = members[rank]
            self.sizes[members[rank]] += 1

    def _balance(self) -> None:
        still = 0  # topics in a row of which nothing moved
        for _ in range(ROUNDS_MAX_COUNT):
            for topic in self.topics:
                still = 0 if self._level(topic) else still + 1
                if still >= len(self.topics):
                    return

    def _level(self, topic: _BalancedTopic) -> bool:
        """Move partitions of a topic from the fullest to the emptiest subscriber until they are within one."""
        sizes = [self.sizes[index] for index in topic.subscribers]
        if max(sizes) - min(sizes) <= 1:
            return False
        members = self._by_load(topic)
        owned: dict[int, list[int]] = {}
        for partition, owner in enumerate(topic.owners):
            owned.setdefault(owner, []).append(partition)
        fewest = [(self.sizes[index], rank) for rank, index in enumerate(members)]
        most = [(-self.sizes[index], -rank) for rank, index in enumerate(members) if index in owned]
        heapq.heapify(most)
        moved = False
        while most:
            giver_size, giver_rank = -most[0][0], -most[0][1]
            taker_size, taker_rank = fewest[0]
            # A giver is still among the takers with its former size, so its turn comes after all others'.
            if giver_size - taker_size <= 1:
                break
            giver, taker = members[giver_rank], members[taker_rank]
            topic.owners[owned[giver].pop()] = taker
            self.sizes[giver] -= 1
            self.sizes[taker] += 1
            heapq.heapreplace(fewest, (taker_size + 1, taker_rank))
            if owned[giver]:
                heapq.heapreplace(most, (1 - giver_size, -giver_rank))
            else:
                heapq.heappop(most)
            moved = True
        return moved
