"""Records of one consumer group, in the classes of `kafscale.wire.internal_topics.consumer_offsets`."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kafscale.cluster.groups.assignors.partitions import Partitions
from kafscale.wire.internal_topics.consumer_offsets import ConsumerGroupKey, ConsumerGroupValue, TopicPartitions


@attrs.frozen
class CoordinatorRecord:
    """A key with its value; None deletes the value."""

    key: ConsumerGroupKey
    value: ConsumerGroupValue | None


def as_topic_partitions(partitions: Partitions) -> list[TopicPartitions]:
    """Return partitions in the form of records, always in the same order for the same partitions."""
    return [TopicPartitions(topic_id, sorted(partitions[topic_id])) for topic_id in sorted(partitions)]


def from_topic_partitions(topic_partitions: Iterable[TopicPartitions]) -> Partitions:
    """Return the partitions of a record."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in topic_partitions if topic.partitions}
