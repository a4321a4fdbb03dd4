"""The consumer protocol embedded in JoinGroup and SyncGroup of classic members, with topics by id."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kafscale.cluster.groups.common.assignors import Partitions
from kafscale.cluster.groups.common.topics import KnownTopics
from kafscale.errors import DecodeError
from kafscale.wire.codec import decoder, encode
from kafscale.wire.messages.consumer_groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
)

VERSION_BYTES = 2  # an int16 in front


@attrs.frozen(kw_only=True)
class EmbeddedSubscription:
    """The subscription of a classic member, and the partitions that it owns."""

    topic_names: frozenset[str]
    rack_id: str | None
    owned: Partitions


def read_subscription(metadata: bytes, topics: KnownTopics) -> EmbeddedSubscription:
    """Read a member's metadata. Raises DecodeError."""
    version = min(_version(metadata), ConsumerProtocolSubscription.MAX_VERSION)
    told, _ = decoder(ConsumerProtocolSubscription, version)(memoryview(metadata), VERSION_BYTES)
    owned = _by_id(told.owned_partitions, topics)
    return EmbeddedSubscription(topic_names=frozenset(told.topics), rack_id=told.rack_id or None, owned=owned)


def read_assignment(assignment: bytes, topics: KnownTopics) -> Partitions:
    """Read a leader's assignment of a member, without deleted topics.

    Raises DecodeError for bytes that are not an assignment, and for data of a custom assignor, which would be lost.
    """
    if not assignment:
        return {}
    version = min(_version(assignment), ConsumerProtocolAssignment.MAX_VERSION)
    told, _ = decoder(ConsumerProtocolAssignment, version)(memoryview(assignment), VERSION_BYTES)
    if told.user_data:
        raise DecodeError("a custom assignor is in use, and its data would be lost")
    return _by_id(told.assigned_partitions, topics)


def write_assignment(partitions: Partitions, topics: KnownTopics, metadata: bytes) -> bytes:
    """Return an assignment in the version of the member's metadata; in version 0 if that has none."""
    try:
        version = min(_version(metadata), ConsumerProtocolAssignment.MAX_VERSION)
    except DecodeError:
        version = 0
    assigned = [
        ConsumerTopicPartitions(topic=topics.by_id[topic_id].name, partitions=sorted(of_topic))
        for topic_id, of_topic in partitions.items()
        if topic_id in topics.by_id
    ]
    assigned.sort(key=lambda topic: topic.topic)
    return version.to_bytes(VERSION_BYTES) + b"".join(
        encode(ConsumerProtocolAssignment(assigned_partitions=assigned), version)
    )


def _version(data: bytes) -> int:
    version = int.from_bytes(data[:VERSION_BYTES], signed=True)
    if len(data) < VERSION_BYTES or version < 0:
        raise DecodeError("a consumer's metadata must begin with a version")
    return version


def _by_id(named: Iterable[ConsumerTopicPartitions], topics: KnownTopics) -> Partitions:
    known = ((topics.by_name.get(of_topic.topic), of_topic.partitions) for of_topic in named)
    return {topic.topic_id: frozenset(partitions) for topic, partitions in known if topic is not None and partitions}
