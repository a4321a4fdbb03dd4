"""`format("kafscale")` for Spark: the columns of its Kafka source, from the bucket.

Has what pyspark calls, and imports it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

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
from kafscale.spark.bucket.position import METRICS, Json, Position
from kafscale.spark.bucket.splits import Split
from kafscale.spark.source.options import (
    FORMAT,
    BatchOptions,
    Given,
    ReadOptions,
    StreamOptions,
    is_transactional,
)
from kafscale.spark.source.planning import Planner, QueryBounds, Uses, read_records, topic_of_subject
from kafscale.spark.source.progress import StreamProgress
from kafscale.spark.source.writer import (
    StreamTopicWriter,
    TopicWriter,
    TransactionalStreamWriter,
    TransactionalWriter,
    WriteOptions,
)
from kafscale.spark.values.decoder import DECODED, Decoding
from kafscale.spark.values.options import ValueOptions
from kafscale.spark.workers.calls import ease_next_call

logger = logging.getLogger(__name__)

# Of all streams, as no reader is told by which trigger it runs, nor whether its query has state.
ONE_BATCH = (
    "under Trigger.AvailableNow (and Once) this Spark runs one batch of a source in Python, and none behind it that "
    "moves the watermark: windows in append mode and unmatched rows of outer joins that are due then come with a later "
    "run, or never. Run a query with state by another trigger; warnOfAvailableNow=false leaves this out"
)
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
    """The data source; Spark makes one for each `load()` and `save()`. Raises ConfigError for an unknown option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.given = Given(options)
        self.load_id = uuid4().hex  # goes with the source to the processes that it is called in
        ease_next_call()
        self.decoding: Decoding | None = None  # looked up once: it goes with the source from `schema` to `reader`

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of Spark's Kafka source, with headers and decoded values if they are asked for.

        Raises ConfigError, RegistryError, UnknownSchema.
        """
        options = self._read_options()
        fields = [*SCHEMA.fields, HEADERS] if options.include_headers else SCHEMA.fields
        return StructType([*fields, *self._decoded(options)])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises ConfigError, RegistryError, UnknownSchema."""
        options, limits = self._read_options(), BatchOptions.of(self.given)
        columns = self._columns(schema, options)
        decoding = self._decoding_of(columns)
        if not self.given.flag("pushFilters", False):
            return BatchReader(options=options, limits=limits, columns=columns, decoding=decoding)
        directory = self.given.text("pushedFiltersDirectory")
        uses = None if directory is None else Uses(Path(directory, self.load_id))
        return FilteringReader(options=options, limits=limits, columns=columns, decoding=decoding, uses=uses)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query. Raises ConfigError, RegistryError, UnknownSchema."""
        options, limits = self._read_options(), StreamOptions.of(self.given)
        columns = self._columns(schema, options)
        return StreamReader(options=options, limits=limits, columns=columns, decoding=self._decoding_of(columns))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query. Raises ConfigError; of transactions KafkaError and BrokerUnavailable."""
        options = WriteOptions.of(self.given, schema, overwrite=overwrite)
        if not is_transactional(self.given):
            return TopicWriter(options=options)
        writer = TransactionalWriter(options=options)
        writer.finish_former()
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query. Raises ConfigError."""
        options = WriteOptions.of(self.given, schema, overwrite=overwrite)
        kind = TransactionalStreamWriter if is_transactional(self.given) else StreamTopicWriter
        return kind(options=options)

    def _read_options(self) -> ReadOptions:
        options = ReadOptions.of(self.given)
        self.given.warn_of_ignored()
        return options

    def _decoded(self, options: ReadOptions) -> Sequence[StructField]:
        values = ValueOptions.parse(self.given.values)
        if values is None:
            return []
        from kafscale.spark.values.registry_column import spark_type

        if self.decoding is None:
            self.decoding = Decoding.of(values, topic_of_subject(values, options.subscription))
        return [StructField(DECODED, spark_type(self.decoding.type))]

    def _columns(self, schema: StructType, options: ReadOptions) -> Sequence[str]:
        if DECODED not in schema.fieldNames():
            return columns_of(schema)
        decoded = self._decoded(options)
        if not decoded:
            raise ConfigError(f"a schema has the column {DECODED} only with the option valueFormat: give it")
        return columns_of(schema, decoded)

    def _decoding_of(self, columns: Sequence[str]) -> Decoding | None:
        return self.decoding if DECODED in columns else None


def columns_of(schema: StructType, decoded: Sequence[StructField] = ()) -> Sequence[str]:
    """Return the names of a user's schema, in order. Raises ConfigError for a wrong column."""
    types = {field.name: field.dataType for field in [*SCHEMA.fields, HEADERS, *decoded]}
    for field in schema.fields:
        if types.get(field.name) != field.dataType:
            columns = ", ".join(f"{name} {type_.simpleString()}" for name, type_ in types.items())
            raise ConfigError(
                f"there is no column {field.name} {field.dataType.simpleString()}; a schema takes some of: {columns}"
            )
    return [field.name for field in schema.fields]


