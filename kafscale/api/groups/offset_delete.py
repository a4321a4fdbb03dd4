"""OffsetDelete (47, KIP-496): forget committed offsets of topics that a group no longer reads.

If a group has members, offsets of topics that they subscribe to are refused with GROUP_SUBSCRIBED_TO_TOPIC. If their
protocol type is not "consumer" the topics are unknown, and all are refused with NON_EMPTY_GROUP.
"""

from __future__ import annotations

from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import coordinator_error, lead_error
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.concurrency.turns import Turns
from kafscale.wire.error_codes import GROUP_SUBSCRIBED_TO_TOPIC, NONE, UNKNOWN_TOPIC_OR_PARTITION
from kafscale.wire.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kafscale.wire.schema import mapped


async def handle(services: Services, _call: Call, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    if (error_code := coordinator_error(services, request.group_id)) != NONE:
        return OffsetDeleteResponse(error_code=error_code)
    error_code = services.groups.check_offset_deletion(request.group_id)
    if error_code != NONE:
        return OffsetDeleteResponse(error_code=error_code)
    turns = Turns()
    outcome: dict[TopicPartition, int] = {}
    for topic in request.topics:
        await turns.step()
        for partition in topic.partitions:
            await turns.step()
            at = TopicPartition(topic.name, partition.partition_index)
            outcome[at] = _check(services, request.group_id, at)
    doomed = [at for at, code in outcome.items() if code == NONE]
    error_code = await services.groups.deletion.delete_offsets(request.group_id, doomed).wait()
    error_code = error_code or await lead_error(services)  # there may have been nothing to write
    if error_code != NONE:
        return OffsetDeleteResponse(error_code=error_code)

    def answer(topic: str, partition: OffsetDeleteRequestPartition) -> OffsetDeleteResponsePartition:
        index = partition.partition_index
        return OffsetDeleteResponsePartition(partition_index=index, error_code=outcome[TopicPartition(topic, index)])

    def answers(topic: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
        partitions = mapped(partial(answer, topic.name), topic.partitions)
        return OffsetDeleteResponseTopic(name=topic.name, partitions=partitions)

    return OffsetDeleteResponse(topics=mapped(answers, request.topics))


def _check(services: Services, group_id: str, at: TopicPartition) -> int:
    topic = services.topics.get(at.topic)
    if topic is None or not 0 <= at.partition < topic.partition_count:
        return UNKNOWN_TOPIC_OR_PARTITION
    return GROUP_SUBSCRIBED_TO_TOPIC if services.groups.is_subscribed_to(group_id, at.topic) else NONE


API = Api(47, "OffsetDelete", 0, 0, OffsetDeleteRequest, OffsetDeleteResponse, handle)
