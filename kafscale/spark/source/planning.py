"""Plans splits from options and conditions, on the driver: the wanted offsets, the existing ones, and the lost ones.

A missing offset is an error, or reported with failOnDataLoss=false. Conditions on `partition`, `offset` and `timestamp`
come as pyspark's filters, by names and attributes alone. Spark applies all of them again to the rows, so the bounds of
a read may be wider than the conditions, never narrower.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pyarrow as pa

from kafscale.errors import AccessDenied, ClockRefused, ConfigError, NotFound, StoreError, StoreUnavailable, WrongRegion
from kafscale.spark.bucket.bucket import CountedBucket
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.log_objects import KEPT_BYTES, memory_of
from kafscale.spark.bucket.position import Logs, Subscription, TopicPartition
from kafscale.spark.bucket.reading import DataLoss, SplitReader, give, report_loss, unknown_outcome
from kafscale.spark.bucket.splits import ALWAYS, BrokerRange, Extent, Period, Split, holes, outcomes, plan, together
from kafscale.spark.source.offsets import LATEST, OffsetFinder
from kafscale.spark.source.options import BatchOptions, Freshness, ReadOptions
from kafscale.spark.values.decoder import DECODED, Decoding
from kafscale.spark.values.options import ValueOptions

EPOCH = datetime.fromtimestamp(0, UTC)
MILLISECOND = timedelta(milliseconds=1)

OPERATORS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
SWAPPED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}  # what holds with the sides exchanged

Limit = TypeVar("Limit")


@attrs.frozen(kw_only=True)
class QueryBounds:
    """Bounds of a read; None is unbounded. `end_offset` is exclusive."""

    partitions: Set[int] | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    period: Period = ALWAYS

    @classmethod
    def of(cls, filters: Iterable[Any]) -> QueryBounds:
        """Make the bounds of conditions that must all hold."""
        bounds = cls()
        for condition in filters:
            bounds = bounds._with(type(condition).__name__, condition)
        return bounds

    def either(self, other: QueryBounds) -> QueryBounds:
        """Return bounds wide enough for rows within either of the two."""
        return QueryBounds(
            partitions=_both(frozenset.union, _frozen(self.partitions), _frozen(other.partitions)),
            start_offset=_both(min, self.start_offset, other.start_offset),
            end_offset=_both(max, self.end_offset, other.end_offset),
            period=self.period.with_others(other.period),
        )

    def within(self, other: QueryBounds) -> QueryBounds:
        return QueryBounds(
            partitions=_narrower(frozenset.intersection, _frozen(self.partitions), _frozen(other.partitions)),
            start_offset=_narrower(max, self.start_offset, other.start_offset),
            end_offset=_narrower(min, self.end_offset, other.end_offset),
            period=self.period.without_others(other.period),
        )

    @classmethod
    def of_offset(cls, operator: str, offset: int) -> QueryBounds:
        """Return the bounds of offsets for which a comparison (`=`, `<`, `<=`, `>`, `>=`) is true."""
        return cls(
            start_offset=max(0, offset + (operator == ">")) if operator in (">", ">=", "=") else None,
            end_offset=offset + (operator != "<") if operator in ("<", "<=", "=") else None,
        )

    def narrow(self, extent: Extent) -> Extent | None:
        """Return the part of an extent within the bounds; None if it is empty."""
        if self.partitions is not None and extent.log.partition not in self.partitions:
            return None
        start_offset, end_offset = extent.start_offset, extent.end_offset
        if self.start_offset is not None:
            start_offset = max(start_offset, self.start_offset)
        if self.end_offset is not None:
            end_offset = min(end_offset, self.end_offset)
        if start_offset >= end_offset:
            return None
        return attrs.evolve(extent, start_offset=start_offset, end_offset=end_offset, period=self.period)

    def _with(self, kind: str, condition: Any) -> QueryBounds:
        name = ".".join(getattr(condition, "attribute", ()))  # a Not has none
        value: Any = getattr(condition, "value", None)
        if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            return self._with_timestamp(kind, (value - EPOCH) // MILLISECOND)
        if name == "partition" and kind in ("EqualTo", "EqualNullSafe", "In"):
            values = {partition for partition in (value if kind == "In" else (value,)) if partition is not None}
            return attrs.evolve(self, partitions=values if self.partitions is None else values & self.partitions)
        if name == "offset" and isinstance(value, int) and kind in OPERATORS:
            return self.within(QueryBounds.of_offset(OPERATORS[kind], value))
        return self

    def _with_timestamp(self, kind: str, timestamp_ms: int) -> QueryBounds:
        period = self.period
        if kind in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"):
            period = period.without_others(Period(first_ms=timestamp_ms))
        if kind in ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"):
            period = period.without_others(Period(last_ms=timestamp_ms))
        return attrs.evolve(self, period=period)


def _both(choose: Callable[[Limit, Limit], Limit], one: Limit | None, other: Limit | None) -> Limit | None:
    """Join the bounds of two conditions of which one must hold: unbounded if either is."""
    return None if one is None or other is None else choose(one, other)


def _narrower(choose: Callable[[Limit, Limit], Limit], one: Limit | None, other: Limit | None) -> Limit | None:
    """Join the bounds of two conditions that must both hold."""
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def _frozen(values: Set[int] | None) -> frozenset[int] | None:
    return None if values is None else frozenset(values)


@attrs.frozen
class Uses:
    """The bounds of all scans of one `load()`, noted in a file, so that no scan leaves out rows that another needs."""

    path: Path

    def note(self, bounds: QueryBounds) -> QueryBounds:
        """Add the bounds of one more scan, and return bounds that are wide enough for all."""
        with self.path.open("a+", encoding="utf-8") as file:
            file.write(json.dumps(attrs.asdict(bounds), default=sorted) + "\n")
            file.seek(0)
            for line in file:
                noted = json.loads(line)
                bounds = bounds.either(QueryBounds(**{**noted, "period": Period(**noted["period"])}))
        return bounds


def forget(directory: Path, older_than_seconds: float) -> None:
    oldest = time.time() - older_than_seconds
    for path in directory.iterdir():
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                path.unlink()


Offsets = Mapping[TopicPartition, int]

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Planner:
    """Plans reads of one bucket."""

    options: ReadOptions
    catalog: Catalog

    @classmethod
    def of(cls, options: ReadOptions, *, counts: bool = False) -> Planner:
        """Open the bucket. `counts`: count its requests. Raises ConfigError."""
        brokers = None if options.brokers is None else options.brokers.open()
        bucket, with_log = options.bucket.open(), options.freshness is Freshness.BUCKET
        bucket = CountedBucket(bucket) if counts else bucket
        memory = memory_of(options.bucket, options.namespace)
        return cls(
            options=options,
            catalog=Catalog(bucket, options.namespace, options.committed_only, with_log, brokers, memory),
        )

    def close(self) -> None:
        self.catalog.bucket.close()
        if self.catalog.brokers is not None:
            self.catalog.brokers.close()

    @property
    def finder(self) -> OffsetFinder:
        return OffsetFinder(self.catalog, self.options.fail_on_data_loss)

    def logs(self, known: Collection[TopicPartition] = (), *, must_exist: bool = True) -> Logs:
        """Return the subscribed partitions as the bucket has them now. Raises ConfigError, StoreError."""
        try:
            return self.options.subscription.find(self.catalog, known=known, must_exist=must_exist)
        except (AccessDenied, NotFound, StoreUnavailable, WrongRegion) as exc:
            url = self.options.bucket.url
            kind = StoreUnavailable if isinstance(exc, StoreUnavailable) else StoreError  # the first may pass
            advice = "Check the options store, s3Endpoint and s3Region, and the credentials"
            if isinstance(exc, ClockRefused):
                advice = "Check the clocks of driver and executors"
            raise kind(f"{url} can't be listed: {exc}. {advice}") from exc

    def batch(self, options: BatchOptions, bounds: QueryBounds) -> Sequence[Split]:
        """Plan all splits of a batch query. Raises ConfigError, DataLoss, StoreError."""
        logs = self.logs({*options.starting.names, *options.ending.names})
        starts, ends = self.finder.find(options.starting, logs), self.finder.find(options.ending, logs)
        for (topic, index), start in starts.items():
            if start > ends[topic, index]:
                raise ConfigError(
                    f"partition {index} of topic '{topic}' would begin at {start} ({options.starting.option}) and end "
                    f"at {ends[topic, index]} ({options.ending.option}); {logs[topic, index].why_it_ends}"
                )
        if options.ending.has(LATEST):
            self.report_damaged(logs.values())
        found = self.splits(logs, starts, ends, bounds=bounds)
        check_size(found, options.max_scan_bytes)
        return found

    def splits(
        self, logs: Logs, starts: Offsets, ends: Offsets, *, bounds: QueryBounds | None = None
    ) -> Sequence[Split]:
        """Plan the splits of these offsets. Raises DataLoss, StoreError."""
        if self._has_holes(logs, starts, ends):  # were segments merged and deleted since they were listed?
            now = self.logs(logs, must_exist=False)
            same = {name for name, log in logs.items() if name in now and now[name].topic_id == log.topic_id}
            logs = {name: now[name] if name in same else log for name, log in logs.items()}
        extents = [self._extent(log, starts[partition], ends[partition]) for partition, log in logs.items()]
        if bounds is not None:
            extents = [extent for extent in map(bounds.narrow, extents) if extent is not None]
        for extent in extents:
            for hole in holes(self.catalog, extent):
                self._lose(extent.log, hole.start, hole.stop, "no intact segment has them")
            for transaction in outcomes(self.catalog, extent).unknown:
                self.report(unknown_outcome(extent.log, transaction))
        found = plan(
            self.catalog,
            extents,
            min_splits=self.options.min_partitions or 0,
            max_records=self.options.max_records_per_partition,
        )
        _log_plan(logs.values(), found)
        return found

    def tasks(self, splits: Sequence[Split]) -> Sequence[Sequence[Split]]:
        """Group splits by task; one each where options limit their number or size.

        Small ranges of the write-ahead log that the planner has read go along.
        """
        contents = self.catalog.log_contents
        is_one_each = self.options.min_partitions or self.options.max_records_per_partition
        tasks = [[split] for split in splits] if is_one_each else together(splits)
        return [task for group in tasks for task in give(group, contents)]

    def given(self, splits: Sequence[Split]) -> Sequence[Split]:
        """Return the splits with the log's contents in them, to be read in this process."""
        tasks = give(splits, self.catalog.log_contents, max_bytes=KEPT_BYTES)
        return [split for task in tasks for split in task]

    def reader(self, columns: Sequence[str]) -> SplitReader:
        return SplitReader(
            bucket=self.catalog.bucket,
            namespace=self.catalog.namespace,
            columns=columns,
            fail_on_data_loss=self.options.fail_on_data_loss,
            committed_only=self.options.committed_only,
            with_log=self.catalog.with_log,
            brokers=self.catalog.brokers,
        )

    def report(self, message: str, kind: type[DataLoss] = DataLoss) -> None:
        report_loss(message, fail=self.options.fail_on_data_loss, kind=kind)

    def gone(self, topic: str) -> str:
        """Return the end of a sentence that tells why a topic's partition has gone."""
        deletion = self.catalog.metadata.deletion_of(topic)
        return "has gone" if deletion is None else f"has gone: {deletion}"

    def report_damaged(self, logs: Collection[PartitionLog]) -> None:
        """Report damage behind the readable end, which no requested offset would meet."""
        damage = self.catalog.present.damage
        if damage is not None:
            self.report(f"the write-ahead log in the bucket is not read, only what was flushed: {damage}")
        for log in logs:
            for key in log.damaged:
                if key.base_offset >= log.written_end_offset:
                    self.report(f"{key.key} is damaged, so partition {log.partition} of {log.topic} ends before it")

    def _has_holes(self, logs: Logs, starts: Offsets, ends: Offsets) -> bool:
        return any(
            holes(self.catalog, Extent(log=log, start_offset=first, end_offset=behind))
            for partition, log in logs.items()
            if (first := max(starts[partition], log.start_offset)) < (behind := min(ends[partition], log.end_offset))
        )

    def _extent(self, log: PartitionLog, start_offset: int, end_offset: int) -> Extent:
        first, behind = start_offset, end_offset
        if start_offset < end_offset:
            first = min(max(start_offset, log.start_offset), end_offset)
            behind = max(min(end_offset, log.end_offset), first)
            if start_offset < first:
                self._lose(log, start_offset, first, f"the log begins at {log.start_offset} now")
            if behind < end_offset:
                self._lose(log, behind, end_offset, log.why_it_ends)
        return Extent(log=log, start_offset=first, end_offset=behind)

    def _lose(self, log: PartitionLog, start_offset: int, end_offset: int, why: str) -> None:
        self.report(f"offsets {start_offset} to {end_offset - 1} of partition {log.partition} of {log.topic}: {why}")


