"""The clients of a simulated cluster, and a client that moves partitions.

Those without transactions share one topic: idempotent and plain producers find the leader of their partition as clients
do, readers follow the topic, a group commits offsets, and members of other groups may share the partitions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.errors import BrokerUnavailable
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.devtools.history.history import History
from tests.devtools.world.askers import EpochAsker
from tests.devtools.world.classic_members import ClassicMembers
from tests.devtools.world.consumer_members import GroupMembers, MembersOfGroup
from tests.devtools.world.extent import Extent
from tests.devtools.world.group_offsets import Committer
from tests.devtools.world.producers import IdempotentProducer, PlainProducer
from tests.devtools.world.routes import Routes, SpreadConnection
from tests.devtools.world.simulated_broker import SimulatedBroker
from tests.devtools.world.topic_clients import COMPACTED, FORGETFUL, ClusterRecreator, create_topic
from tests.devtools.world.transactional.clients import TopicKind, TransactionalClients
from tests.devtools.world.visitor import TemporaryTopic, Visitor
from tests.devtools.world.workload import PART_PROBABILITY, Connect, Reader, Run, Topic, reconnecting

TRANSACTIONS_PACE = 5.0
MOVE_MEAN_SECONDS = 1.5
MEMBERS_PACE = 5.0
BEHIND_MAX_SECONDS = 60.0  # until every broker must have heard of a deletion


@attrs.define(eq=False, kw_only=True)
class Mover:
    """Client that moves partitions of these topics to other brokers, by AlterPartitionReassignments."""

    topics: Sequence[Topic]
    connect: Connect
    broker_ids: list[int]
    random: Random
    stopping: trio.Event

    async def run(self) -> None:
        await reconnecting(self.connect, self._use, while_true=lambda: not self.stopping.is_set())

    async def _use(self, connection: Connection) -> None:
        while not self.stopping.is_set():
            with trio.move_on_after(self.random.expovariate(1 / MOVE_MEAN_SECONDS)):
                await self.stopping.wait()
            topic = self.random.choice(self.topics)
            index, broker_id = self.random.randrange(topic.partition_count), self.random.choice(self.broker_ids)
            wanted = ReassignablePartition(partition_index=index, replicas=[broker_id])
            topics = [ReassignableTopic(name=topic.name, partitions=[wanted])]
            request = AlterPartitionReassignmentsRequest(timeout_ms=1_000, topics=topics)
            await connection.request(request, AlterPartitionReassignmentsResponse)


@attrs.define(eq=False, kw_only=True)
class ClusterClients:
    """Makes the clients. `leads` tells whether a broker leads a partition at that moment, `coordinates` whether it
    coordinates a group. All writers end at `stopping`.
    """

    routes: Routes
    history: History
    broker_ids: list[int]
    leads: Callable[[SimulatedBroker, Topic, int], bool]
    coordinates: Callable[[SimulatedBroker, str], bool]
    extent: Extent
    stopping: trio.Event

    def plain(self, random: Random, groups: Sequence[MembersOfGroup]) -> PlainClients:
        return PlainClients(self, random, groups)

    def members(self, random: Random, *, session_seconds: float) -> Sequence[MembersOfGroup]:
        connect, note = self.routes.to_all(may_be_stale=False), self.history.note
        how: dict[str, Any] = {"coordinates": self._coordinates, "knows": self.knows}
        sessions_seconds = self.extent.member_sessions_seconds
        return [
            GroupMembers.of(
                connect, self.history, random, note, sessions_seconds=[session_seconds], pace=MEMBERS_PACE, **how
            ),
            ClassicMembers.of(connect, self.history, random, note, sessions_seconds=sessions_seconds, **how),
        ]

    def transactional(self, random: Random, kinds: Sequence[TopicKind]) -> TransactionalClients:
        return TransactionalClients(
            connect=self.routes.to_all(may_be_stale=True),
            connect_newest=self.routes.to_all(may_be_stale=False),
            history=self.history,
            random=random,
            kinds=kinds,
            has_lost=False,
            knows=self.knows,
            pace=TRANSACTIONS_PACE,
        )

    def temporary(self, random: Random) -> TemporaryTopic:
        recreator = ClusterRecreator(
            name="temporary",
            connect=self.routes.to_all(may_be_stale=True),
            routes=self.routes,
            history=self.history,
            random=random,
            stopping=self.stopping,
            life_max_seconds=random.choice(self.extent.topic_life_max_seconds),
            behind_max_seconds=BEHIND_MAX_SECONDS,
            knows=self.knows,
        )
        visitor = Visitor(
            name=recreator.name,
            topics=lambda: recreator.topics,
            connect=self.routes.to_all(may_be_stale=False),
            history=self.history,
            random=Random(random.random()),
            knows=self.knows,
            coordinates=self._coordinates,
        )
        return TemporaryTopic(recreator, visitor)

    def mover(self, topics: Sequence[Topic], random: Random) -> Mover:
        return Mover(
            topics=topics,
            connect=self.routes.to_any,
            broker_ids=self.broker_ids,
            random=random,
            stopping=self.stopping,
        )

    def knows(self, connection: Connection, topic: Topic, index: int) -> bool:
        assert isinstance(connection, SpreadConnection)
        life = connection.leader_life(topic.name, index)
        return life is not None and self.leads(life, topic, index)

    def _coordinates(self, connection: Connection, group: str) -> bool:
        assert isinstance(connection, SpreadConnection)
        life = connection.coordinator_life(group)
        return life is not None and self.coordinates(life, group)


PRODUCERS_MAX_COUNT = 2  # of a partition
PAUSES_SECONDS = [0.2, 1.0]
READER_PAUSE_SECONDS = 0.3
ASKER_PAUSE_MAX_SECONDS = 1.0  # between questions about all partitions
RETRY_SECONDS = 0.1
GROUP = "billing"


@attrs.define(eq=False)
class PlainClients:
    cluster: ClusterClients
    random: Random
    groups: Sequence[MembersOfGroup]
    topic: Topic = attrs.field(init=False)
    _keys_count: int | None = attrs.field(default=None, init=False)
    _committer: Committer | None = attrs.field(default=None, init=False)

    async def create_topics(self) -> None:
        kinds: list[tuple[Mapping[str, str], int | None]] = [({}, None), ({}, None), (COMPACTED, 20), (FORGETFUL, 20)]
        configs, self._keys_count = self.random.choice(kinds)
        self.cluster.history.tombstones_may_go = configs is FORGETFUL
        self.topic = await create_topic(self.cluster.routes.to_any, "orders", configs)

    @property
    def all_topics(self) -> Sequence[Topic]:
        return [self.topic]

    def start_readers(self, nursery: trio.Nursery) -> None:
        for reader in self._readers("follower"):
            nursery.start_soon(reader.run)
        for _ in range(self.cluster.extent.askers_count or int(self._takes_part())):
            nursery.start_soon(self._epoch_asker().run)
        for group in self.groups:
            group.start(nursery, self.topic, self.cluster.stopping)

    def start_writers(self, nursery: trio.Nursery, stopping: trio.Event) -> None:
        assert stopping is self.cluster.stopping
        self._committer = self._make_committer()
        nursery.start_soon(self._committer.run)
        for run in self._producers():
            nursery.start_soon(run)

    async def wait_settled(self, name: str) -> None:
        async with trio.open_nursery() as nursery:
            for group in self.groups:
                nursery.start_soon(group.wait_agreed)

    async def read_back(self, name: str) -> None:
        """Read everything, and check the group's committed offsets. Raises KafkaError."""
        for reader in self._readers(name):
            await reader.read_to_end()
        for index in range(self.topic.partition_count):
            self.cluster.history.has_read_all(name, self.topic.partition_name(index))
        assert self._committer is not None
        for check in (self._committer.check, *(group.check_offsets for group in self.groups)):
            await _checked(check)

    def problems(self) -> Sequence[str]:
        return [problem for group in self.groups for problem in group.seen.problems]

    def _takes_part(self) -> bool:
        return self.random.random() < PART_PROBABILITY

    def _readers(self, name: str) -> list[Reader]:
        if not self.cluster.extent.reads_often:
            return [self._reader(name, None)]
        return [self._reader(name, [index]) for index in range(self.topic.partition_count)]

    def _reader(self, name: str, partitions: Sequence[int] | None) -> Reader:
        return Reader(
            name=name,
            topic=self.topic,
            connect=self.cluster.routes.to_all(may_be_stale=True),
            history=self.cluster.history,
            partitions=partitions,
            knows=self.cluster.knows,
            pause_seconds=READER_PAUSE_SECONDS,
        )

    def _epoch_asker(self) -> EpochAsker:
        return EpochAsker(
            topic=self.topic,
            connect=self.cluster.routes.to_all(may_be_stale=True),
            history=self.cluster.history,
            random=Random(self.random.random()),
            pause_max_seconds=ASKER_PAUSE_MAX_SECONDS,
        )

    def _producers(self) -> Iterator[Run]:
        for index in range(self.topic.partition_count):
            for number in range(self.random.randint(0, PRODUCERS_MAX_COUNT)):
                yield self._idempotent(f"p{number}", index).run
            if self._takes_part():
                yield self._plain(index).run

    def _idempotent(self, name: str, index: int) -> IdempotentProducer:
        return IdempotentProducer(
            name=f"{name}-{self.topic.label}-{index}",
            topic=self.topic,
            connect=self.cluster.routes.to_leader(self.topic, index),
            connect_for_id=self.cluster.routes.to_any if self._takes_part() else None,
            history=self.cluster.history,
            random=Random(self.random.random()),
            stopping=self.cluster.stopping,
            pause_max_seconds=self.random.choice(PAUSES_SECONDS),
            keys_count=self._keys_count,
            partitions=[index],
        )

    def _plain(self, index: int) -> PlainProducer:
        return PlainProducer(
            name=f"plain-{self.topic.label}-{index}",
            topic=self.topic,
            connect=self.cluster.routes.to_leader(self.topic, index),
            history=self.cluster.history,
            random=Random(self.random.random()),
            stopping=self.cluster.stopping,
            pause_max_seconds=self.random.choice(PAUSES_SECONDS),
            keys_count=self._keys_count,
            partitions=[index],
        )

    def _make_committer(self) -> Committer:
        return Committer(
            group=GROUP,
            topic=self.topic,
            connect=self.cluster.routes.to_coordinator(GROUP),
            history=self.cluster.history,
            random=Random(self.random.random()),
            stopping=self.cluster.stopping,
            pause_max_seconds=0.5,
        )


async def _checked(check: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await check()
            return
        except BrokerUnavailable:
            await trio.sleep(RETRY_SECONDS)