class SplitPartition(InputPartition):
    def __init__(self, splits: Sequence[Split]) -> None:
        super().__init__(splits)
        self.splits = splits


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class _SplitReading:
    options: ReadOptions
    columns: Sequence[str]
    decoding: Decoding | None = None

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        ease_next_call()
        if not isinstance(partition, SplitPartition):  # Spark makes up one, None, of a plan that has none
            return
        with closing(Planner.of(self.options)) as planner:
            yield from read_records(planner, partition.splits, self.columns, self.decoding)


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class BatchReader(_SplitReading, DataSourceReader):
    limits: BatchOptions
    bounds: QueryBounds = attrs.field(factory=QueryBounds, init=False)

    def partitions(self) -> list[SplitPartition]:
        with closing(Planner.of(self.options)) as planner:
            partitions = [SplitPartition(task) for task in planner.tasks(planner.batch(self.limits, self.bounds))]
        ease_next_call()
        return partitions


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class FilteringReader(BatchReader):
    """Leaves out rows by conditions; with `uses`, only rows that no scan of the `load()` wants.

    A class of its own, as Spark keeps one set of conditions for a `load()`, also for other queries on the DataFrame,
    and refuses a reader that has `pushFilters` unless a setting allows it.
    """

    uses: Uses | None = None

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Take the conditions. Spark applies all of them again, as only whole batches are left out."""
        bounds = QueryBounds.of(filters)
        self.bounds = bounds if self.uses is None else self.uses.note(bounds)
        return filters


try:  # Spark 4.2's mark: under Trigger.AvailableNow it asks the reader again, and keeps limits
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _AvailableNow
except ImportError:
    _AvailableNow = object


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class StreamReader(_SplitReading, DataSourceStreamReader, _AvailableNow):
    limits: StreamOptions
    _progress: StreamProgress | None = attrs.field(default=None, init=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None}

    @property
    def progress(self) -> StreamProgress:
        """Return the progress, opened by the first call. Raises ConfigError."""
        if self._progress is None:
            self._progress = StreamProgress(planner=Planner.of(self.options, counts=True), options=self.limits)
            if self.limits.warns_of_available_now and _AvailableNow is object:
                logger.warning("%s", ONE_BATCH)
        return self._progress

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.planner.close()

    def initialOffset(self) -> Json:
        return self.progress.initial().to_json()

    def latestOffset(self, start: Json | None = None, limit: Any = None) -> Json:
        """Return the end of the next batch. Raises ConfigError, DataLoss, StoreError.

        Spark 4.1 gives no arguments. Later ones tell where the stream is, and whether the trigger wants everything.
        """
        position = None if start is None else Position.from_json(start)
        return self.progress.latest(position, is_limited=type(limit).__name__ != "ReadAllAvailable").to_json()

    def reportLatestOffset(self) -> Json | None:
        """Return the newest offsets and metrics, which Spark 4.2 and later shows in a query's progress.

        Spark takes no other metrics of a source in Python.
        """
        newest = Position(offsets=self.progress.newest).to_json()
        return {METRICS: self.progress.metrics(int(time.time() * 1000)), **newest} if newest else None

    def getDefaultReadLimit(self) -> Any:
        """Return one limit for all those of the options. Spark 4.2 and later passes it to `latestOffset`."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        return ReadMaxRows(self.limits.max_offsets or LARGEST_COUNT) if self.limits.limits else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Leave later records to another run. Spark 4.2 and later calls it."""
        self.progress.stop_at_present()

    def partitions(self, start: Json, end: Json) -> list[SplitPartition]:
        return [
            SplitPartition(task) for task in self.progress.tasks(Position.from_json(start), Position.from_json(end))
        ]
