"""Where a stream is: offsets by partition, and of which topics, as one that was deleted and created again has others.

As JSON it is what Spark's Kafka source writes, with the ids of the topics beside them, under a name that no topic has:

    {"@topic-ids":{"orders":"xtzWWN4bTjitpL3kfd9s5g"},"orders":{"0":23,"1":5}}

Checkpoints of earlier versions have no ids. An offset of a topic without one is believed to be of the topic there is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from kafscale.spark.bucket.catalog import PartitionLog
from kafscale.spark.bucket.subscription import Logs, TopicPartition
from kafscale.store.paths import topic_id_text

TOPIC_IDS = "@topic-ids"
METRICS = "@metrics"  # of the source, beside the offsets that it tells Spark for the progress of a query alone
TopicIds = Mapping[str, str]  # by the topic's name, as Kafka's tools write them
Json = dict[str, dict[str, Any]]


@attrs.frozen(kw_only=True)
class Position:
    """`offsets` are of the next records; `topic_ids` of those topics whose id was known."""

    offsets: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    topic_ids: TopicIds = attrs.field(factory=dict)

    def to_json(self) -> Json:
        """Return the position as JSON, always in the same order, since Spark compares the text."""
        topics: Json = {TOPIC_IDS: dict(sorted(self.topic_ids.items()))} if self.topic_ids else {}
        for topic, index in sorted(self.offsets):
            topics.setdefault(topic, {})[str(index)] = self.offsets[topic, index]
        return topics

    @classmethod
    def from_json(cls, topics: Mapping[str, Mapping[str, Any]]) -> Position:
        """Back from `to_json`. Raises ValueError, AttributeError for what is none."""
        offsets = {
            (topic, int(index)): offset
            for topic, by_index in topics.items()
            if topic not in (TOPIC_IDS, METRICS)
            for index, offset in by_index.items()
        }
        return cls(offsets=offsets, topic_ids=dict(topics.get(TOPIC_IDS, {})))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Make a position of the text of its JSON. Raises ValueError, AttributeError."""
        return cls.from_json(json.loads(text))


def range_options(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> dict[str, str]:
    """Return the options, of this source and of the Kafka source, that read these partitions between offsets."""
    assigned: dict[str, list[int]] = {}
    for topic, index in sorted(starts):
        assigned.setdefault(topic, []).append(index)
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(Position(offsets=starts).to_json()),
        "endingOffsets": json.dumps(Position(offsets=ends).to_json()),
    }


@attrs.frozen(kw_only=True)
class Recreation:
    """A topic has another id than the offsets that were read of it."""

    topic: str
    before: str
    now: str

    def __str__(self) -> str:
        return (
            f"topic '{self.topic}' was deleted and created again, so its offsets begin anew: what was read had the "
            f"topic id {self.before}, and it has {self.now} now"
        )


def ids_of(logs: Iterable[PartitionLog]) -> TopicIds:
    """Return the ids of the topics whose id the bucket tells."""
    return {log.topic: topic_id_text(log.topic_id) for log in logs if log.topic_id is not None}


def recreations(known: TopicIds, logs: Logs) -> Mapping[str, Recreation]:
    """The topics that are not those that were known."""
    there = ids_of(logs.values())
    return {
        topic: Recreation(topic=topic, before=before, now=there[topic])
        for topic, before in known.items()
        if there.get(topic, before) != before
    }
