"""OffsetFetch (9): how far groups have read, as far as it is durable.

v2  null topics mean all that the group has offsets of; an error code of the whole
v3  throttle time
v5  leader epochs (KIP-320)
v6  flexible
v7  `require_stable`: UNSTABLE_OFFSET_COMMIT where a transaction that is not ended has committed an offset (KIP-447)
v8  several groups at once (KIP-709)
v9  the member that asks, which is checked in a group of KIP-848's protocol only, as in Kafka: UNKNOWN_MEMBER_ID, and
    STALE_MEMBER_EPOCH where it is behind
v10 topics by id; UNKNOWN_TOPIC_ID where no topic has it

A partition, or a group, without committed offsets has offset -1 and no error.

A client with `require_stable` may continue from the answer in a transaction. The answer must not miss commits that a
broker which took over has acknowledged: if offsets are in the bucket, the claim is checked before. With several brokers
it is checked before every answer if this broker has not done so lately, as when it is cut off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import attrs

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import coordinator_error, lead_error
from kafscale.api.handling.partitions import name_of
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.context import NO_GENERATION
from kafscale.cluster.registries.topics import Topic
from kafscale.concurrency.turns import Turns, distinct, distinct_partitions
from kafscale.security.acls import DESCRIBE_GROUP, DESCRIBE_TOPIC
from kafscale.wire.error_codes import NONE, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID, UNSTABLE_OFFSET_COMMIT
from kafscale.wire.internal_topics.consumer_offsets import NO_TOPIC_ID, OffsetCommitValue
from kafscale.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kafscale.wire.schema import mapped

FIRST_VERSION_WITH_ERROR_CODE = 2
FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10


async def handle(services: Services, call: Call, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if call.version < FIRST_VERSION_WITH_GROUPS:
        asked = await _asked(services, request, request.group_id, request.topics, by_id=False)
        only = _group(services, call, await _lead_error(services, request), asked)
        if only.error_code == NONE or call.version >= FIRST_VERSION_WITH_ERROR_CODE or asked.topics is None:
            return OffsetFetchResponse(error_code=only.error_code, topics=only.topics)
        topics = asked.topics.items()
        return OffsetFetchResponse(topics=[_failed(topic, indexes, only.error_code) for topic, indexes in topics])
    by_id = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    groups = await distinct(request.groups, lambda group: group.group_id)
    turns, each_asked = Turns(), []
    for group in groups:
        await turns.step()
        asked = await _asked(services, request, group.group_id, group.topics, by_id=by_id, turns=turns)
        each_asked.append(attrs.evolve(asked, member_id=group.member_id, member_epoch=group.member_epoch))
    lead = await _lead_error(services, request)
    return OffsetFetchResponse(groups=mapped(partial(_group, services, call, lead), each_asked))


async def _lead_error(services: Services, request: OffsetFetchRequest) -> int:
    must_look = request.require_stable or not services.has_led_lately()
    return await lead_error(services) if must_look else NONE


@attrs.frozen
class _Topic:
    """A topic of the request: by its name, or by its id, with an empty name if no topic has it."""

    name: str
    topic_id: bytes | None = None


@attrs.frozen
class _Asked:
    """The distinct partitions, or None for all, to fetch of one group, and the member that fetches."""

    group_id: str
    topics: Mapping[_Topic, Collection[int]] | None
    by_id: bool
    stable_only: bool
    member_id: str | None = None
    member_epoch: int = NO_GENERATION


async def _asked(
    services: Services,
    request: OffsetFetchRequest,
    group_id: str,
    topics: Sequence[OffsetFetchRequestTopic] | None,
    *,
    by_id: bool,
    turns: Turns | None = None,
) -> _Asked:
    if topics is None:
        return _Asked(group_id, None, by_id, request.require_stable)

    def asked(topic: OffsetFetchRequestTopic) -> _Topic:
        return _Topic(name_of(services, topic.topic_id), topic.topic_id) if by_id else _Topic(topic.name)

    found = await distinct_partitions(((asked(topic), topic.partition_indexes) for topic in topics), int, turns=turns)
    return _Asked(group_id, found, by_id, request.require_stable)


def _failed(topic: _Topic, partitions: Collection[int], error_code: int) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id or NO_TOPIC_ID,
        partitions=mapped(
            lambda index: OffsetFetchResponsePartition(partition_index=index, error_code=error_code), partitions
        ),
    )


def _group(services: Services, call: Call, lead: int, asked: _Asked) -> OffsetFetchResponseGroup:
    error_code = services.access.error_code(call, DESCRIBE_GROUP, asked.group_id)
    error_code = error_code or lead or coordinator_error(services, asked.group_id)
    if error_code == NONE:
        error_code = services.groups.check_fetch(asked.group_id, asked.member_id, asked.member_epoch)
    if error_code != NONE:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error_code)
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=_fetch(services, call, asked))


def _fetch(services: Services, call: Call, asked: _Asked) -> list[OffsetFetchResponseTopic]:
    offsets = services.groups.offsets(asked.group_id)
    topics = asked.topics
    if topics is None:
        topics = {
            topic: tuple(offsets[topic.name])
            for topic in _all(services, offsets, by_id=asked.by_id)
            if services.access.allows(call, DESCRIBE_TOPIC, topic.name, tells=False)
        }

    def answer(topic: _Topic) -> OffsetFetchResponseTopic:
        present = services.topics.get(topic.name)
        if topic.topic_id is not None and (present is None or present.topic_id != topic.topic_id):
            return _failed(topic, topics[topic], UNKNOWN_TOPIC_ID)
        if not services.access.allows(call, DESCRIBE_TOPIC, topic.name):
            return _failed(topic, topics[topic], TOPIC_AUTHORIZATION_FAILED)
        known = offsets.get(topic.name, {})

        def partition(index: int) -> OffsetFetchResponsePartition:
            at = TopicPartition(topic.name, index)
            if asked.stable_only and services.groups.is_unstable(asked.group_id, at):
                return OffsetFetchResponsePartition(partition_index=index, error_code=UNSTABLE_OFFSET_COMMIT)
            return _partition(index, present, known.get(index))

        return OffsetFetchResponseTopic(
            name=topic.name, topic_id=topic.topic_id or NO_TOPIC_ID, partitions=mapped(partition, topics[topic])
        )

    return mapped(answer, tuple(topics))


def _all(services: Services, names: Iterable[str], *, by_id: bool) -> Iterator[_Topic]:
    """Yield the topics of a group's offsets; by id only those that still exist, as in Kafka."""
    for name in names:
        if not by_id:
            yield _Topic(name)
        elif (topic := services.topics.get(name)) is not None:
            yield _Topic(name, topic.topic_id)


def _partition(index: int, topic: Topic | None, offset: OffsetCommitValue | None) -> OffsetFetchResponsePartition:
    # A deleted topic of the same name may have had other offsets, which are not forgotten yet.
    is_former = topic is not None and offset is not None and offset.topic_id not in (NO_TOPIC_ID, topic.topic_id)
    if offset is None or is_former:
        return OffsetFetchResponsePartition(partition_index=index)
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


API = Api(9, "OffsetFetch", 1, 10, OffsetFetchRequest, OffsetFetchResponse, handle)
