"""DescribeLogDirs (35): how large partitions are, and the space that is left.

v1  (lowest version)
v2  flexible
v3  an error code for the whole answer
v4  total and usable bytes of the volume (KIP-827)

There is one log directory, the object store. The volume is that of the data directory, where the write-ahead log is:
what can fill up. A partition's size is that of its record batches, in the bucket and not there yet.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

import attrs
import trio

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.topics import Topic, TopicRegistry
from kafscale.concurrency.turns import Turns, distinct_partitions
from kafscale.log.log import Log
from kafscale.wire.messages.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN_BYTES = -1


@attrs.frozen
class _Volume:
    total_bytes: int
    usable_bytes: int


async def handle(services: Services, call: Call, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    turns = Turns()
    topics = [
        await _sizes(services.log, topic, indexes, turns) for topic, indexes in await _asked(services.topics, request)
    ]
    volume = await trio.to_thread.run_sync(_volume, services.settings.data_dir)
    result = DescribeLogDirsResult(
        log_dir=str(services.settings.store),
        topics=[topic for topic in topics if topic.partitions],
        total_bytes=volume.total_bytes,
        usable_bytes=volume.usable_bytes,
    )
    return DescribeLogDirsResponse(results=[result])


async def _asked(topics: TopicRegistry, request: DescribeLogDirsRequest) -> Collection[tuple[Topic, Collection[int]]]:
    """Topics that exist, each once, and the partitions that are asked for."""
    if request.topics is None:
        return [(topic, range(topic.partition_count)) for topic in topics.all()]
    asked = await distinct_partitions(((wanted.topic, wanted.partitions) for wanted in request.topics), int)
    return [(topic, sorted(indexes)) for name, indexes in asked.items() if (topic := topics.get(name)) is not None]


async def _sizes(log: Log, topic: Topic, indexes: Collection[int], turns: Turns) -> DescribeLogDirsTopic:
    """Return the sizes of a topic's partitions; those that do not exist are left out, as in Kafka."""
    found = []
    for index in indexes:
        await turns.step()
        partition = log.partition(topic.topic_id, index)
        if partition is not None:
            found.append(DescribeLogDirsPartition(partition_index=index, partition_size=partition.size_bytes))
    return DescribeLogDirsTopic(name=topic.name, partitions=found)


def _volume(data_dir: Path) -> _Volume:
    try:
        usage = shutil.disk_usage(data_dir)
    except OSError:
        return _Volume(UNKNOWN_BYTES, UNKNOWN_BYTES)
    return _Volume(usage.total, usage.free)


API = Api(35, "DescribeLogDirs", 1, 4, DescribeLogDirsRequest, DescribeLogDirsResponse, handle)
