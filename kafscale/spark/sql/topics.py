"""The topics of a bucket for statements of either engine, and as DataFrames.

SHOW TOPICS [LIKE 'pattern'] and SHOW PARTITIONS FROM topic are answered by a listing; no record is read. Footers of the
last segments, and the log behind them, tell where the last records of a topic begin; records are read only where
producers write transactions, since footers count markers and aborted records too. Each DataFrame has a `load()` of its
own, since Spark keeps conditions and plans for all its queries.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.errors import QueryError
from kafscale.formats.segment import Footer
from kafscale.formats.transactions import NO_COORDINATOR_EPOCH
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.position import some_of
from kafscale.spark.bucket.reading import SplitReader
from kafscale.spark.bucket.splits import Extent, plan
from kafscale.spark.source.options import FORMAT, Given, ReadOptions
from kafscale.spark.source.planning import Planner
from kafscale.spark.sql.kafsql import Bound
from kafscale.spark.sql.tokens import SqlToken, tokenize
from kafscale.store.paths import topic_name_prefix

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def tail_offsets(catalog: Catalog, topic: str, count: int, partition: int | None = None) -> Mapping[int, int]:
    """Return by partition an offset with `count` records from there on, or all if there are fewer.

    There may be more in a segment with holes by compaction. partition: of this one alone. Raises StoreError.
    """
    logs = catalog.partitions(topic)
    return {
        index: _Tail(catalog, log).start(count)
        for index, log in logs.items()
        if partition is None or index == partition
    }


def _has_transactions(footer: Footer) -> bool:
    """Tell whether a segment may have transactions, as far as it remembers its producers."""
    return bool(footer.aborted) or any(
        producer.coordinator_epoch != NO_COORDINATOR_EPOCH for producer in footer.producers
    )


@attrs.frozen(eq=False, repr=False)
class _Tail:
    """The last records of a partition."""

    catalog: Catalog
    log: PartitionLog

    def start(self, count: int) -> int:
        log, end_offset, has_transactions = self.log, self.log.end_offset, False
        if not count:
            return end_offset
        if log.behind is not None and log.behind.base_offset < end_offset:
            found = self._behind_segments(log.behind.base_offset, end_offset, count)
            if len(found) >= count:
                return found[-count]
            count, end_offset = count - len(found), log.behind.base_offset
        for batch in reversed(log.tail.batches):
            available = 0 if batch.header is not None else min(end_offset, batch.next_offset) - batch.base_offset
            if available >= count:
                return min(end_offset, batch.next_offset) - count
            count -= max(0, available)
            end_offset = min(end_offset, batch.base_offset)
        for segment in reversed(log.segments):
            footer = self.catalog.footers([segment.key]).get(segment.key)
            if footer is None:
                continue  # damaged: the query that reads these offsets tells
            has_transactions = has_transactions or _has_transactions(footer)
            if has_transactions:
                found = self._in_segment(footer, end_offset, count)
                available = len(found)
                if found and available >= count:
                    return found[0]
            else:
                segment_end = footer.last_offset + 1
                is_dense = footer.record_count == segment_end - segment.base_offset
                if is_dense:
                    available = min(end_offset, segment_end) - segment.base_offset
                else:  # a segment with holes does not tell more
                    available = footer.record_count if segment_end <= end_offset else 0
                if available >= count:
                    return min(end_offset, segment_end) - count if is_dense else segment.base_offset
            count -= available
            end_offset = min(end_offset, segment.base_offset)
        return log.earliest_offset

    def _in_segment(self, footer: Footer, end_offset: int, count: int) -> Sequence[int]:
        """Read back from the end; return the last `count` offsets, or all if there are fewer."""
        found: list[int] = []
        row, rows_count = footer.row_of(end_offset - 1) + 1, 1
        while row and len(found) < count:
            first = max(0, row - rows_count)
            start_offset = max(footer.row_offset(first), self.log.start_offset)
            found = [*self._read(start_offset, end_offset), *found]
            row, rows_count, end_offset = first, 2 * rows_count, start_offset
        return found[-count:]

    def _behind_segments(self, start_offset: int, end_offset: int, count: int) -> Sequence[int]:
        """Read back from the end; return at least the last `count` offsets, or all."""
        found: list[int] = []
        width = count
        while start_offset < end_offset and len(found) < count:
            first = max(start_offset, end_offset - width)
            found = [*self._read(first, end_offset), *found]
            end_offset, width = first, 2 * width
        return found

    def _read(self, start_offset: int, end_offset: int) -> Sequence[int]:
        reader = SplitReader(
            bucket=self.catalog.bucket,
            namespace=self.catalog.namespace,
            columns=["offset"],
            fail_on_data_loss=False,  # the query that reads these offsets tells
            committed_only=self.catalog.committed_only,
            with_log=self.catalog.with_log,
            brokers=self.catalog.brokers,
        )
        splits = plan(self.catalog, [Extent(log=self.log, start_offset=start_offset, end_offset=end_offset)])
        read = chain.from_iterable(map(reader.read, splits))
        return [offset for records in read for offset in records["offset"].to_pylist()]


TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")  # Kafka's rule


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BucketTopics:
    """The topics of a bucket; methods raise ConfigError, StoreError. `clock` is in seconds.

    options: of `format("kafscale")`, without those that say what to read.
    """

    options: Mapping[str, str]
    max_scan_bytes: int | None = None
    clock: Callable[[], float] = time.time

    def names(self) -> Sequence[str]:
        with closing(self.planner()) as planner:
            return planner.catalog.topics()

    def has(self, name: str) -> bool:
        """Tell whether a topic has objects in the bucket, or is known to be empty."""
        if not TOPIC_NAME.fullmatch(name):
            return False
        with closing(self.planner()) as planner:
            if planner.catalog.brokers is not None:
                return name in planner.catalog.topics()
            prefix = topic_name_prefix(name, namespace=planner.options.namespace)
            is_listed = next(iter(planner.catalog.bucket.list(prefix)), None) is not None
            return is_listed or name in planner.catalog.metadata.topics

    def logs(self, topic: str) -> Mapping[int, PartitionLog]:
        with closing(self.planner()) as planner:
            return planner.catalog.partitions(topic)

    def reading(
        self, topic: str, bound: Bound, *, partition: int | None = None, options: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return the options to read one reference to a topic; `partition`: its tail alone. Raises QueryError too."""
        what = {"subscribe": topic} if bound.tail_count is None else self._tail(topic, bound.tail_count, partition)
        has_limit = self.max_scan_bytes is not None and not bound.is_full
        limit = {"maxScanBytes": str(self.max_scan_bytes)} if has_limit else {}
        return {**self.options, **limit, **what, **(options or {})}

    def no_such(self, name: str) -> QueryError:
        told = some_of(self.names(), near_to=name, label="topics")
        return QueryError(
            f"there is no topic, table or view '{name}' ({told}). Check the name, --store and --namespace; records "
            "that were just produced come into the bucket by `kafscale flush`, and a new topic within 10 s"
        )

    def planner(self) -> Planner:
        return Planner.of(ReadOptions.of(Given({**self.options, "subscribePattern": ".*"})))

    def _tail(self, topic: str, count: int, partition: int | None) -> dict[str, str]:
        with closing(self.planner()) as planner:
            starts = tail_offsets(planner.catalog, topic, count, partition)
        if not starts:
            raise QueryError(f"topic '{topic}' has no partition {partition} in the bucket")
        return {
            "assign": json.dumps({topic: list(starts)}),
            "startingOffsets": json.dumps({topic: {str(index): start for index, start in starts.items()}}),
        }


