"""DescribeLogDirs (35): how large partitions are, and the space that is left.

v1  (lowest version)
v2  flexible
v3  an error code for the whole answer
v4  total and usable bytes of the volume (KIP-827)

The one log directory is the object store. The volume is that of the data directory with the write-ahead log, which can
fill up. A partition's size is that of all its record batches, in the bucket or not there yet.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

import trio

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import named_partitions
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.topics import Topic
from kafscale.concurrency.turns import Turns
from kafscale.log.log import Log
from kafscale.wire.messages.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN_BYTES = -1


async def handle(services: Services, call: Call, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    turns = Turns()
    asked = await named_partitions(
        services, None if request.topics is None else ((of.topic, of.partitions) for of in request.topics)
    )
    topics = [await _sizes(services.log, topic, sorted(indexes), turns) for topic, indexes in asked]
    total_bytes, usable_bytes = await trio.to_thread.run_sync(_volume, services.settings.data_dir)
    result = DescribeLogDirsResult(
        log_dir=str(services.settings.store),
        topics=[topic for topic in topics if topic.partitions],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return DescribeLogDirsResponse(results=[result])


async def _sizes(log: Log, topic: Topic, indexes: Collection[int], turns: Turns) -> DescribeLogDirsTopic:
    """Return the sizes of a topic's partitions, without those that do not exist, as in Kafka."""
    found = []
    for index in indexes:
        await turns.step()
        partition = log.partition(topic.topic_id, index)
        if partition is not None:
            found.append(DescribeLogDirsPartition(partition_index=index, partition_size=partition.size_bytes))
    return DescribeLogDirsTopic(name=topic.name, partitions=found)


def _volume(data_dir: Path) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(data_dir)
    except OSError:
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    return usage.total, usage.free


API = Api(35, "DescribeLogDirs", 1, 4, DescribeLogDirsRequest, DescribeLogDirsResponse, handle)
