"""The clients of a simulation that have no transactions, and which of them take part in a seed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random

import attrs
import trio

from tests.devtools.history.history import History
from tests.devtools.world.askers import Asker
from tests.devtools.world.producers import IdempotentProducer, PlainProducer
from tests.devtools.world.topic_clients import Grower, Recreator
from tests.devtools.world.workload import Committer, Connect, Deleter, Reader, Topic

PRODUCER_MAX_COUNT = 2
PART_PROBABILITY = 0.5
GROWTH_MAX_COUNT = 2

Run = Callable[[], Awaitable[None]]


@attrs.define(eq=False, kw_only=True)
class PlainClients:
    """Makes them. `connect_any` may reach a broker that has been taken over from, `connect_newest` does not.

    is_taken_over: in this seed what was acknowledged may be lost with a disk.
    keys_count: of a partition of the topic that stays; None if each record has its own.
    """

    connect_newest: Connect
    connect_any: Connect
    history: History
    random: Random
    swarm: Random  # who takes part
    is_taken_over: bool
    keys_count: int | None = None
    readers: list[Reader] = attrs.field(factory=list, init=False)

    def _takes_part(self) -> bool:
        """Most clients are in some seeds only: a seed costs less, and what others hide is seen (swarm testing)."""
        return self.swarm.random() < PART_PROBABILITY

    def start_readers(self, nursery: trio.Nursery, topic: Topic) -> None:
        nursery.start_soon(self.reader("follower", topic).run)
        if self._takes_part():
            nursery.start_soon(self.asker(topic).run)

    def writers(self, topic: Topic, stopping: trio.Event, *, is_kept: bool, others: Sequence[Run]) -> Iterator[Run]:
        """What loads the broker, but for transactions; `is_kept` says that nobody else deletes from the topic."""
        for number in range(self.swarm.randint(1, PRODUCER_MAX_COUNT)):
            yield self.producer(f"p{number}", topic, stopping).run
        chosen: list[Run] = [self.plain_producer("plain", topic, stopping).run, others[0]]
        if is_kept:
            chosen.append(self.deleter(topic, stopping).run)
        if not self.is_taken_over:
            chosen += [self.grower(topic, stopping).run, others[1]]
        yield from (each for each in chosen if self._takes_part())

    def producer(
        self, name: str, topic: Topic, stopping: trio.Event, *, connect: Connect | None = None
    ) -> IdempotentProducer:
        anybody = self.connect_newest if self.is_taken_over else self.connect_any
        return IdempotentProducer(
            name=name,
            topic=topic,
            connect=connect or anybody,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=self.random.choice([0.02, 0.1]),
            keys_count=self.keys_count,
            begins_anew=self.is_taken_over,
        )

    def plain_producer(self, name: str, topic: Topic, stopping: trio.Event) -> PlainProducer:
        return PlainProducer(
            name=name,
            topic=topic,
            connect=self.connect_newest if self.is_taken_over else self.connect_any,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=self.random.choice([0.02, 0.1]),
            keys_count=self.keys_count,
        )

    def reader(self, name: str, topic: Topic) -> Reader:
        reader = Reader(name=name, topic=topic, connect=self.connect_newest, history=self.history)
        self.readers.append(reader)
        return reader

    def asker(self, topic: Topic) -> Asker:
        return Asker(
            topic=topic,
            connect=self.connect_newest,
            history=self.history,
            random=Random(self.random.random()),
            pause_max_seconds=0.2,
        )

    def grower(self, topic: Topic, stopping: trio.Event) -> Grower:
        return Grower(
            topic=topic,
            connect=self.connect_newest,
            random=Random(self.random.random()),
            stopping=stopping,
            partitions_max_count=topic.partition_count + self.random.randint(0, GROWTH_MAX_COUNT),
            pause_max_seconds=2.0,
        )

    def recreator(self, stopping: trio.Event) -> Recreator:
        return Recreator(
            name="temporary",
            connect=self.connect_newest,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            life_max_seconds=self.random.choice([0.1, 1.0]),
        )

    def committer(self, topic: Topic, stopping: trio.Event) -> Committer:
        return Committer(
            group="billing",
            topic=topic,
            connect=self.connect_newest,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
        )

    def deleter(self, topic: Topic, stopping: trio.Event) -> Deleter:
        return Deleter(
            topic=topic,
            connect=self.connect_newest,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=self.random.choice([0.02, 0.2]),
        )
