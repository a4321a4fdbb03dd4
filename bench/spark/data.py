"""A day of records, the same in Kafka and in a bucket.

They are spread evenly over yesterday, so that no broker's retention takes them, and come in batches of the size that
Kafka's producer fills by default. Keys are short, values do not compress.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator

import attrs
import trio

from kafscale.client import admin
from kafscale.client.client import Client, connect
from kafscale.client.producer import Producer
from kafscale.config import Address
from kafscale.wire.batch_header import set_crc
from kafscale.wire.records import Record, build_batch

DAY_MS = 24 * 3600 * 1000
HOUR_MS = DAY_MS // 24
BATCH_BYTES = 16 << 10  # Kafka: batch.size
TEMPLATES_COUNT = 16  # batches of different values, which the data consists of

_timestamps = struct.Struct(">qq")  # base and max timestamp
_TIMESTAMPS_AT = 27


def yesterday_ms() -> int:
    """The first millisecond, in UTC."""
    now_ms = time.time_ns() // 1_000_000
    return now_ms - now_ms % DAY_MS - DAY_MS


@attrs.frozen(kw_only=True)
class Shape:
    """The contents of a topic. `rows` is about how many; whole batches are written."""

    value_bytes: int
    partitions: int
    rows: int
    first_ms: int = attrs.field(factory=yesterday_ms)

    @property
    def topic(self) -> str:
        """The name."""
        return f"bench-{self.value_bytes}-{self.partitions}"

    @property
    def batch_rows(self) -> int:
        """Records of a batch."""
        return max(1, BATCH_BYTES // self.value_bytes)

    @property
    def batches_per_partition(self) -> int:
        """The same in all of them."""
        return max(1, round(self.rows / self.partitions / self.batch_rows))

    @property
    def all_rows(self) -> int:
        """Return how many the topic has in the end."""
        return self.batches_per_partition * self.partitions * self.batch_rows

    @property
    def batch_ms(self) -> float:
        """Return what a batch covers of the day."""
        return DAY_MS / self.batches_per_partition

    def __str__(self) -> str:
        size = f"{self.value_bytes // 1024} KiB" if self.value_bytes >= 1024 else f"{self.value_bytes} B"
        return f"{size}, {self.partitions} partitions"


def batches_of(shape: Shape) -> Iterator[bytearray]:
    """Iterate over the batches of one partition, each a copy of a template with timestamps of its own."""
    step_ms = shape.batch_ms / shape.batch_rows
    templates = []
    for _ in range(TEMPLATES_COUNT):
        records = [
            Record(key=b"key %06d" % number, value=os.urandom(shape.value_bytes), timestamp_ms=int(number * step_ms))
            for number in range(shape.batch_rows)
        ]
        templates.append(build_batch(records))
    for number in range(shape.batches_per_partition):
        batch = bytearray(templates[number % TEMPLATES_COUNT])
        base_ms = shape.first_ms + int(number * shape.batch_ms)
        _timestamps.pack_into(batch, _TIMESTAMPS_AT, base_ms, base_ms + int((shape.batch_rows - 1) * step_ms))
        set_crc(memoryview(batch))
        yield batch


def rows_between(shape: Shape, first_ms: int, behind_ms: int) -> int:
    """Return how many records are as late as `first_ms`, and not as late as `behind_ms`."""
    step_ms = shape.batch_ms / shape.batch_rows
    in_batch = [int(number * step_ms) for number in range(shape.batch_rows)]
    bases = [shape.first_ms + int(number * shape.batch_ms) for number in range(shape.batches_per_partition)]
    return shape.partitions * sum(first_ms <= base + offset_ms < behind_ms for base in bases for offset_ms in in_batch)


def fill(address: Address, shape: Shape) -> None:
    """Create the topic at a broker, and write it."""
    trio.run(_fill, address, shape)


async def _fill(address: Address, shape: Shape) -> None:
    async with connect(address, "bench") as client:
        await admin.create_topic(
            client, admin.TopicToCreate(name=shape.topic, partition_count=shape.partitions, replication_factor=1)
        )
        async with trio.open_nursery() as nursery:
            for partition in range(shape.partitions):
                nursery.start_soon(_fill_partition, client, shape, partition)


async def _fill_partition(client: Client, shape: Shape, partition: int) -> None:
    producer = Producer(client=client, topic=shape.topic)
    for batch in batches_of(shape):
        await producer.send_batch(partition, batch)
