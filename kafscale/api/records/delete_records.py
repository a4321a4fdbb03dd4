"""DeleteRecords (key 21), versions 0 to 2 (2: flexible encoding): move a partition's log start forward (KIP-107).

The new log start is durable before it is acknowledged.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import led_partition
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.topic_names import is_internal
from kafscale.concurrency.turns import Turns, distinct_partitions
from kafscale.errors import KafkaError
from kafscale.wire import error_codes
from kafscale.wire.messages.records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1


async def handle(services: Services, call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    asked = await distinct_partitions(
        ((topic.name, topic.partitions) for topic in request.topics), lambda wanted: wanted.partition_index
    )
    turns = Turns()
    for name, partitions in asked.items():
        results = []
        for index, wanted in partitions.items():
            await turns.step()
            result = DeleteRecordsPartitionResult(partition_index=index)
            try:
                result.low_watermark = await _delete(services, name, index, wanted.offset)
            except KafkaError as exc:
                result.error_code = exc.code
            results.append(result)
        response.topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    return response


async def _delete(services: Services, topic: str, index: int, before_offset: int) -> int:
    partition = led_partition(services, topic, index)
    if is_internal(topic):
        raise KafkaError(error_codes.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
    if partition.config.cleanup_policy == ("compact",):
        raise KafkaError(error_codes.POLICY_VIOLATION, "records of a topic that is only compacted can't be deleted")
    if before_offset == HIGH_WATERMARK:
        before_offset = partition.high_watermark
    if not 0 <= before_offset <= partition.high_watermark:
        raise KafkaError(error_codes.OFFSET_OUT_OF_RANGE)
    if before_offset > partition.log_start_offset:
        await services.topics.set_log_start_offset(partition.topic_id, index, before_offset)
        services.log.delete_records(partition.partition_id, before_offset)
    return max(partition.log_start_offset, before_offset)


API = Api(21, "DeleteRecords", 0, 2, DeleteRecordsRequest, DeleteRecordsResponse, handle)
