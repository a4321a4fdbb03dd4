"""The partitions that a query reads, and the position and lag of a stream in them.

As JSON, a position is what Spark's Kafka source writes, with topic ids under a name that no topic has, as a topic that
was deleted and created again has other offsets. An offset without an id is taken for one of the topic that exists.

    {"@topic-ids":{"orders":"xtzWWN4bTjitpL3kfd9s5g"},"orders":{"0":23,"1":5}}
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from kafscale.errors import ConfigError
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.splits import Extent, first_time_ms, size_bytes
from kafscale.store.paths import topic_id_text
from kafscale.wire.client_rules import lag

TopicPartition = tuple[str, int]
Logs = Mapping[TopicPartition, PartitionLog]


@attrs.frozen(kw_only=True)
class Subscription:
    """One of the three: topics, a regular expression that matches their whole names, or partitions."""

    topics: Sequence[str] = ()
    pattern: str | None = None
    assigned: Sequence[TopicPartition] = ()

    def find(self, catalog: Catalog, *, known: Collection[TopicPartition] = (), must_exist: bool = True) -> Logs:
        """Return the partitions in order. Raises ConfigError for an unknown topic, if it `must_exist`.

        known: partitions that the query expects. The bucket may not tell of partitions without a segment, so these are
        believed, unless their topic was deleted.
        """
        catalog.look_again()
        found: dict[TopicPartition, PartitionLog] = {}
        for topic in self._topics(catalog):
            logs = catalog.partitions(topic)
            if not logs and must_exist:
                raise _no_such_topic(topic, catalog)
            found |= {(topic, index): log for index, log in logs.items()}
        names = {topic for topic, _ in found}
        for topic, index in {*self.assigned, *(name for name in known if not must_exist or name[0] in names)}:
            believed = catalog.brokers is None and catalog.metadata.deletion_of(topic) is None
            if topic in names or believed:
                found.setdefault((topic, index), PartitionLog(topic=topic, partition=index, segments=()))
        wanted = set(self.assigned) or found.keys()
        return {partition: found[partition] for partition in sorted(found) if partition in wanted}

    def _topics(self, catalog: Catalog) -> Sequence[str]:
        if self.pattern is not None:
            return [topic for topic in catalog.topics() if re.fullmatch(self.pattern, topic)]
        return sorted({*self.topics, *(topic for topic, _ in self.assigned)})


def some_of(topics: Sequence[str], *, near_to: str, label: str) -> str:
    near = difflib.get_close_matches(near_to, topics, n=1) or topics[:5]
    return f"{label}: {', '.join(near)}" if near else "there is no topic at all"


def _no_such_topic(topic: str, catalog: Catalog) -> ConfigError:
    deletion = catalog.metadata.deletion_of(topic)
    if deletion is not None:
        return ConfigError(f"{deletion}, and no topic of this name was created since: leave it out")
    topics = catalog.topics()
    there = some_of(topics, near_to=topic, label="there is")
    if catalog.brokers is not None:
        return ConfigError(f"no broker of kafka.bootstrap.servers has topic '{topic}' ({there}). Check its name")
    return ConfigError(
        f"the bucket has no segment of topic '{topic}' in namespace '{catalog.namespace}' ({there}). Check store, "
        "namespace and name; records that were just produced come into the bucket by `kafscale flush`"
    )


TOPIC_IDS = "@topic-ids"
METRICS = "@metrics"  # of the source, beside the offsets that it tells Spark for the progress of a query alone
TopicIds = Mapping[str, str]  # by the topic's name, as Kafka's tools write them
Json = dict[str, dict[str, Any]]


@attrs.frozen(kw_only=True)
class Position:
    """Offsets of the next records, and the ids of their topics as far as they were known."""

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
        """Read the result of `to_json`. Raises ValueError, AttributeError for something else."""
        offsets = {
            (topic, int(index)): offset
            for topic, by_index in topics.items()
            if topic not in (TOPIC_IDS, METRICS)
            for index, offset in by_index.items()
        }
        return cls(offsets=offsets, topic_ids=dict(topics.get(TOPIC_IDS, {})))

    @classmethod
    def parse(cls, text: str) -> Position:
        return cls.from_json(json.loads(text))


def range_options(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> dict[str, str]:
    """Return the options, of this source and of the Kafka source, that read partitions between offsets."""
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
    """A topic with another id than the offsets that were read."""

    topic: str
    before: str
    now: str

    def __str__(self) -> str:
        return (
            f"topic '{self.topic}' was deleted and created again, so its offsets begin anew: what was read had the "
            f"topic id {self.before}, and it has {self.now} now"
        )


def ids_of(logs: Iterable[PartitionLog]) -> TopicIds:
    return {log.topic: topic_id_text(log.topic_id) for log in logs if log.topic_id is not None}


def recreations(known: TopicIds, logs: Logs) -> Mapping[str, Recreation]:
    there = ids_of(logs.values())
    return {
        topic: Recreation(topic=topic, before=before, now=there[topic])
        for topic, before in known.items()
        if there.get(topic, before) != before
    }


@attrs.frozen(kw_only=True)
class PartitionLag:
    """The lag of a partition that was read up to `offset`, exclusive, and ends at `end_offset`, also exclusive.

    log_start_offset: records below it were deleted, and do not count.
    bytes_behind: the stored size of the unread batches; the batch of `offset` counts as a whole.
    unread_ms: the latest time of the first few unread batches; None without any, or if brokers have them.
    """

    offset: int
    end_offset: int
    bytes_behind: int
    log_start_offset: int = 0
    unread_ms: int | None = None

    @property
    def offsets_behind(self) -> int:
        return lag(self.offset, log_start_offset=self.log_start_offset, end_offset=self.end_offset)

    def seconds_behind(self, now_ms: int) -> float:
        """Return the age of the first unread records, less the time in which a few batches came; 0 without any."""
        return 0.0 if self.unread_ms is None else max(0, now_ms - self.unread_ms) / 1000


@attrs.frozen(kw_only=True)
class QueryLag:
    """The lag of a streaming query after one of its batches. metrics: of the source, from Spark 4.2 on."""

    query_id: str
    query_name: str | None
    batch_id: int
    partitions: Mapping[TopicPartition, PartitionLag]
    measured_ms: int = 0
    metrics: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def description(self) -> str:
        return described(topic for topic, _ in self.partitions)

    @property
    def records_behind(self) -> int:
        """Return the number of unread offsets in all partitions."""
        return sum(partition.offsets_behind for partition in self.partitions.values())

    @property
    def bytes_behind(self) -> int:
        return sum(partition.bytes_behind for partition in self.partitions.values())

    @property
    def seconds_behind(self) -> float:
        return max((partition.seconds_behind(self.measured_ms) for partition in self.partitions.values()), default=0.0)


def described(topics: Iterable[str]) -> str:
    """Return the description of these topics, as Spark's Kafka source has it in a query's progress."""
    return f"KafScale[{', '.join(sorted(set(topics)))}]"


def measure(catalog: Catalog, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, PartitionLag]:
    """Measure the lag of the partitions that the bucket knows. Raises StoreError."""
    catalog.look_again()
    logs = {topic: catalog.partitions(topic) for topic in sorted({topic for topic, _ in offsets})}
    return {
        (topic, index): lag_behind(catalog, logs[topic][index], offset)
        for (topic, index), offset in offsets.items()
        if index in logs[topic]
    }


def lag_behind(catalog: Catalog, log: PartitionLog, offset: int, end_offset: int | None = None) -> PartitionLag:
    """Measure the lag of an offset behind a partition's end, or behind `end_offset`. Raises StoreError."""
    start_offset, end_offset = max(offset, log.start_offset), log.end_offset if end_offset is None else end_offset
    if start_offset >= end_offset:
        return PartitionLag(offset=offset, end_offset=end_offset, bytes_behind=0, log_start_offset=log.start_offset)
    extent = Extent(log=log, start_offset=start_offset, end_offset=end_offset)
    return PartitionLag(
        offset=offset,
        end_offset=end_offset,
        bytes_behind=size_bytes(catalog, extent),
        log_start_offset=log.start_offset,
        unread_ms=first_time_ms(catalog, extent),
    )
