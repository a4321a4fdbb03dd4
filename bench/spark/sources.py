"""The sources, and the queries that are put to all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

import attrs

from bench.brokers import RunningBroker
from bench.spark.data import DAY_MS, HOUR_MS, Shape, rows_between
from bench.spark.session import Spark

KAFKA, BUCKET = "Kafka source", "kafscale"
ON_US = "Kafka source on KafScale"
READY = "rows at hand"  # in Python: what no source there gets under
NOON_HOUR, LAST_HOUR = 12, 23

Frame = Any


class Source(Protocol):
    """The source of a query."""

    @property
    def name(self) -> str: ...
    @property
    def broker(self) -> RunningBroker: ...

    def load(self, spark: Spark, shape: Shape, options: Mapping[str, str], *, is_filtered: bool) -> Frame:
        """A new DataFrame of the topic. `is_filtered`: one query with conditions is made of it."""
        ...


@attrs.frozen(kw_only=True)
class KafkaSource:
    """`format("kafka")`."""

    broker: RunningBroker
    name: str = KAFKA

    def load(self, spark: Spark, shape: Shape, options: Mapping[str, str], *, is_filtered: bool) -> Frame:
        """See `Source`."""
        where = {"kafka.bootstrap.servers": str(self.broker.address), "subscribe": shape.topic}
        return spark.session.read.format("kafka").options(**where, **options).load()


@attrs.frozen(kw_only=True)
class BucketSource:
    """`format("kafscale")`, of the bucket that a broker has flushed to."""

    broker: RunningBroker
    store: Mapping[str, str]
    name: str = BUCKET

    def load(self, spark: Spark, shape: Shape, options: Mapping[str, str], *, is_filtered: bool) -> Frame:
        """See `Source`."""
        pushed = {"pushFilters": "true"} if is_filtered else {}
        return spark.session.read.format("kafscale").options(**self.options(shape), **pushed, **options).load()

    def options(self, shape: Shape) -> Mapping[str, str]:
        """Return what is read from where."""
        return {**self.store, "subscribe": shape.topic}


@attrs.frozen(kw_only=True)
class ReadySource:
    """`format("ready")`, whose rows are made before; of a read of the whole topic, or of an hour. It asks no broker."""

    broker: RunningBroker
    name: str = READY

    def load(self, spark: Spark, shape: Shape, options: Mapping[str, str], *, is_filtered: bool) -> Frame:
        """See `Source`."""
        from bench.spark import ready

        first_ms = int(options.get("startingTimestamp", shape.first_ms))
        behind_ms = int(options.get("endingTimestamp", shape.first_ms + DAY_MS))
        given = ready.options_of(shape, rows_between(shape, first_ms, behind_ms), first_ms)
        spark.session.dataSource.register(ready.ReadyDataSource)
        return spark.session.read.format(ready.FORMAT).options(**given).load()


@attrs.frozen(kw_only=True)
class Query:
    """`run` gets a new DataFrame and returns what is compared between the sources."""

    name: str
    title: str
    run: Callable[[Frame], object]
    hour: int | None = None
    by_where: bool = False

    def frame(self, source: Source, spark: Spark, shape: Shape) -> Frame:
        """Return what the query reads."""
        if self.hour is None:
            return source.load(spark, shape, {}, is_filtered=False)
        begin_ms, end_ms = hour_of(shape, self.hour)
        if self.by_where:
            return source.load(spark, shape, {}, is_filtered=True).where(
                f"timestamp >= timestamp_millis({begin_ms}) AND timestamp < timestamp_millis({end_ms})"
            )
        limits = {"startingTimestamp": str(begin_ms), "endingTimestamp": str(end_ms)}
        return source.load(spark, shape, limits, is_filtered=False)


def hour_of(shape: Shape, hour: int) -> tuple[int, int]:
    """The first millisecond, and that of the next one."""
    return shape.first_ms + hour * HOUR_MS, shape.first_ms + (hour + 1) * HOUR_MS


def at(timestamp_ms: int) -> datetime:
    """Return a time as Python has it."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


def _count(frame: Frame) -> object:
    return frame.count()


def _sum(frame: Frame) -> object:
    return frame.selectExpr("sum(length(value))").collect()[0][0]


def _count_and_sum(frame: Frame) -> object:
    return tuple(frame.selectExpr("count(*)", "sum(length(value))").collect()[0])


def _groups(frame: Frame) -> object:
    return str(frame.groupBy("key").count().selectExpr("count(*)", "sum(count)").collect()[0])


def _nothing(frame: Frame) -> object:
    frame.write.format("noop").mode("overwrite").save()
    return None


def _parquet(frame: Frame) -> object:
    directory = Path(mkdtemp(prefix="kafscale-bench-parquet-"))
    try:
        frame.write.mode("overwrite").parquet(str(directory))
    finally:
        shutil.rmtree(directory)
    return None


QUERIES = (
    Query(name="count", title="count", run=_count),
    Query(name="sum", title="sum(length(value))", run=_sum),
    Query(name="noop", title="all columns, written nowhere", run=_nothing),
    Query(name="parquet", title="write to Parquet", run=_parquet),
    Query(name="group", title="group by key", run=_groups),
    Query(name="hour", title="an hour by timestamps", run=_count_and_sum, hour=NOON_HOUR),
    Query(name="where", title="the last hour by where", run=_count_and_sum, hour=LAST_HOUR, by_where=True),
    Query(name="where-noon", title="an hour at noon by where", run=_count_and_sum, hour=NOON_HOUR, by_where=True),
)
