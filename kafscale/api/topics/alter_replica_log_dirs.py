"""AlterReplicaLogDirs (34, KIP-113): move replicas to other log directories of this broker.

v1  (lowest version) the directory that each partition is to be in
v2  flexible

The one log directory is the object store, by its name in DescribeLogDirs. Moving a partition there changes nothing; any
other directory is LOG_DIR_NOT_FOUND. As in Kafka, the last entry of a partition counts, and a partition that this
broker does not lead is REPLICA_NOT_AVAILABLE.
"""

from __future__ import annotations

from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import led_partition
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import Turns
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import LOG_DIR_NOT_FOUND, NONE, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE
from kafscale.wire.messages.replicas import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kafscale.wire.schema import mapped


async def handle(services: Services, call: Call, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    log_dir = str(services.settings.store)
    turns = Turns()
    is_found: dict[str, dict[int, bool]] = {}  # by topic and partition: its directory is found
    for directory in request.dirs:
        for topic in directory.topics:
            of_topic = is_found.setdefault(topic.name, {})
            for index in topic.partitions:
                await turns.step()
                of_topic[index] = directory.path == log_dir
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=name, partitions=mapped(partial(_result, services, name), tuple(of_topic.items()))
            )
            for name, of_topic in is_found.items()
        ]
    )


def _result(services: Services, name: str, wanted: tuple[int, bool]) -> AlterReplicaLogDirPartitionResult:
    index, is_found = wanted
    error_code = _error_code(services, name, index) if is_found else LOG_DIR_NOT_FOUND
    return AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error_code)


def _error_code(services: Services, name: str, index: int) -> int:
    try:
        led_partition(services, name, index)
    except KafkaError as exc:
        return REPLICA_NOT_AVAILABLE if exc.code == NOT_LEADER_OR_FOLLOWER else exc.code
    return NONE


API = Api(34, "AlterReplicaLogDirs", 1, 2, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, handle)
