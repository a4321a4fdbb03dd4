"""Topics as DataFrames, each by a `load()` of its own, since Spark keeps conditions and plans for all its queries."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import attrs

from kafscale.spark.source.options import FORMAT, Given
from kafscale.spark.sql.bucket_topics import BucketTopics
from kafscale.spark.sql.clauses import Bound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"  # what conditions spare reading by needs it
ALWAYS = "offset >= 0"  # a condition for scans that have no other, as the source is not told of those without one


def _directory() -> Path:
    """Make a directory that exists until the process ends."""
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
        """Return the options that let conditions bound a read. Each scan needs one: see ALWAYS."""
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
        """Return what the bound leaves of a topic. Raises ConfigError, QueryError, StoreError.

        partition: read the tail of this partition alone. options: options for this frame alone. columns: the needed
        columns among those that every topic has; None for all.
        """
        chosen = {**self.filtering, **self.reading(topic, bound, partition=partition, options=options)}
        reader = self.spark.read.format(FORMAT).options(**chosen)
        if columns is not None:
            own = {"offset", *(["timestamp"] if bound.last_ms is not None else []), *_order(bound)}
            without = set() if Given(chosen).flag("includeHeaders", False) else {"headers"}
            reader = reader.schema(_schema((columns | own) - without))
        frame = reader.load().where(ALWAYS)
        if bound.last_ms is not None:
            frame = frame.where(f"timestamp >= timestamp_millis({int(self.clock() * 1000) - bound.last_ms})")
        return frame if bound.tail_count is None else _last_of(frame, bound.tail_count)


def _order(bound: Bound) -> Sequence[str]:
    """Return the columns that order the last records."""
    return () if bound.tail_count is None else ("timestamp", "partition", "offset")


def _schema(columns: Set[str]) -> StructType:
    from pyspark.sql.types import StructType

    from kafscale.spark.source.source import HEADERS, SCHEMA

    return StructType([field for field in [*SCHEMA.fields, HEADERS] if field.name in columns])


def _last_of(frame: DataFrame, count: int) -> DataFrame:
    """Return the last rows by timestamp, or by offset within one partition."""
    from pyspark.sql.functions import col

    newest = frame.orderBy(col("timestamp").desc(), col("partition"), col("offset").desc()).limit(count)
    ordered: DataFrame = newest.orderBy("timestamp", "partition", "offset")
    return ordered
