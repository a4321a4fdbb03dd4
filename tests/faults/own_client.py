"""Records of one partition by the client of the CLI, a connection for each call: for brokers that come and go."""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.client.admin import TopicToCreate, create_topic
from kafscale.client.client import connect
from kafscale.client.consumer import Consumer
from kafscale.client.producer import Producer
from kafscale.config import Address
from kafscale.wire.records import Record


async def create(address: Address, topic: str, configs: dict[str, str] | None = None) -> None:
    """Create a topic of one partition."""
    async with connect(address) as client:
        await create_topic(client, TopicToCreate(name=topic, partition_count=1, configs=configs or {}))


async def produce(address: Address, topic: str, values: Sequence[bytes]) -> None:
    """Send the values, each once the one before is acknowledged."""
    async with connect(address) as client:
        producer = Producer(client=client, topic=topic)
        for value in values:
            await producer.send([Record(key=None, value=value, timestamp_ms=1)])


async def consume(address: Address, topic: str, count: int) -> list[bytes | None]:
    """The values from the beginning on, once there are `count` of them."""
    async with connect(address) as client:
        consumer = Consumer(client=client, topic=topic, positions={0: 0})
        found: list[bytes | None] = []
        while len(found) < count:
            found += [found.record.value for found in await consumer.poll()]
        return found
