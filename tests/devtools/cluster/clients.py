"""The clients of a simulated cluster, and which of them take part in a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.devtools.cluster.routes import Routes
from tests.devtools.cluster.spread import SpreadConnection
from tests.devtools.cluster.topics import ClusterRecreator
from tests.devtools.cluster.visitor import Visitor
from tests.devtools.history import History
from tests.devtools.simulated_broker import SimulatedBroker
from tests.devtools.simulated_clients import PART_PROBABILITY, Run
from tests.devtools.transactional.clients import TopicKind, TransactionalClients
from tests.devtools.workload import Committer, Connect, Reader, Topic, reconnecting
from tests.devtools.workload_classic import ClassicMembers
from tests.devtools.workload_members import GroupMembers, MembersOfGroup
from tests.devtools.workload_producers import IdempotentProducer, PlainProducer
from tests.devtools.workload_questions import EpochAsker

PRODUCERS_MAX_COUNT = 2  # of a partition
PAUSES_SECONDS = [0.2, 1.0]
READER_PAUSE_SECONDS = 0.3
ASKER_PAUSE_MAX_SECONDS = 1.0  # between questions about all partitions
TRANSACTIONS_PACE = 5.0
MOVE_MEAN_SECONDS = 1.5
GROUP = "billing"
MEMBER_SESSIONS_SECONDS = [2.0, 10.0]
MEMBERS_PACE = 5.0
LIVES_OF_TOPIC_MAX_SECONDS = [2.0, 6.0]
BEHIND_MAX_SECONDS = 60.0  # until every broker must have heard of a deletion


@attrs.define(eq=False, kw_only=True)
class Mover:
    """Has partitions of any of these topics led by other brokers, by Kafka's own request."""

    topics: Sequence[Topic]
    connect: Connect
    broker_ids: list[int]
    random: Random
    stopping: trio.Event

    async def run(self) -> None:
        """Raises KafkaError for a refusal that can't be retried."""
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
    """Makes them. `leads` tells whether a broker leads a partition at that moment, `coordinates` a group."""

    routes: Routes
    history: History
    random: Random
    broker_ids: list[int]
    leads: Callable[[SimulatedBroker, Topic, int], bool]
    coordinates: Callable[[SimulatedBroker, str], bool]
    keys_count: int | None = None

    def transactional(self, kinds: Sequence[TopicKind], random: Random) -> TransactionalClients:
        """Make those that write in transactions."""
        return TransactionalClients(
            connect=self.routes.to_all(may_be_stale=True),
            connect_newest=self.routes.to_all(may_be_stale=False),
            history=self.history,
            random=random,
            kinds=kinds,
            has_lost=False,
            knows=self._knows,
            pace=TRANSACTIONS_PACE,
        )

    def readers(self, name: str, topic: Topic) -> list[Reader]:
        """Make a reader of each partition."""
        return [self._reader(name, topic, index) for index in range(topic.partition_count)]

    def followers(self, topic: Topic) -> Iterator[Run]:
        """Make who looks at a topic for as long as the run lasts."""
        for reader in self.readers("follower", topic):
            yield reader.run
        if self._takes_part():
            asker = EpochAsker(
                topic=topic,
                connect=self.routes.to_all(may_be_stale=True),
                history=self.history,
                random=Random(self.random.random()),
                pause_max_seconds=ASKER_PAUSE_MAX_SECONDS,
            )
            yield asker.run

    def writers(self, topic: Topic, others: Sequence[Topic], stopping: trio.Event) -> Iterator[Run]:
        """Make what loads the brokers, and moves partitions, of other topics too."""
        for index in range(topic.partition_count):
            for number in range(self.random.randint(0, PRODUCERS_MAX_COUNT)):
                yield self._producer(f"p{number}", topic, index, stopping).run
            if self._takes_part():
                yield self._plain_producer(topic, index, stopping).run
        if self._takes_part():
            yield self._mover([topic, *others], stopping).run

    def committer(self, topic: Topic, stopping: trio.Event) -> Committer:
        """Make who commits offsets of a group, which takes part in every seed."""
        return Committer(
            group=GROUP,
            topic=topic,
            connect=self.routes.to_coordinator(GROUP),
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=0.5,
        )

    def members(self, random: Random, *, session_seconds: float) -> Sequence[MembersOfGroup]:
        """Make the members of a group of each protocol; the brokers have this session for Kafka 4's."""
        connect, note = self.routes.to_all(may_be_stale=False), self.history.note
        how: dict[str, Any] = {"coordinates": self._coordinates, "knows": self._knows}
        return [
            GroupMembers.of(
                connect, self.history, random, note, sessions_seconds=[session_seconds], pace=MEMBERS_PACE, **how
            ),
            ClassicMembers.of(connect, self.history, random, note, sessions_seconds=MEMBER_SESSIONS_SECONDS, **how),
        ]

    def recreator(self, random: Random, stopping: trio.Event) -> ClusterRecreator:
        """Make who has a topic deleted, and creates it anew."""
        return ClusterRecreator(
            name="temporary",
            connect=self.routes.to_all(may_be_stale=True),
            routes=self.routes,
            history=self.history,
            random=random,
            stopping=stopping,
            life_max_seconds=random.choice(LIVES_OF_TOPIC_MAX_SECONDS),
            behind_max_seconds=BEHIND_MAX_SECONDS,
            knows=self._knows,
        )

    def visitor(self, recreator: ClusterRecreator) -> Visitor:
        """Make the member of a group that reads the topic which is created anew."""
        return Visitor(
            name=recreator.name,
            topics=lambda: recreator.topics,
            connect=self.routes.to_all(may_be_stale=False),
            history=self.history,
            random=Random(recreator.random.random()),
            knows=self._knows,
            coordinates=self._coordinates,
        )

    def _takes_part(self) -> bool:
        return self.random.random() < PART_PROBABILITY

    def _reader(self, name: str, topic: Topic, index: int) -> Reader:
        return Reader(
            name=name,
            topic=topic,
            connect=self.routes.to_all(may_be_stale=True),
            history=self.history,
            partitions=[index],
            knows=self._knows,
            pause_seconds=READER_PAUSE_SECONDS,
        )

    def _knows(self, connection: Connection, topic: Topic, index: int) -> bool:
        assert isinstance(connection, SpreadConnection)
        life = connection.leader_life(topic.name, index)
        return life is not None and self.leads(life, topic, index)

    def _coordinates(self, connection: Connection, group: str) -> bool:
        assert isinstance(connection, SpreadConnection)
        life = connection.coordinator_life(group)
        return life is not None and self.coordinates(life, group)

    def _producer(self, name: str, topic: Topic, index: int, stopping: trio.Event) -> IdempotentProducer:
        return IdempotentProducer(
            name=f"{name}-{topic.label}-{index}",
            topic=topic,
            connect=self.routes.to_leader(topic, index),
            connect_for_id=self.routes.to_any if self._takes_part() else None,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=self.random.choice(PAUSES_SECONDS),
            keys_count=self.keys_count,
            partitions=[index],
        )

    def _plain_producer(self, topic: Topic, index: int, stopping: trio.Event) -> PlainProducer:
        return PlainProducer(
            name=f"plain-{topic.label}-{index}",
            topic=topic,
            connect=self.routes.to_leader(topic, index),
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=self.random.choice(PAUSES_SECONDS),
            keys_count=self.keys_count,
            partitions=[index],
        )

    def _mover(self, topics: Sequence[Topic], stopping: trio.Event) -> Mover:
        return Mover(
            topics=topics,
            connect=self.routes.to_any,
            broker_ids=self.broker_ids,
            random=Random(self.random.random()),
            stopping=stopping,
        )