@attrs.frozen(kw_only=True)
class CommandRows:
    types: Mapping[str, str]
    rows: Sequence[tuple[Any, ...]]


def answer_command(statement: str, topics: BucketTopics) -> CommandRows | None:
    """Answer a command about topics; None for any other statement. Raises ConfigError, QueryError, StoreError."""
    tokens = [token for token in tokenize(statement) if token.text != ";"]
    words = [token.word for token in tokens]
    if words[:2] == ["SHOW", "TOPICS"]:
        return _show_topics(tokens[2:], topics)
    if words[:2] == ["SHOW", "PARTITIONS"] and words[2:3] in (["FROM"], ["IN"]):
        return _show_partitions("".join(token.name for token in tokens[3:]), topics)
    return None


def _show_topics(rest: Sequence[SqlToken], topics: BucketTopics) -> CommandRows:
    pattern = rest[-1].text.strip("'\"").lower() if rest else "*"
    if rest and [token.word for token in rest[:-1]] not in ([], ["LIKE"]):
        raise QueryError(f"SHOW TOPICS {rest[0].text}: allowed: SHOW TOPICS, or SHOW TOPICS LIKE 'pattern*'")
    names = [name for name in topics.names() if any(fnmatchcase(name.lower(), part) for part in pattern.split("|"))]
    return CommandRows(types={"topic": "STRING"}, rows=[(name,) for name in names])


