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
from collections.abc import Iterable
from pathlib import Path

import attrs
import trio

from kafscale.api.calls import Api, Call
from kafscale.api.services import Services
from kafscale.cluster.topics.topics import Topic, TopicRegistry
from kafscale.log.log import Log
from kafscale.wire.messages.describe_log_dirs import (
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
    topics = [_sizes(services.log, topic, indexes) for topic, indexes in _asked(services.topics, request)]
    volume = await trio.to_thread.run_sync(_volume, services.settings.data_dir)
    result = DescribeLogDirsResult(
        log_dir=str(services.settings.store),
        topics=[topic for topic in topics if topic.partitions],
        total_bytes=volume.total_bytes,
        usable_bytes=volume.usable_bytes,
    )
    return DescribeLogDirsResponse(results=[result])


def _asked(topics: TopicRegistry, request: DescribeLogDirsRequest) -> list[tuple[Topic, Iterable[int]]]:
    """Topics that exist, each once, and the partitions that are asked for."""
    if request.topics is None:
        return [(topic, range(topic.partition_count)) for topic in topics.all()]
    asked: dict[str, set[int]] = {}
    for wanted in request.topics:
        asked.setdefault(wanted.topic, set()).update(wanted.partitions)
    return [(topic, sorted(indexes)) for name, indexes in asked.items() if (topic := topics.get(name)) is not None]


def _sizes(log: Log, topic: Topic, indexes: Iterable[int]) -> DescribeLogDirsTopic:
    """Without the partitions that do not exist, as in Kafka."""
    found = [
        DescribeLogDirsPartition(partition_index=index, partition_size=partition.size_bytes)
        for index in indexes
        if (partition := log.partition(topic.topic_id, index)) is not None
    ]
    return DescribeLogDirsTopic(name=topic.name, partitions=found)


def _volume(data_dir: Path) -> _Volume:
    try:
        usage = shutil.disk_usage(data_dir)
    except OSError:
        return _Volume(UNKNOWN_BYTES, UNKNOWN_BYTES)
    return _Volume(usage.total, usage.free)


API = Api(35, "DescribeLogDirs", 1, 4, DescribeLogDirsRequest, DescribeLogDirsResponse, handle)
