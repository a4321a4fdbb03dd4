"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where a leader epoch ended (KIP-101, KIP-279, KIP-320).

    2  current leader epoch      3  replica id      4  flexible encoding

A consumer whose last record has an older epoch asks whether that record is still in the log.
"""

from __future__ import annotations

from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import led_partition
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import distinct_partitions
from kafscale.errors import KafkaError
from kafscale.wire.messages.records import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from kafscale.wire.schema import mapped


async def handle(services: Services, call: Call, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    asked = await distinct_partitions(
        ((topic.topic, topic.partitions) for topic in request.topics), lambda wanted: wanted.partition
    )

    def ends(topic: str) -> OffsetForLeaderTopicResult:
        return OffsetForLeaderTopicResult(
            topic=topic, partitions=mapped(partial(_find, services, topic), asked[topic].values())
        )

    return OffsetForLeaderEpochResponse(topics=mapped(ends, asked))


def _find(services: Services, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=wanted.partition)
    try:
        partition = led_partition(services, topic, wanted.partition, leader_epoch=wanted.current_leader_epoch)
    except KafkaError as exc:
        answer.error_code = exc.code
        return answer
    # A client without an epoch asks for -1, which is not an earlier epoch that ends where the log begins.
    end = partition.epoch_end(wanted.leader_epoch) if wanted.leader_epoch >= 0 else None
    if end is not None:
        answer.leader_epoch, answer.end_offset = end.epoch, end.end_offset
    return answer


API = Api(23, "OffsetForLeaderEpoch", 2, 4, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, handle)
