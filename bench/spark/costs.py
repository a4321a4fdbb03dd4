"""The cost of reading a topic without Spark, step by step, and the bytes that a plan reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar

import attrs

from bench.spark.data import Shape
from bench.spark.sources import BucketSource, Query, at, hour_of
from kafscale.config.units import MIB
from kafscale.spark.bucket import reading
from kafscale.spark.bucket.splits import Split, SplitRange
from kafscale.spark.source.options import Given, ReadOptions
from kafscale.spark.source.planning import Planner

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Costs:
    """CPU seconds for all rows of a shape, in one process; `plan_seconds` for one query."""

    shape: str
    rows: int
    plan_seconds: float
    get_seconds: float
    decode_seconds: float


@attrs.frozen(kw_only=True)
class Planned:
    """Bytes that the tasks of a query read of the bucket, and those of the batches that it needs."""

    shape: str
    query: str
    read_bytes: int
    needed_bytes: int
    all_bytes: int


def measure_costs(source: BucketSource, shape: Shape) -> Costs:
    """Plan and read all of it once."""
    splits, plan_seconds = _timed(lambda: plan_of(source, shape))
    with closing(Planner.of(ReadOptions.of(Given(source.options(shape))))) as planner:
        reader = planner.reader(_column_names())
        _, get_seconds = _timed(lambda: _get_all(planner, splits))
        rows, read_seconds = _timed(lambda: sum(part.num_rows for split in splits for part in reader.read(split)))
    return Costs(
        shape=str(shape),
        rows=rows,
        plan_seconds=plan_seconds,
        get_seconds=get_seconds,
        decode_seconds=max(0.0, read_seconds - get_seconds),
    )


def plan_of(source: BucketSource, shape: Shape, query: Query | None = None) -> Sequence[Split]:
    """Return what the tasks of a query read; of all records without one."""
    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    from kafscale.spark.source.source import FilteringReader, KafScaleDataSource, SplitPartition

    options = dict(source.options(shape))
    begin_ms, end_ms = hour_of(shape, query.hour) if query is not None and query.hour is not None else (0, 0)
    if query is not None and query.by_where:
        options["pushFilters"] = "true"
    elif end_ms:
        options |= {"startingTimestamp": str(begin_ms), "endingTimestamp": str(end_ms)}
    data_source = KafScaleDataSource(options)
    reader = data_source.reader(data_source.schema())
    if isinstance(reader, FilteringReader):
        reader.pushFilters([GreaterThanOrEqual(("timestamp",), at(begin_ms)), LessThan(("timestamp",), at(end_ms))])
    tasks = [partition for partition in reader.partitions() if isinstance(partition, SplitPartition)]
    return [split for task in tasks for split in task.splits]


def measure_plan(source: BucketSource, shape: Shape, query: Query) -> Planned:
    """Compare what is read with what must be: whole batches, spread evenly over the day."""
    all_bytes = sum(split.size_bytes for split in plan_of(source, shape))
    share = 1.0 if query.hour is None else 1 / 24
    return Planned(
        shape=str(shape),
        query=query.name,
        read_bytes=sum(split.size_bytes for split in plan_of(source, shape, query)),
        needed_bytes=round(all_bytes * share),
        all_bytes=all_bytes,
    )


def mib(size_bytes: int) -> str:
    """Write a size in MiB, for a table."""
    return f"{size_bytes / MIB:,.1f}"


def _column_names() -> Sequence[str]:
    from kafscale.spark.source.source import SCHEMA

    names: Sequence[str] = SCHEMA.names
    return names


def _get_all(planner: Planner, splits: Sequence[Split]) -> None:
    for split in splits:
        for part in split.ranges:
            assert isinstance(part, SplitRange), "all is flushed"
            for start in range(part.start, part.end, reading.GET_BYTES):
                planner.catalog.bucket.get_range(part.key.key, start, min(reading.GET_BYTES, part.end - start))


def _timed(do: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    return do(), time.process_time() - began
