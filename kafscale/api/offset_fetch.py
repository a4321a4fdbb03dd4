"""OffsetFetch (9): how far groups have read, as far as it is durable.

v2  null topics mean all that the group has offsets of; an error code of the whole
v3  throttle time
v5  leader epochs (KIP-320)
v6  flexible
v7  `require_stable`, which changes nothing while there are no transactions
v8  several groups at once (KIP-709)

A partition, or a group, that nothing was ever committed for has offset -1 and no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafscale.api.calls import Api, Call
from kafscale.api.services import Services
from kafscale.cluster.groups.records import OffsetAndMetadata
from kafscale.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)


def handle(services: Services, call: Call, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if call.version < 8:
        return OffsetFetchResponse(topics=_fetch(services, request.group_id, request.topics))
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponseGroup(group_id=group.group_id, topics=_fetch(services, group.group_id, group.topics))
            for group in request.groups
        ]
    )


def _fetch(
    services: Services, group_id: str, topics: Sequence[OffsetFetchRequestTopic] | None
) -> list[OffsetFetchResponseTopic]:
    offsets = services.groups.offsets(group_id)
    if topics is None:
        return [_topic(name, partitions, partitions) for name, partitions in offsets.items()]
    return [_topic(topic.name, topic.partition_indexes, offsets.get(topic.name, {})) for topic in topics]


def _topic(name: str, partitions: Iterable[int], offsets: Mapping[int, OffsetAndMetadata]) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=name, partitions=[_partition(partition, offsets.get(partition)) for partition in partitions]
    )


def _partition(partition: int, offset: OffsetAndMetadata | None) -> OffsetFetchResponsePartition:
    if offset is None:
        return OffsetFetchResponsePartition(partition_index=partition)
    return OffsetFetchResponsePartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


API = Api(9, "OffsetFetch", 1, 8, OffsetFetchRequest, OffsetFetchResponse, handle)
