"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where a leader epoch ended (KIP-101, KIP-279, KIP-320).

    2  current leader epoch      3  replica id      4  flexible encoding

A consumer whose last record was of an older epoch asks this to see whether what it has read is still in the log.
"""

from __future__ import annotations

from kafscale.api.calls import Api, Call
from kafscale.api.leader_epochs import check_leader_epoch
from kafscale.api.services import Services
from kafscale.errors import KafkaError
from kafscale.wire import error_codes
from kafscale.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(services: Services, call: Call, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_find(services, topic.topic, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _find(services: Services, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=wanted.partition)
    partition = services.log.partition_named(topic, wanted.partition)
    try:
        if partition is None:
            raise KafkaError(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        check_leader_epoch(partition, wanted.current_leader_epoch)
    except KafkaError as exc:
        answer.error_code = exc.code
        return answer
    # A client that knows no epoch asks for -1: that is none of the past, which would end where the log begins.
    end = partition.epoch_end(wanted.leader_epoch) if wanted.leader_epoch >= 0 else None
    if end is not None:
        answer.leader_epoch, answer.end_offset = end.epoch, end.end_offset
    return answer


API = Api(23, "OffsetForLeaderEpoch", 2, 4, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, handle)
