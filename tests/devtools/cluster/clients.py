"""The clients of a simulated cluster, and which of them take part in a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

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
from tests.devtools.history import History
from tests.devtools.simulated_broker import SimulatedBroker
from tests.devtools.simulated_clients import PART_PROBABILITY, Run
from tests.devtools.transactional.clients import TopicKind, TransactionalClients
from tests.devtools.workload import Committer, Connect, Reader, Topic, reconnecting
from tests.devtools.workload_producers import IdempotentProducer, PlainProducer

PRODUCERS_MAX_COUNT = 2  # of a partition
PAUSES_SECONDS = [0.2, 1.0]
READER_PAUSE_SECONDS = 0.3
TRANSACTIONS_PACE = 5.0
MOVE_MEAN_SECONDS = 1.5
GROUP = "billing"


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
    """Makes them. `leads` tells whether a broker leads a partition at that moment."""

    routes: Routes
    history: History
    random: Random
    broker_ids: list[int]
    leads: Callable[[SimulatedBroker, Topic, int], bool]
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
