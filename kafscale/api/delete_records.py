"""DeleteRecords (key 21), versions 0 to 2 (2: flexible encoding): move a partition's log start forward (KIP-107).

The new log start is durable before it is acknowledged, and holds for readers from then on.
"""

from __future__ import annotations

from kafscale.api.calls import Api, Call
from kafscale.api.services import Services
from kafscale.errors import KafkaError
from kafscale.wire import error_codes
from kafscale.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1


async def handle(services: Services, call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index)
            try:
                result.low_watermark = await _delete(services, topic.name, wanted.partition_index, wanted.offset)
            except KafkaError as exc:
                result.error_code = exc.code
            results.append(result)
        response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return response


async def _delete(services: Services, topic: str, index: int, before_offset: int) -> int:
    """Returns the log start offset as it is then. Raises KafkaError."""
    partition = services.log.partition_named(topic, index)
    if partition is None:
        raise KafkaError(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    if partition.config.cleanup_policy == ("compact",):
        raise KafkaError(error_codes.POLICY_VIOLATION, "records of a topic that is only compacted can't be deleted")
    if before_offset == HIGH_WATERMARK:
        before_offset = partition.high_watermark
    if not 0 <= before_offset <= partition.high_watermark:
        raise KafkaError(error_codes.OFFSET_OUT_OF_RANGE)
    if before_offset > partition.log_start_offset:
        await services.topics.set_log_start_offset(partition.topic_id, index, before_offset)
        partition.delete_records(before_offset)
    return partition.log_start_offset


API = Api(21, "DeleteRecords", 0, 2, DeleteRecordsRequest, DeleteRecordsResponse, handle)
