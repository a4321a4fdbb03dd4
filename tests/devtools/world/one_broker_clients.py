"""Clients without transactions of the world of one broker: one of their topics stays, another one is recreated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import attrs
import trio

from tests.devtools.history.history import History
from tests.devtools.world.askers import Asker
from tests.devtools.world.consumer_members import GroupMembers
from tests.devtools.world.group_offsets import Committer
from tests.devtools.world.producers import IdempotentProducer, PlainProducer
from tests.devtools.world.topic_clients import COMPACTED, FORGETFUL, Grower, Recreator, create_topic
from tests.devtools.world.workload import PART_PROBABILITY, Connect, Deleter, Reader, Run, Topic

PRODUCER_MAX_COUNT = 2
GROWTH_MAX_COUNT = 2
CHECKPOINT_SECONDS = 12.0  # simulated: a checkpoint of the metadata is in the bucket
SMALL = {"retention.bytes": "20000"}


@attrs.define(eq=False, kw_only=True)
class OneBrokerClients:
    """`connect_any` may reach a superseded broker, `connect_newest` does not.

    is_taken_over: in this seed acknowledged records may be lost with a disk.
    is_there: False where the topic is created without clients.
    """

    connect_newest: Connect
    connect_any: Connect
    history: History
    random: Random
    swarm: Random  # decides which clients take part
    members: GroupMembers
    stopping: trio.Event
    is_taken_over: bool
    is_there: bool
    topic: Topic = attrs.field(init=False)
    recreator: Recreator = attrs.field(init=False)
    readers: list[Reader] = attrs.field(factory=list, init=False)
    _configs: Mapping[str, str] = attrs.field(factory=dict, init=False)
    _keys_count: int | None = attrs.field(default=None, init=False)  # of a partition; None: a key of its own each
    _committer: Committer = attrs.field(init=False)

    async def create_topics(self) -> None:
        kinds: list[tuple[Mapping[str, str], int | None]] = [({}, None), ({}, None), (COMPACTED, None), (COMPACTED, 20)]
        kinds += [(FORGETFUL, 20), *([] if self.is_taken_over else [(SMALL, None)])]
        self._configs, self._keys_count = self.random.choice(kinds)
        self.history.tombstones_may_go = self._configs is FORGETFUL
        self.topic = await create_topic(self.connect_newest, "orders", self._configs)
        if self._configs is SMALL:
            for index in range(self.topic.partition_count + GROWTH_MAX_COUNT):
                self.history.deleting(self.topic.partition_name(index), math.inf)
        if self.is_taken_over:
            await trio.sleep(CHECKPOINT_SECONDS)

    @property
    def all_topics(self) -> Sequence[Topic]:
        return [self.topic]

    def start_readers(self, nursery: trio.Nursery) -> None:
        if not self.is_there:
            return
        nursery.start_soon(self._reader("follower").run)
        self.members.start(nursery, self.topic, self.stopping)
        if self._takes_part():
            asker = Asker(
                topic=self.topic,
                connect=self.connect_newest,
                history=self.history,
                random=Random(self.random.random()),
                pause_max_seconds=0.2,
            )
            nursery.start_soon(asker.run)

    def start_writers(self, nursery: trio.Nursery, stopping: trio.Event) -> None:
        assert stopping is self.stopping
        self.recreator = Recreator(
            name="temporary",
            connect=self.connect_newest,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            life_max_seconds=self.random.choice([0.1, 1.0]),
        )
        self._committer = Committer(
            group="billing",
            topic=self.topic,
            connect=self.connect_newest,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
        )
        if self.is_there:
            for run in self._writers():
                nursery.start_soon(run)

    async def wait_settled(self, name: str) -> None:
        await self.members.wait_agreed()

    async def read_back(self, name: str) -> None:
        """Read everything, and check the committed offsets. Raises KafkaError."""
        if not self.is_there:
            return
        await self._reader(name).read_to_end()
        for index in range(self.topic.partition_count):
            self.history.has_read_all(name, self.topic.partition_name(index))
        await self._committer.check()
        await self.members.check_offsets()
        if self.recreator.topics:
            await self.recreator.read_to_end(name)

    def problems(self) -> Sequence[str]:
        return [*self.members.seen.problems, *self.recreator.faults]

    def _takes_part(self) -> bool:
        """Decide whether a client takes part: a seed costs less, and clients can't hide each other's faults (swarm
        testing).
        """
        return self.swarm.random() < PART_PROBABILITY

    def _writers(self) -> Iterator[Run]:
        for number in range(self.swarm.randint(1, PRODUCER_MAX_COUNT)):
            yield self.producer(f"p{number}", self.stopping).run
        chosen: list[Run] = [self._plain_producer().run, self._committer.run]
        if not self._configs and not self.is_taken_over:
            chosen.append(self._deleter().run)
        if not self.is_taken_over:
            chosen += [self._grower().run, self.recreator.run]
        yield from (run for run in chosen if self._takes_part())

    def producer(self, name: str, stopping: trio.Event, *, connect: Connect | None = None) -> IdempotentProducer:
        """Make an idempotent producer, which may use a superseded broker."""
        return IdempotentProducer(
            name=name,
            topic=self.topic,
            connect=connect or self._connect,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=self.random.choice([0.02, 0.1]),
            keys_count=self._keys_count,
            begins_anew=self.is_taken_over,
        )

    @property
    def _connect(self) -> Connect:
        return self.connect_newest if self.is_taken_over else self.connect_any

    def _plain_producer(self) -> PlainProducer:
        return PlainProducer(
            name="plain",
            topic=self.topic,
            connect=self._connect,
            history=self.history,
            random=Random(self.random.random()),
            stopping=self.stopping,
            pause_max_seconds=self.random.choice([0.02, 0.1]),
            keys_count=self._keys_count,
        )

    def _reader(self, name: str) -> Reader:
        reader = Reader(name=name, topic=self.topic, connect=self.connect_newest, history=self.history)
        self.readers.append(reader)
        return reader

    def _grower(self) -> Grower:
        return Grower(
            topic=self.topic,
            connect=self.connect_newest,
            random=Random(self.random.random()),
            stopping=self.stopping,
            partitions_max_count=self.topic.partition_count + self.random.randint(0, GROWTH_MAX_COUNT),
            pause_max_seconds=2.0,
        )

    def _deleter(self) -> Deleter:
        return Deleter(
            topic=self.topic,
            connect=self.connect_newest,
            history=self.history,
            random=Random(self.random.random()),
            stopping=self.stopping,
            pause_max_seconds=self.random.choice([0.02, 0.2]),
        )