def check_size(splits: Sequence[Split], max_scan_bytes: int | None) -> None:
    scan_bytes = sum(split.size_bytes for split in splits)
    if max_scan_bytes is not None and scan_bytes > max_scan_bytes:
        topics = ", ".join(sorted({split.topic for split in splits}))
        raise ConfigError(
            f"the query would read {scan_bytes:,} bytes of {topics}, and maxScanBytes is {max_scan_bytes:,}: bound it "
            "by conditions on timestamp, offset or partition, or raise the limit"
        )


def _log_plan(logs: Collection[PartitionLog], splits: Sequence[Split]) -> None:
    segments = [segment for log in logs for segment in log.segments]
    read = {range_.key for split in splits for range_ in split.ranges if not isinstance(range_, BrokerRange)}
    logger.info(
        "%d splits, which read %d of %d bytes, of %d of %d segments, in %d partitions",
        len(splits),
        sum(split.size_bytes for split in splits),
        sum(segment.size_bytes for segment in segments),
        len(read),
        len(segments),
        len({(split.topic, split.partition) for split in splits}),
    )


def read_records(
    planner: Planner,
    splits: Sequence[Split],
    columns: Sequence[str],
    decoding: Decoding | None,
) -> Iterator[pa.RecordBatch]:
    """Read splits, one after the other. Raises DataLoss, StoreError, RegistryError."""
    for records in planner.reader(_stored(columns, decoding)).read_all(splits):
        if decoding is None:
            yield records
        else:
            yield from decoding.select(records, columns)


def _stored(columns: Sequence[str], decoding: Decoding | None) -> Sequence[str]:
    if decoding is None:
        return columns
    return list(dict.fromkeys([*(name for name in columns if name != DECODED), "value", "headers"]))


def topic_of_subject(values: ValueOptions, subscription: Subscription) -> str | None:
    """Return the topic whose subject has the reader schema, if none is given.

    Raises ConfigError unless it is one topic.
    """
    if values.subject is not None or values.schema is not None:
        return None
    topics = sorted({*subscription.topics, *(topic for topic, _ in subscription.assigned)})
    if len(topics) != 1:
        found = "a pattern" if subscription.pattern is not None else ", ".join(topics)
        raise ConfigError(
            f"valueFormat reads all values into one schema, and {found} may have many: say which by valueSubject or "
            "valueSchema, or load each topic by itself"
        )
    return topics[0]
