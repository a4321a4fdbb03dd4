"""ListOffsets (key 2), versions 1 to 10: look offsets up by time.

    2  isolation level                           7  the largest timestamp (KIP-734)
    4  leader epochs                             8  the earliest local offset (KIP-405)
    6  flexible encoding                         9  the latest tiered offset (KIP-1005)
                                                10  a timeout of reads from remote storage (ignored)

With `read_committed`, "latest" is the last stable offset, and records behind it are not found. A partition that is
named twice is refused, as in Kafka. The largest timestamp is that of a readable record; Kafka may name a deleted one
until its segment goes. Versions 8 and 9 are answered as by Kafka for a topic without remote storage: the earliest local
offset is the log start offset, and there is no tiered one.
"""

from __future__ import annotations

import logging

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import led_partition
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import Turns
from kafscale.errors import DamagedObject, KafkaError, StoreError
from kafscale.log.partition.partition import Partition
from kafscale.log.read.time_search import FoundOffset
from kafscale.wire import error_codes
from kafscale.wire.messages.records import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kafscale.wire.schema import NEVER

logger = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
FIRST_VERSIONS = {  # of negative timestamps
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
}
READ_COMMITTED = 1
NOTHING_FOUND = FoundOffset(-1, -1, -1)


async def handle(services: Services, call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    turns = Turns()
    repeated = await _repeated(request)
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            await turns.step()
            answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
            try:
                if (topic.name, wanted.partition_index) in repeated:
                    raise KafkaError(error_codes.INVALID_REQUEST)
                partition = led_partition(
                    services, topic.name, wanted.partition_index, leader_epoch=wanted.current_leader_epoch
                )
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


async def _repeated(request: ListOffsetsRequest) -> set[tuple[str, int]]:
    turns = Turns()
    seen: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    for topic in request.topics:
        for wanted in topic.partitions:
            await turns.step()
            at = topic.name, wanted.partition_index
            if at in seen:
                repeated.add(at)
            seen.add(at)
    return repeated


async def _find(
    services: Services, call: Call, partition: Partition, wanted: ListOffsetsPartition, isolation_level: int
) -> FoundOffset:
    """Return the answer for one partition, NOTHING_FOUND if no record is late enough. Raises KafkaError."""
    timestamp_ms = wanted.timestamp
    if timestamp_ms < 0 and call.version < FIRST_VERSIONS.get(timestamp_ms, NEVER):
        raise KafkaError(error_codes.UNSUPPORTED_VERSION)
    committed = isolation_level == READ_COMMITTED
    if timestamp_ms == LATEST:
        offset = partition.last_stable_offset if committed else partition.high_watermark
        return FoundOffset(offset, -1, partition.leader_epoch)
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return FoundOffset(partition.log_start_offset, -1, partition.epoch_of(partition.log_start_offset))
    if timestamp_ms == LATEST_TIERED:
        return NOTHING_FOUND
    reader = services.log.reader
    try:
        if timestamp_ms == MAX_TIMESTAMP:
            found = await reader.find_max_timestamp(partition)
        else:
            found = await reader.find_timestamp(partition, timestamp_ms)
    except (DamagedObject, StoreError) as exc:
        logger.error("looking up a timestamp in %s failed: %s", partition, exc)
        raise KafkaError(error_codes.KAFKA_STORAGE_ERROR) from exc
    if found is None or (committed and found.offset >= partition.last_stable_offset):
        return NOTHING_FOUND
    return found


API = Api(2, "ListOffsets", 1, 10, ListOffsetsRequest, ListOffsetsResponse, handle)
