"""Routes of clients to brokers: ask any broker for a partition's leader or a group's coordinator.

The answer may be outdated. Every connection takes a moment, so that a refused client does not spin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from random import Random

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.errors import BrokerUnavailable
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.devtools.world.simulated_broker import SimulatedBroker
from tests.devtools.world.spread_connection import SpreadConnection
from tests.devtools.world.workload import Connect, Topic

PAUSE_MAX_SECONDS = 0.1
STALE_PROBABILITY = 0.3  # that a client still asks a broker that was superseded


@attrs.define(eq=False, kw_only=True)
class Routes:
    """`lives` returns the connectable lives of each broker, the newest last."""

    lives: Callable[[], Sequence[Sequence[SimulatedBroker]]]
    random: Random

    async def to_any(self) -> Connection:
        await self.pause()
        return (await (await self._any()).open_connection())[1]

    def to_leader(self, topic: Topic, index: int) -> LeaderRoute:
        return LeaderRoute(self, topic, index)

    def to_coordinator(self, group: str) -> Connect:
        async def connect() -> Connection:
            async with aclosing(await self.to_any()) as connection:
                request = FindCoordinatorRequest(coordinator_keys=[group])
                (found,) = (await connection.request(request, FindCoordinatorResponse)).coordinators
            life = await self.find(-1 if found.error_code else found.node_id, may_be_stale=False)
            return (await life.open_connection())[1]

        return connect

    def to_all(self, *, may_be_stale: bool) -> Connect:
        async def connect() -> Connection:
            await self.pause()
            life = await self._any()
            _, connection = await life.open_connection_of(SpreadConnection)
            connection.routes, connection.may_be_stale = self, may_be_stale
            return connection

        return connect

    def broker_ids(self) -> list[int]:
        """Return the brokers that can be connected to."""
        return [lives[-1].settings.broker_id for lives in self.lives() if lives]

    async def find(self, broker_id: int, *, may_be_stale: bool = True) -> SimulatedBroker:
        """Return the life that answers at a broker's address. Raises BrokerUnavailable."""
        of_it = [lives for lives in self.lives() if lives and lives[-1].settings.broker_id == broker_id]
        return await self._choose(of_it[0] if of_it else (), may_be_stale=may_be_stale)

    async def _any(self) -> SimulatedBroker:
        up = [lives for lives in self.lives() if lives]
        return await self._choose(self.random.choice(up) if up else (), may_be_stale=True)

    async def _choose(self, lives: Sequence[SimulatedBroker], *, may_be_stale: bool) -> SimulatedBroker:
        if not lives:
            await self.pause()
            raise BrokerUnavailable("no broker is there")
        is_stale = may_be_stale and len(lives) > 1 and self.random.random() < STALE_PROBABILITY
        return self.random.choice(lives[:-1]) if is_stale else lives[-1]

    async def pause(self) -> None:
        """Let a moment pass before a retry."""
        await trio.sleep(self.random.uniform(0, PAUSE_MAX_SECONDS))


@attrs.define(eq=False)
class LeaderRoute:
    routes: Routes
    topic: Topic
    index: int

    async def __call__(self) -> Connection:
        async with aclosing(await self.routes.to_any()) as connection:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=self.topic.name)])
            (found,) = (await connection.request(request, MetadataResponse)).topics
        leaders = [partition.leader_id for partition in found.partitions if partition.partition_index == self.index]
        life = await self.routes.find(leaders[0] if leaders else -1)
        return (await life.open_connection())[1]
