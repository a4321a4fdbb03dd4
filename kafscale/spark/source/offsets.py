"""Beginning and end of a query: the option texts of Spark's Kafka source, and the offsets that they mean.

    earliest | latest | {"topic":{"0":23,"1":-2}}        -2 is earliest, -1 is latest
    startingTimestamp = 1000                             one for all partitions
    startingOffsetsByTimestamp = {"topic":{"0":1000}}    one for each

A timestamp (milliseconds since the epoch) means the first record, in order of offset, with this timestamp or a later
one, as Kafka's consumers find it. Offsets may come with the ids of their topics, as in checkpoints (`position`): then
they are not taken for offsets of another topic of that name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import attrs

from kafscale.errors import ConfigError
from kafscale.formats.segment import Footer
from kafscale.spark.bucket.catalog import READS_AT_ONCE_COUNT, Catalog, PartitionLog
from kafscale.spark.bucket.position import METRICS, TOPIC_IDS, Logs, TopicIds, TopicPartition, recreations
from kafscale.spark.bucket.reading import SplitReader, TopicCreatedAgain, report_loss
from kafscale.spark.bucket.splits import Extent, plan

LATEST = -1
EARLIEST = -2


class PartitionNotNamed(ConfigError):
    """Offsets by partition omit one: by mistake, or because it was created later."""


@attrs.frozen(kw_only=True)
class OffsetLimit:
    """One end of a read: offsets or timestamps by partition, or one for all. EARLIEST and LATEST are offsets.

    topic_ids: of the topics of the offsets, as far as known.
    latest_if_none: a timestamp later than all records means the end; otherwise it is an error.
    """

    option: str
    everywhere: int | None = None
    by_partition: Mapping[TopicPartition, int] | None = None
    topic_ids: TopicIds = attrs.field(factory=dict)
    are_timestamps: bool = False
    latest_if_none: bool = True

    def has(self, value: int) -> bool:
        if self.are_timestamps:
            return False
        return self.everywhere == value or value in (self.by_partition or {}).values()

    @property
    def names(self) -> Collection[TopicPartition]:
        return (self.by_partition or {}).keys()

    def of(self, partition: TopicPartition) -> int:
        """Return the value for a partition. Raises PartitionNotNamed."""
        if self.everywhere is not None:
            return self.everywhere
        assert self.by_partition is not None
        if partition in self.by_partition:
            return self.by_partition[partition]
        topic, index = partition
        raise PartitionNotNamed(
            f"{self.option} says nothing of partition {index} of topic '{topic}': "
            "name all partitions of the topics that are read, with -2 for earliest and -1 for latest"
        )

    def is_moving(self, partition: TopicPartition) -> bool:
        """Tell whether the meaning changes as records are written."""
        return self.are_timestamps or self.of(partition) == LATEST

    def check_names(self, partitions: Container[TopicPartition]) -> None:
        """Raise ConfigError for a named partition that is not read."""
        for topic, index in self.names:
            if (topic, index) not in partitions:
                raise ConfigError(
                    f"{self.option} names partition {index} of topic '{topic}', which is not read: leave it out"
                )


def parse_offsets(option: str, text: str) -> OffsetLimit:
    """Parse `earliest`, `latest` or JSON. Raises ConfigError."""
    if text.strip().lower() in ("earliest", "latest"):
        return OffsetLimit(option=option, everywhere=EARLIEST if text.strip().lower() == "earliest" else LATEST)
    try:
        topics = json.loads(text)
        topic_ids = {topic: str(topic_id) for topic, topic_id in topics.pop(TOPIC_IDS, {}).items()}
        topics.pop(METRICS, None)
    except (ValueError, AttributeError, TypeError) as exc:
        raise _malformed(option, text) from exc
    values = parse_partition_values(option, json.dumps(topics), minimum=EARLIEST)
    return OffsetLimit(option=option, by_partition=values, topic_ids=topic_ids)


def parse_timestamp(option: str, text: str, *, latest_if_none: bool) -> OffsetLimit:
    """Parse milliseconds since the epoch. Raises ConfigError."""
    if not text.strip().isdecimal():
        raise ConfigError(f"{option} is a number of milliseconds since the epoch, not '{text}'")
    return OffsetLimit(option=option, everywhere=int(text), are_timestamps=True, latest_if_none=latest_if_none)


def parse_timestamps(option: str, text: str, *, latest_if_none: bool) -> OffsetLimit:
    """Parse JSON of milliseconds by partition. Raises ConfigError."""
    return OffsetLimit(
        option=option,
        by_partition=parse_partition_values(option, text, minimum=0),
        are_timestamps=True,
        latest_if_none=latest_if_none,
    )


def parse_partition_values(option: str, text: str, *, minimum: int) -> Mapping[TopicPartition, int]:
    """Parse `{"topic":{"0":1}}`. Raises ConfigError."""
    try:
        topics = json.loads(text)
        values = {
            (topic, int(index)): value for topic, partitions in topics.items() for index, value in partitions.items()
        }
    except (ValueError, AttributeError) as exc:
        raise _malformed(option, text) from exc
    if any(isinstance(value, bool) or not isinstance(value, int) or value < minimum for value in values.values()):
        raise _malformed(option, text)
    return values


def parse_assignment(option: str, text: str) -> Sequence[TopicPartition]:
    """Parse `{"topic":[0,1]}`. Raises ConfigError."""
    try:
        topics = json.loads(text)
        found = [(topic, int(index)) for topic, indexes in topics.items() for index in indexes]
    except (ValueError, AttributeError, TypeError) as exc:
        raise ConfigError(f'{option} is JSON like {{"topic":[0,1]}}, not {text!r}') from exc
    if not found:
        raise ConfigError(f"{option} names no partition")
    return found


def _malformed(option: str, text: str) -> ConfigError:
    return ConfigError(f'{option} is JSON like {{"topic":{{"0":23,"1":5}}}}, not {text!r}')


@attrs.frozen(eq=False, repr=False)
class OffsetFinder:
    """Finds the offsets that a limit means in the bucket as it is now."""

    catalog: Catalog
    fail_on_data_loss: bool = True

    def find(self, limit: OffsetLimit, logs: Logs) -> Mapping[TopicPartition, int]:
        """Find the offset of each partition. A topic that was created again begins at its start.

        Raises ConfigError, TopicCreatedAgain, StoreError.
        """
        limit.check_names(logs)
        anew = recreations(limit.topic_ids, logs)
        for recreation in anew.values():
            report_loss(f"{limit.option}: {recreation}", fail=self.fail_on_data_loss, kind=TopicCreatedAgain)
        begun = {partition: log.start_offset for partition, log in logs.items() if partition[0] in anew}
        return {**begun, **self._find_all(limit, {name: log for name, log in logs.items() if name not in begun})}

    def _find_all(self, limit: OffsetLimit, logs: Logs) -> Mapping[TopicPartition, int]:
        if not limit.are_timestamps or self.catalog.brokers is not None or len(logs) < 2:
            return {partition: self._find_one(limit, partition, log) for partition, log in logs.items()}
        segments = (segment.key for log in logs.values() for segment in log.segments)
        self.catalog.footers(segments, with_timestamps=True)
        with ThreadPoolExecutor(min(READS_AT_ONCE_COUNT, len(logs))) as threads:
            offsets = threads.map(partial(self._find_one, limit), logs, logs.values())
            return dict(zip(logs, offsets, strict=True))

    def _find_one(self, limit: OffsetLimit, partition: TopicPartition, log: PartitionLog) -> int:
        value = limit.of(partition)
        if not limit.are_timestamps:
            return {EARLIEST: log.earliest_offset, LATEST: log.end_offset}.get(value, value)
        found = self._first_as_late(log, value)
        if found is not None:
            return found
        if limit.latest_if_none:
            return log.end_offset
        topic, index = partition
        raise ConfigError(
            f"{limit.option}: no record of partition {index} of topic '{topic}' is as late as {value}; "
            "set startingOffsetsByTimestampStrategy to latest to begin at its end"
        )

    def _first_as_late(self, log: PartitionLog, timestamp_ms: int) -> int | None:
        footers = self.catalog.footers((segment.key for segment in log.segments), with_timestamps=True)
        next_offset = log.earliest_offset
        for segment in log.segments:
            if segment.last_offset < log.start_offset:
                continue
            footer = footers.get(segment.key)
            if footer is None or segment.base_offset > next_offset:
                return next_offset  # damaged, or gone: who reads from here is told of it
            if footer.identity.max_timestamp_ms >= timestamp_ms:
                found = self._first_in(log, footer, timestamp_ms)
                if found is not None:
                    return found
            next_offset = max(next_offset, footer.last_offset + 1)
        return self._first_in_tail(log, timestamp_ms) if log.behind is None else self._first_behind(log, timestamp_ms)

    def _first_in(self, log: PartitionLog, footer: Footer, timestamp_ms: int) -> int | None:
        index = footer.index
        for row in (row for row, latest_ms in enumerate(index.max_timestamps_ms) if latest_ms >= timestamp_ms):
            start_offset, end_offset = max(footer.row_offset(row), log.start_offset), footer.row_offset(row + 1)
            if index.min_timestamps_ms[row] >= timestamp_ms and start_offset < end_offset:
                return start_offset  # all of it is as late, so none of it need be read
            found = self._first_between(log, start_offset, end_offset, timestamp_ms)
            if found is not None:
                return found
        return None

    def _first_in_tail(self, log: PartitionLog, timestamp_ms: int) -> int | None:
        for batch in log.tail.batches:
            if batch.max_timestamp_ms >= timestamp_ms and batch.next_offset > log.start_offset:
                found = self._first_between(log, batch.base_offset, batch.next_offset, timestamp_ms)
                if found is not None:
                    return found
        return None

    def _first_behind(self, log: PartitionLog, timestamp_ms: int) -> int | None:
        assert log.behind is not None
        assert self.catalog.brokers is not None
        found = self.catalog.brokers.first_as_late(log.fetched_topic(), timestamp_ms)
        if found is None or found >= log.behind.end_offset:
            return None
        return max(found, log.behind.base_offset)

    def _first_between(self, log: PartitionLog, start_offset: int, end_offset: int, timestamp_ms: int) -> int | None:
        reader = SplitReader(
            bucket=self.catalog.bucket,
            namespace=self.catalog.namespace,
            columns=["offset", "timestamp"],
            fail_on_data_loss=self.fail_on_data_loss,
            with_log=self.catalog.with_log,
            brokers=self.catalog.brokers,
            everything=True,  # as Kafka finds it, so that what follows is the same
        )
        extent = Extent(log=log, start_offset=max(start_offset, log.start_offset), end_offset=end_offset)
        for split in plan(self.catalog, [extent]):
            for records in reader.read(split):
                late = records["timestamp"].cast("int64").to_numpy() >= timestamp_ms * 1000
                if late.any():
                    return int(records["offset"][int(late.argmax())].as_py())
        return None
