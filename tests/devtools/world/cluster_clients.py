"""The clients of a simulated cluster, and a client that moves partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.devtools.history.history import History
from tests.devtools.world.classic_members import ClassicMembers
from tests.devtools.world.consumer_members import GroupMembers, MembersOfGroup
from tests.devtools.world.extent import Extent
from tests.devtools.world.plain_clients import PlainClients
from tests.devtools.world.recreator import ClusterRecreator
from tests.devtools.world.routes import Routes
from tests.devtools.world.simulated_broker import SimulatedBroker
from tests.devtools.world.spread_connection import SpreadConnection
from tests.devtools.world.temporary_topic import TemporaryTopic
from tests.devtools.world.transactional.clients import TopicKind, TransactionalClients
from tests.devtools.world.visitor import Visitor
from tests.devtools.world.workload import Connect, Topic, reconnecting

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
        return PlainClients(
            routes=self.routes,
            history=self.history,
            random=random,
            knows=self._knows,
            reads_each=self.extent.reads_often,
            askers_count=self.extent.askers_count,
            groups=groups,
            stopping=self.stopping,
        )

    def members(self, random: Random, *, session_seconds: float) -> Sequence[MembersOfGroup]:
        connect, note = self.routes.to_all(may_be_stale=False), self.history.note
        how: dict[str, Any] = {"coordinates": self._coordinates, "knows": self._knows}
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
            knows=self._knows,
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
            knows=self._knows,
        )
        visitor = Visitor(
            name=recreator.name,
            topics=lambda: recreator.topics,
            connect=self.routes.to_all(may_be_stale=False),
            history=self.history,
            random=Random(random.random()),
            knows=self._knows,
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

    def _knows(self, connection: Connection, topic: Topic, index: int) -> bool:
        assert isinstance(connection, SpreadConnection)
        life = connection.leader_life(topic.name, index)
        return life is not None and self.leads(life, topic, index)

    def _coordinates(self, connection: Connection, group: str) -> bool:
        assert isinstance(connection, SpreadConnection)
        life = connection.coordinator_life(group)
        return life is not None and self.coordinates(life, group)
