"""One real broker of a cluster of three, on a clock that jumps, and a client of it; the other two are made up.

    async with several_brokers() as cluster:
        response = await cluster.ask(MetadataRequest(topics=None), MetadataResponse)

The topic `orders` has six partitions. This broker leads 0 and 3, and has nothing of the others in its log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs

from kafscale.api.handling.services import Services
from kafscale.client.connection import Connection
from kafscale.cluster.coordinator.partitions import coordinator_partition
from kafscale.cluster.membership.assignment import Leader
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Settings
from kafscale.wire.codec import encode
from tests.api.assignments import OTHER_ID, THIRD_ID, ThreeBrokers, hand_over, take_over
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings

TOPIC = "orders"
PARTITION_COUNT = 6
OWN_ID = 0
HERE = (0, 3)
ELSEWHERE = {1: OTHER_ID, 2: THIRD_ID, 4: OTHER_ID, 5: THIRD_ID}

R = TypeVar("R")


@attrs.define(eq=False)
class SeveralBrokers:
    """The broker that is real, what it believes of the others, and a client of it."""

    running: MemoryBroker
    assignment: ThreeBrokers
    client: Connection
    topic_id: bytes

    @property
    def services(self) -> Services:
        return self.running.broker.services

    async def ask(self, request: object, response_class: type[R], version: int | None = None) -> R:
        """Ask in this version; in the latest without one."""
        call = self.client.call(type(request), response_class, version=version)
        return await (await self.client.send_encoded(call, encode(request, call.version))).wait()

    async def loses(self, index: int, leader: Leader | None, topic: str = TOPIC) -> None:
        """Let another broker lead a partition that is led here; None leaves it without a leader."""
        self.assignment.others[topic, index] = leader
        await hand_over(self.running.broker, topic, index)

    async def gets(self, index: int, *, epoch: int, topic: str = TOPIC) -> None:
        """Let this broker lead a partition."""
        await take_over(self.running.broker, topic, index, epoch=epoch)


def key_in(partition: int, partition_count: int, prefix: str = "g") -> str:
    """Return a group, or a transactional id, that hashes to a partition of its internal topic."""
    found = (f"{prefix}{number}" for number in range(10_000))
    return next(key for key in found if coordinator_partition(key, partition_count) == partition)


@asynccontextmanager
async def several_brokers(settings: Settings | None = None) -> AsyncIterator[SeveralBrokers]:
    """Run the broker for the block."""
    async with memory_broker(memory_parts(), settings or memory_settings()) as running:
        assignment = ThreeBrokers.of(running.broker)
        (topic,) = await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=PARTITION_COUNT)])
        assert not isinstance(topic, Exception)
        yield SeveralBrokers(running, assignment, await running.connect(), topic.topic_id)
