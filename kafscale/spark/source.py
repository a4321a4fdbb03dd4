"""`format("kafscale")` for Spark: the columns of its Kafka source, from the bucket.

Planning is in `planning` and `progress`, reading in `reading`; here is what pyspark calls. This module imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafscale.errors import ConfigError
from kafscale.spark.bounds import Bounds
from kafscale.spark.offsets import from_json, to_json
from kafscale.spark.options import BatchOptions, Given, ReadOptions, StreamOptions
from kafscale.spark.planning import Planner
from kafscale.spark.progress import Progress
from kafscale.spark.splits import Split

Offsets = dict[str, dict[str, int]]

NAME = "kafscale"
LARGEST_COUNT = (1 << 63) - 1
HEADERS = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


class KafScaleDataSource(DataSource):
    """Made by Spark for each `load()` and `save()`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises ConfigError for an option that there is not."""
        super().__init__(dict(options))
        self.given = Given(options)

    @classmethod
    def name(cls) -> str:
        """What `format()` is given."""
        return NAME

    def schema(self) -> StructType:
        """Of the Kafka source, headers at its end if they are asked for. Raises ConfigError."""
        options = self._read_options()
        return StructType([*SCHEMA.fields, HEADERS]) if options.include_headers else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch query. Raises ConfigError."""
        reader = FilteringReader if self.given.flag("pushFilters", False) else BatchReader
        return reader(options=self._read_options(), limits=BatchOptions.of(self.given), columns=columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of a streaming query. Raises ConfigError."""
        return StreamReader(
            options=self._read_options(), limits=StreamOptions.of(self.given), columns=columns_of(schema)
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a batch query. Raises ConfigError."""
        from kafscale.spark.writer import TopicWriter, WriteOptions  # confluent-kafka is not for reading

        return TopicWriter(options=WriteOptions.of(self.given, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Of a streaming query. Raises ConfigError."""
        from kafscale.spark.writer import StreamTopicWriter, WriteOptions

        return StreamTopicWriter(options=WriteOptions.of(self.given, schema, overwrite=overwrite))

    def _read_options(self) -> ReadOptions:
        options = ReadOptions.of(self.given)
        self.given.warn_of_ignored()
        return options


def columns_of(schema: StructType) -> Sequence[str]:
    """The names of a user's schema, in its order. Raises ConfigError for one that does not fit."""
    types = {field.name: field.dataType for field in [*SCHEMA.fields, HEADERS]}
    for field in schema.fields:
        if types.get(field.name) != field.dataType:
            columns = ", ".join(f"{name} {type_.simpleString()}" for name, type_ in types.items())
            raise ConfigError(
                f"there is no column {field.name} {field.dataType.simpleString()}; a schema takes some of: {columns}"
            )
    return [field.name for field in schema.fields]


class SplitPartition(InputPartition):
    """A split on its way to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


@attrs.define(kw_only=True, eq=False, slots=False)
class _SplitReading:
    """What a task does. Travels to it, without what the driver has open."""

    options: ReadOptions
    columns: Sequence[str]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The records of a split. Raises DataLoss, StoreError."""
        if isinstance(partition, SplitPartition):  # Spark makes up one, None, of a plan that has none
            with closing(Planner.of(self.options)) as planner:
                yield from planner.reader(self.columns).read(partition.split)


@attrs.define(kw_only=True, eq=False, slots=False)
class BatchReader(_SplitReading, DataSourceReader):
    """Plans a batch query, and reads it."""

    limits: BatchOptions
    bounds: Bounds = attrs.field(factory=Bounds, init=False)

    def partitions(self) -> list[SplitPartition]:
        """Raises ConfigError, DataLoss, StoreError."""
        with closing(Planner.of(self.options)) as planner:
            return [SplitPartition(split) for split in planner.batch(self.limits, self.bounds)]


class FilteringReader(BatchReader):
    """Leaves out what conditions exclude.

    A class of its own, as Spark keeps one set of conditions per `load()` (another query on the DataFrame would be read
    by the same), and refuses a reader that has `pushFilters` unless a setting allows it.
    """

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Spark applies all of them again: what is left out is left out by whole batches."""
        self.bounds = Bounds.of(filters)
        return filters


def _available_now() -> Any:
    """A mark of Spark 4.2: it asks such a reader again under Trigger.AvailableNow, so that limits hold there too."""
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:
        return object
    return SupportsTriggerAvailableNow


_AvailableNow: Any = _available_now()


@attrs.define(kw_only=True, eq=False, slots=False)
class StreamReader(_SplitReading, DataSourceStreamReader, _AvailableNow):
    """Plans the batches of a stream, and reads them."""

    limits: StreamOptions
    _progress: Progress | None = attrs.field(default=None, init=False)

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs."""
        return {**self.__dict__, "_progress": None}

    @property
    def progress(self) -> Progress:
        """Opened by the first call. Raises ConfigError."""
        if self._progress is None:
            self._progress = Progress(planner=Planner.of(self.options), options=self.limits)
        return self._progress

    def stop(self) -> None:
        """Spark has done with it."""
        if self._progress is not None:
            self._progress.planner.close()

    def initialOffset(self) -> Offsets:
        """Raises ConfigError, StoreError."""
        return to_json(self.progress.initial())

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:
        """Raises ConfigError, DataLoss, StoreError.

        Spark 4.1 gives no arguments. Later ones say where the stream is, and whether the trigger wants all there is.
        """
        position = None if start is None else from_json(start)
        return to_json(self.progress.latest(position, is_limited=type(limit).__name__ != "ReadAllAvailable"))

    def getDefaultReadLimit(self) -> Any:
        """Of Spark 4.2 and later, which gives it back to `latestOffset`; it stands for all limits of the options."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        return ReadMaxRows(self.limits.max_offsets or LARGEST_COUNT) if self.limits.limits else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Of Spark 4.2 and later: what comes from now on is for another run. Raises ConfigError, StoreError."""
        self.progress.stop_at_present()

    def partitions(self, start: Offsets, end: Offsets) -> list[SplitPartition]:
        """Raises DataLoss, StoreError."""
        return [SplitPartition(split) for split in self.progress.splits(from_json(start), from_json(end))]
