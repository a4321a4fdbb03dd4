"""Topics as DataFrames. Each is made by a `load()` of its own, since Spark keeps what conditions let it leave out, and
what there was to read, for all queries on one."""

from __future__ import annotations

import atexit
import difflib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import attrs

from kafscale.errors import QueryError
from kafscale.spark.bucket.catalog import PartitionLog
from kafscale.spark.source.options import FORMAT, Given, ReadOptions
from kafscale.spark.source.planning import Planner
from kafscale.spark.sql.clauses import Bound
from kafscale.spark.sql.tails import tail_offsets
from kafscale.store.paths import topic_name_prefix

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"  # what conditions spare reading by needs it
ALWAYS = "offset >= 0"  # a condition for scans that have no other, as the source is not told of those without one


def _directory() -> Path:
    """Make a directory that is there until the process ends."""
    path = Path(mkdtemp(prefix="kafscale-sql-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Topics:
    """The topics of a bucket.

    options: of `format("kafscale")`, without those that say what to read. `clock` is in seconds. `notes`: a directory
    for the conditions of statements.
    """

    spark: SparkSession
    options: Mapping[str, str]
    max_scan_bytes: int | None = None
    clock: Callable[[], float] = time.time
    notes: Path = attrs.field(factory=_directory)

    @property
    def filtering(self) -> dict[str, str]:
        """The options that conditions spare reading by. Each scan needs one: see ALWAYS."""
        return {"pushFilters": "true", "pushedFiltersDirectory": str(self.notes)}

    def names(self) -> Sequence[str]:
        """Return the names of all topics, in order. Raises ConfigError, StoreError."""
        with closing(self.planner()) as planner:
            return planner.catalog.topics()

    def has(self, name: str) -> bool:
        """Tell whether anything of it is in the bucket, or it is known to be empty. Raises ConfigError, StoreError."""
        with closing(self.planner()) as planner:
            prefix = topic_name_prefix(name, namespace=planner.options.namespace)
            is_listed = next(iter(planner.catalog.bucket.list(prefix)), None) is not None
            return is_listed or name in planner.catalog.metadata.topics

    def logs(self, topic: str) -> Mapping[int, PartitionLog]:
        """Its partitions, as the bucket has them now. Raises ConfigError, StoreError."""
        with closing(self.planner()) as planner:
            return planner.catalog.partitions(topic)

    def frame(
        self, topic: str, bound: Bound, *, partition: int | None = None, options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Return what the bound leaves of a topic. Raises ConfigError, QueryError, StoreError.

        partition: the tail of this one alone. options: for this frame alone.
        """
        what = {"subscribe": topic} if bound.tail_count is None else self._tail(topic, bound.tail_count, partition)
        chosen = {**self.filtering, **self.options, **self._limit(bound), **what, **(options or {})}
        frame = self.spark.read.format(FORMAT).options(**chosen).load().where(ALWAYS)
        if bound.last_ms is not None:
            frame = frame.where(f"timestamp >= timestamp_millis({int(self.clock() * 1000) - bound.last_ms})")
        return frame if bound.tail_count is None else _last_of(frame, bound.tail_count)

    def _limit(self, bound: Bound) -> dict[str, str]:
        if self.max_scan_bytes is None or bound.is_full:
            return {}
        return {"maxScanBytes": str(self.max_scan_bytes)}

    def _tail(self, topic: str, count: int, partition: int | None) -> dict[str, str]:
        with closing(self.planner()) as planner:
            starts = tail_offsets(planner.catalog, topic, count, partition)
        if not starts:
            raise QueryError(f"topic '{topic}' has no partition {partition} in the bucket")
        return {
            "assign": json.dumps({topic: list(starts)}),
            "startingOffsets": json.dumps({topic: {str(index): start for index, start in starts.items()}}),
        }

    def no_such(self, name: str) -> QueryError:
        """Return an error to raise, which says which topics there are."""
        there = self.names()
        near = difflib.get_close_matches(name, there, n=1) or there[:5]
        told = f"topics: {', '.join(near)}" if near else "there is no topic at all"
        return QueryError(
            f"there is no topic, table or view '{name}' ({told}). Check the name, --store and --namespace; records "
            "that were just produced come into the bucket by `kafscale flush`, and a new topic within 10 s"
        )

    def planner(self) -> Planner:
        """Open a planner, which the caller closes. Raises ConfigError."""
        return Planner.of(ReadOptions.of(Given({**self.options, "subscribePattern": ".*"})))


def _last_of(frame: DataFrame, count: int) -> DataFrame:
    """Return the last rows by timestamp, or by offset if they are of one partition."""
    from pyspark.sql.functions import col

    newest = frame.orderBy(col("timestamp").desc(), col("partition"), col("offset").desc()).limit(count)
    ordered: DataFrame = newest.orderBy("timestamp", "partition", "offset")
    return ordered
