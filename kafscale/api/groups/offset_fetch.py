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

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import attrs

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import coordinator_error
from kafscale.api.handling.services import Services
from kafscale.cluster.groups.records import OffsetAndMetadata
from kafscale.concurrency.turns import distinct, distinct_partitions
from kafscale.wire.error_codes import NONE
from kafscale.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kafscale.wire.schema import mapped


async def handle(services: Services, call: Call, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if call.version < 8:
        return _of_one_group(services, call, await _asked(request.group_id, request.topics))
    groups = await distinct(request.groups, lambda group: group.group_id)
    asked = [await _asked(group.group_id, group.topics) for group in groups]
    return OffsetFetchResponse(groups=mapped(partial(_group, services), asked))


@attrs.frozen
class _Asked:
    """What is asked for of one group: partitions of topics, or all that it has; each once."""

    group_id: str
    topics: Mapping[str, Collection[int]] | None


async def _asked(group_id: str, topics: Sequence[OffsetFetchRequestTopic] | None) -> _Asked:
    if topics is None:
        return _Asked(group_id, None)
    return _Asked(group_id, await distinct_partitions(((each.name, each.partition_indexes) for each in topics), int))


def _of_one_group(services: Services, call: Call, asked: _Asked) -> OffsetFetchResponse:
    if (error_code := coordinator_error(services, asked.group_id)) == NONE:
        return OffsetFetchResponse(topics=_fetch(services, asked))
    if call.version >= 2 or asked.topics is None:
        return OffsetFetchResponse(error_code=error_code)
    return OffsetFetchResponse(topics=[_failed(name, of_topic, error_code) for name, of_topic in asked.topics.items()])


def _failed(name: str, partitions: Collection[int], error_code: int) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=name,
        partitions=mapped(
            lambda index: OffsetFetchResponsePartition(partition_index=index, error_code=error_code), partitions
        ),
    )


def _group(services: Services, asked: _Asked) -> OffsetFetchResponseGroup:
    if (error_code := coordinator_error(services, asked.group_id)) != NONE:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error_code)
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=_fetch(services, asked))


def _fetch(services: Services, asked: _Asked) -> list[OffsetFetchResponseTopic]:
    offsets = services.groups.offsets(asked.group_id)
    topics = {name: tuple(of_topic) for name, of_topic in offsets.items()} if asked.topics is None else asked.topics
    return mapped(lambda name: _topic(name, topics[name], offsets.get(name, {})), tuple(topics))


def _topic(
    name: str, partitions: Collection[int], offsets: Mapping[int, OffsetAndMetadata]
) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=name, partitions=mapped(lambda partition: _partition(partition, offsets.get(partition)), partitions)
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