def _show_partitions(topic: str, topics: BucketTopics) -> CommandRows:
    logs = topics.logs(topic)
    if not logs:
        raise topics.no_such(topic)
    rows = []
    for index, log in logs.items():
        size_bytes = sum(segment.size_bytes for segment in log.segments)
        rows.append((index, log.start_offset, log.end_offset, len(log.segments), size_bytes))
    offsets = {"partition": "INT", "start_offset": "BIGINT", "end_offset": "BIGINT"}
    return CommandRows(types={**offsets, "segments": "INT", "bytes": "BIGINT"}, rows=rows)


PUSHDOWN = "spark.sql.python.filterPushdown.enabled"  # what conditions spare reading by needs it
ALWAYS = "offset >= 0"  # a condition for scans that have no other, as the source is not told of those without one


def _directory() -> Path:
    path = Path(mkdtemp(prefix="kafscale-sql-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Topics(BucketTopics):
    """The topics of a bucket, for one session of Spark. `notes`: a directory for the conditions of statements."""

    spark: SparkSession
    notes: Path = attrs.field(factory=_directory)

    @property
    def filtering(self) -> dict[str, str]:
        return {"pushFilters": "true", "pushedFiltersDirectory": str(self.notes)}

    def frame(
        self,
        topic: str,
        bound: Bound,
        *,
        partition: int | None = None,
        options: Mapping[str, str] | None = None,
        columns: Set[str] | None = None,
    ) -> DataFrame:
        """Return the part of a topic within the bound. Raises ConfigError, QueryError, StoreError.

        columns: the needed columns among those that every topic has; None for all.
        """
        from pyspark.sql.functions import col

        chosen = {**self.filtering, **self.reading(topic, bound, partition=partition, options=options)}
        reader = self.spark.read.format(FORMAT).options(**chosen)
        if columns is not None:
            own = {"offset", *(["timestamp"] if bound.last_ms is not None else [])}
            own |= set() if bound.tail_count is None else {"timestamp", "partition", "offset"}
            without = set() if Given(chosen).flag("includeHeaders", False) else {"headers"}
            reader = reader.schema(_schema((columns | own) - without))
        frame: DataFrame = reader.load().where(ALWAYS)
        if bound.last_ms is not None:
            frame = frame.where(f"timestamp >= timestamp_millis({int(self.clock() * 1000) - bound.last_ms})")
        if bound.tail_count is None:
            return frame
        newest = frame.orderBy(col("timestamp").desc(), col("partition"), col("offset").desc()).limit(bound.tail_count)
        return newest.orderBy("timestamp", "partition", "offset")


def _schema(columns: Set[str]) -> StructType:
    from pyspark.sql.types import StructType

    from kafscale.spark.source.source import HEADERS, SCHEMA

    return StructType([field for field in [*SCHEMA.fields, HEADERS] if field.name in columns])
