"""ListOffsets (key 2), versions 1 to 7: look offsets up by time.

    2  isolation level      4  leader epochs      6  flexible encoding      7  the largest timestamp (KIP-734)

With `read_committed`, "latest" is the last stable offset.
"""

from __future__ import annotations

import logging

from kafscale.api.calls import Api, Call
from kafscale.api.leader_epochs import check_leader_epoch
from kafscale.api.services import Services
from kafscale.errors import DamagedObject, KafkaError, StoreError
from kafscale.log.partition.partition import Partition
from kafscale.log.read.reader import FoundOffset
from kafscale.wire import error_codes
from kafscale.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

logger = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
FIRST_VERSION_WITH_MAX_TIMESTAMP = 7
READ_COMMITTED = 1


async def handle(services: Services, call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
            try:
                partition = services.log.partition_named(topic.name, wanted.partition_index)
                found = await _find(services, call, partition, wanted, request.isolation_level)
            except KafkaError as exc:
                answer.error_code = exc.code
            else:
                answer.offset, answer.timestamp, answer.leader_epoch = (
                    found.offset,
                    found.timestamp_ms,
                    found.leader_epoch,
                )
            partitions.append(answer)
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return response


async def _find(
    services: Services, call: Call, partition: Partition | None, wanted: ListOffsetsPartition, isolation_level: int
) -> FoundOffset:
    """The answer for one partition. No record late enough: offset and timestamp -1. Raises KafkaError."""
    if partition is None:
        raise KafkaError(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    check_leader_epoch(partition, wanted.current_leader_epoch)
    timestamp_ms = wanted.timestamp
    if timestamp_ms == LATEST:
        committed = isolation_level == READ_COMMITTED
        offset = partition.last_stable_offset if committed else partition.high_watermark
        return FoundOffset(offset, -1, partition.leader_epoch)
    if timestamp_ms == EARLIEST:
        return FoundOffset(partition.log_start_offset, -1, partition.epoch_of(partition.log_start_offset))
    if timestamp_ms < MAX_TIMESTAMP or (
        timestamp_ms == MAX_TIMESTAMP and call.version < FIRST_VERSION_WITH_MAX_TIMESTAMP
    ):
        raise KafkaError(error_codes.UNSUPPORTED_VERSION)
    reader = services.log.reader
    try:
        if timestamp_ms == MAX_TIMESTAMP:
            found = await reader.find_max_timestamp(partition)
        else:
            found = await reader.find_timestamp(partition, timestamp_ms)
    except (DamagedObject, StoreError) as exc:
        logger.error("looking up a timestamp in %s failed: %s", partition, exc)
        raise KafkaError(error_codes.KAFKA_STORAGE_ERROR) from exc
    return found or FoundOffset(-1, -1, -1)


API = Api(2, "ListOffsets", 1, 7, ListOffsetsRequest, ListOffsetsResponse, handle)
