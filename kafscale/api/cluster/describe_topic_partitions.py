"""DescribeTopicPartitions (75, KIP-966): topics and their partitions, in pages.

v0  (flexible) no topics means all of them; an answer ends with the cursor that gets the next page, or with null

A page has at most 2,000 partitions, or fewer if the client wants, and at least one. Topics come in order of name, each
once. A cursor must name a requested topic; without names it asks for all topics from its name on. Topics that do not
exist are not counted, and follow the topics of the page in whose range of names they are.

Leaders, replicas and in-sync replicas are those of Metadata. No replica is out of sync and yet eligible to lead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

import attrs

from kafscale.api.cluster.metadata import Layout
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import know_topics, reachable_brokers
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.topic_names import is_internal, is_valid_topic_name
from kafscale.cluster.registries.topics import Topic, TopicRegistry
from kafscale.concurrency.turns import distinct, in_turns
from kafscale.security.acls import DESCRIBE_TOPIC, ResourceType
from kafscale.wire.error_codes import (
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kafscale.wire.schema import mapped

PAGE_MAX_COUNT = 2_000  # partitions; Kafka: max.request.partition.size.limit, 2000
BEGINNING = Cursor(topic_name="", partition_index=0)


@attrs.frozen(eq=False, repr=False)
class _Page:
    parts: Sequence[tuple[Topic, range]]
    next_cursor: Cursor | None


async def handle(
    services: Services, call: Call, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    names = await distinct((topic.name for topic in request.topics), str)
    cursor = request.cursor or BEGINNING
    if cursor.partition_index < 0 or (names and request.cursor is not None and cursor.topic_name not in names):
        return DescribeTopicPartitionsResponse(topics=mapped(partial(_error, INVALID_REQUEST), names))
    await know_topics(services, names)
    topics, unknown = await _asked(services.topics, names, cursor)
    if services.access.authorizer is not None:
        topics, hidden = await _split(services, call, topics)
        unknown += [name for name in hidden if names]
    page = _page(topics, cursor, max(1, min(request.response_partition_limit, PAGE_MAX_COUNT)))
    if (end := page.next_cursor) is not None:
        unknown = [name async for name in in_turns(unknown) if name < end.topic_name]
    brokers = frozenset(broker.node.node_id for broker in reachable_brokers(services, call.peer))
    answer = partial(_answer, services, call, brokers)
    return DescribeTopicPartitionsResponse(topics=mapped(answer, (*page.parts, *unknown)), next_cursor=page.next_cursor)


async def _asked(registry: TopicRegistry, names: Collection[str], cursor: Cursor) -> tuple[list[Topic], list[str]]:
    """Return the topics from the cursor on, in order of name, and the unknown names from there on."""
    if not names:
        return [topic for topic in registry.all() if topic.name >= cursor.topic_name], []
    topics, unknown = [], []
    async for name in in_turns(names):
        if name >= cursor.topic_name:
            topic = registry.get(name)
            if topic is None:
                unknown.append(name)  # in any order: sorting a million takes long, and clients do not need it
            else:
                topics.append(topic)
    return sorted(topics, key=lambda topic: topic.name), unknown


async def _split(services: Services, call: Call, topics: Sequence[Topic]) -> tuple[list[Topic], list[str]]:
    visible, hidden = [], []
    async for topic in in_turns(topics):
        if services.access.allows(call, DESCRIBE_TOPIC, topic.name, tells=False):
            visible.append(topic)
        else:
            hidden.append(topic.name)
    return visible, hidden


def _page(topics: Iterable[Topic], cursor: Cursor, max_count: int) -> _Page:
    parts = []
    left = max_count
    for topic in topics:
        first = cursor.partition_index if topic.name == cursor.topic_name else 0
        end = min(topic.partition_count, first + left)
        if left:
            parts.append((topic, range(first, end)))
            left -= len(parts[-1][1])
        if end < topic.partition_count:
            return _Page(parts, Cursor(topic_name=topic.name, partition_index=end))
    return _Page(parts, None)


def _answer(
    services: Services, call: Call, brokers: frozenset[int], of: tuple[Topic, range] | str
) -> DescribeTopicPartitionsResponseTopic:
    if isinstance(of, str):
        if not services.access.allows(call, DESCRIBE_TOPIC, of):
            return DescribeTopicPartitionsResponseTopic(error_code=TOPIC_AUTHORIZATION_FAILED, name=of)
        return _error(UNKNOWN_TOPIC_OR_PARTITION if is_valid_topic_name(of) else INVALID_TOPIC_EXCEPTION, of)
    topic, indexes = of
    layout = Layout.of(topic, services.assignment, brokers)
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=mapped(partial(_partition, layout), indexes),
        topic_authorized_operations=services.access.operations(call, ResourceType.TOPIC, topic.name),
    )


def _error(code: int, name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, is_internal=is_internal(name))


def _partition(layout: Layout, index: int) -> DescribeTopicPartitionsResponsePartition:
    """Describe a partition. Without a leader it has leader -1 and no error, as in Kafka."""
    partition = DescribeTopicPartitionsResponsePartition(
        partition_index=index, eligible_leader_replicas=[], last_known_elr=[]
    )
    leader = layout.leader(index)
    if leader is not None:
        partition.leader_id, partition.leader_epoch = leader.node_id, leader.epoch
        partition.replica_nodes = partition.isr_nodes = layout.replicas(leader)
    else:
        partition.replica_nodes = partition.offline_replicas = layout.offline(index)
    return partition


API = Api(75, "DescribeTopicPartitions", 0, 0, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, handle)
