"""Uniform: members get equally many partitions, to within one, and keep what they had as far as that allows.

Same subscriptions: with P partitions and M members each gets P // M, and P % M of them one more. Each member first
keeps what it had, up to its share; free partitions fill up members below theirs. Cost: linear in members and
partitions.

Different subscriptions: each member keeps what it had of topics that it still subscribes to. Free partitions go, topic
by topic, to the subscriber with the fewest; topics with few subscribers for their partitions come first, since others
can make up for them. Then partitions move, topic by topic, from the subscriber with the most to the one with the fewest
until they are within one, in at most ROUNDS_MAX_COUNT rounds. Subscriptions that overlap in a chain may end further
apart, as in Kafka. Cost: (members' topics + partitions) * log(members), times the rounds; two rounds are the rule.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

import attrs

from kafscale.cluster.groups.assignors.spec import NO_PARTITIONS, NONE_OF_TOPIC, GroupSpec, Partitions


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


@attrs.define(eq=False, repr=False)
class _Share:
    """Partitions that a member keeps, and how many more it may get."""

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
    """Keep up to `quota` partitions; the others go to the pool."""
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


ROUNDS_MAX_COUNT = 16
NOBODY = -1


def assign_heterogeneous(spec: GroupSpec) -> Mapping[str, Partitions]:
    """Return what each member is to have."""
    return _Balancer.of(spec).assign()


@attrs.frozen
class _BalancedTopic:
    """One topic while it is shared out: members are numbers, `owners` has one for each partition."""

    topic_id: bytes
    subscribers: list[int]
    owners: list[int]

    @property
    def order(self) -> tuple[float, int, bytes]:
        """Return what topics are sorted by: those with the most partitions for each subscriber come first."""
        return -len(self.owners) / len(self.subscribers), len(self.subscribers), self.topic_id


@attrs.define(eq=False, repr=False)
class _Balancer:
    spec: GroupSpec
    topics: list[_BalancedTopic]
    sizes: list[int]  # how many partitions each member has

    @classmethod
    def of(cls, spec: GroupSpec) -> _Balancer:
        """Number the members, and begin with what each had of the topics that it subscribes to."""
        topics = {
            topic_id: _BalancedTopic(topic_id, [], [NOBODY] * count)
            for topic_id, count in spec.partition_counts.items()
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
        """Return the subscribers, those with the fewest partitions first; among equals this order stays in force."""
        return sorted(topic.subscribers, key=lambda index: (self.sizes[index], index))

    def _share_out(self, topic: _BalancedTopic) -> None:
        """Give each free partition to the subscriber with the fewest partitions."""
        unassigned = [partition for partition, owner in enumerate(topic.owners) if owner == NOBODY]
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
        """Go round the topics until a whole round moved nothing."""
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


def assign_uniformly(spec: GroupSpec) -> Mapping[str, Partitions]:
    """Return what each member is to have."""
    return assign_homogeneous(spec) if spec.is_homogeneous else assign_heterogeneous(spec)
