"""Who is to lead what is new, and what should move so that all brokers lead alike. Pure, and the same on every broker.

Load is counted in partitions: those of each topic are spread evenly, and then all of them together. What somebody has
assigned to a broker is led by that one as long as it may lead, and nothing of it moves for balance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

import attrs

from kafscale.cluster.brokers.records import Placement


@attrs.frozen
class Move:
    """A partition that is to be led by another broker; `epoch` is that of its placement when this was decided."""

    topic_id: bytes
    index: int
    epoch: int
    target: int


def leaders_of_new(
    count: int, brokers: Collection[int], led: Mapping[int, int], of_topic: Mapping[int, int]
) -> list[int]:
    """Choose a leader for each of `count` new partitions of a topic.

    `led` is how many partitions each broker leads, `of_topic` how many of this topic. There is at least one broker.
    """
    total, own = Counter(led), Counter(of_topic)
    chosen: list[int] = []
    for _ in range(count):
        broker_id = min(brokers, key=lambda each: (own[each], total[each], each))
        chosen.append(broker_id)
        own[broker_id] += 1
        total[broker_id] += 1
    return chosen


def moves_for_balance(
    placements: Mapping[bytes, Sequence[Placement]], brokers: Collection[int], movable: Collection[int], max_count: int
) -> Sequence[Move]:
    """Choose partitions to move, `max_count` at most.

    `brokers` are those that may lead. Only what a broker of `movable` leads can move, which are those that serve; of
    these, who is not in `brokers` gives everything away. What is assigned to a broker goes back to it. What is on its
    way counts for where it goes.
    """
    if not brokers:
        return ()
    plan = _Plan(placements, brokers)
    moves: list[Move] = []
    for move in chain(plan.returns(movable), plan.evictions(movable)):
        if len(moves) == max_count:
            return moves
        moves.append(move)
    while len(moves) < max_count and (evening := plan.next_move(movable)) is not None:
        moves.append(evening)
    return moves


class _Plan:
    """Counts as they will be when all moves so far are done."""

    def __init__(self, placements: Mapping[bytes, Sequence[Placement]], brokers: Collection[int]) -> None:
        self.placements = placements
        self.brokers = brokers
        self.total: Counter[int] = Counter()
        self.of_topic: dict[bytes, Counter[int]] = {}
        self.free: dict[int, dict[bytes, list[int]]] = {}  # by leader and topic, last first: what may be moved
        self.away: list[tuple[bytes, int]] = []  # what is led by another broker than it is assigned to
        for topic_id, row in placements.items():
            counts = self.of_topic[topic_id] = Counter()
            for index, each in enumerate(row):
                counts[each.leader if each.target is None else each.target] += 1
                if each.target is not None:
                    continue
                if not each.replicas or each.replicas[0] not in brokers:
                    self.free.setdefault(each.leader, {}).setdefault(topic_id, []).append(index)
                elif each.leader != each.replicas[0]:
                    self.away.append((topic_id, index))
            self.total.update(counts)

    def returns(self, movable: Collection[int]) -> Iterator[Move]:
        """Yield what leads back to the broker that it is assigned to."""
        for topic_id, index in self.away:
            placement = self.placements[topic_id][index]
            if placement.leader in movable:
                yield self._move(topic_id, index, placement.replicas[0])

    def evictions(self, movable: Collection[int]) -> Iterator[Move]:
        for leader in sorted(set(movable) - set(self.brokers)):
            for topic_id in list(self.free.get(leader, {})):
                while self.free[leader][topic_id]:
                    target = min(self.brokers, key=lambda each: (self.of_topic[topic_id][each], self.total[each], each))
                    yield self._move(topic_id, self.free[leader][topic_id].pop(), target)

    def next_move(self, movable: Collection[int]) -> Move | None:
        """Choose the next move that makes it more even, or None if none does."""
        sources = [each for each in self.brokers if each in movable and any(self.free.get(each, {}).values())]
        source = max(sources, key=lambda each: self.total[each], default=None)
        target = min(self.brokers, key=lambda each: (self.total[each], each))
        if source is None or self.total[source] - self.total[target] < 2:
            return None
        topics = [topic_id for topic_id, free in self.free[source].items() if free]
        of_topic = self.of_topic
        topic_id = max(topics, key=lambda each: (of_topic[each][source] - of_topic[each][target], each))
        return self._move(topic_id, self.free[source][topic_id].pop(), target)

    def _move(self, topic_id: bytes, index: int, target: int) -> Move:
        placement = self.placements[topic_id][index]
        for counts in (self.total, self.of_topic[topic_id]):
            counts[placement.leader] -= 1
            counts[target] += 1
        return Move(topic_id, index, placement.epoch, target)
