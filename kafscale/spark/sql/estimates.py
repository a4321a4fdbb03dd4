"""What a query reads of the bucket, as its source has planned it: EXPLAIN says so below Spark's plan."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kafscale.spark.bucket.splits import BrokerRange, GivenRange, LogRange, Range, Split
from kafscale.spark.sql.failures import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def explained(spark: SparkSession, text: str) -> DataFrame:
    """Return Spark's plan of `EXPLAIN …`, and a line for each read of a topic.

    Nothing is executed. Raises QueryError.
    """
    session: Any = spark._jsparkSession
    gateway: Any = spark._jvm
    state = session.sessionState()
    with spark_errors():
        shown = [row[0] for row in spark.sql(text).collect()]
        query = state.sqlParser().parsePlan(text).logicalPlan()
        skip = gateway.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
        lines = map(_line, reads_of(state.executePlan(query, skip).optimizedPlan()))
        return spark.createDataFrame([("\n".join([*shown, *lines, ""]),)], "plan STRING")


def reads_of(plan: Any) -> Iterator[Sequence[Split]]:
    """Iterate over what each scan of a topic in Spark's optimized plan reads.

    Has the source plan, if it did not yet.
    """
    for tasks in _scans(plan):
        yield [split for splits in tasks for split in splits]


def tasks_of(plan: Any) -> Iterator[Sequence[int]]:
    """Iterate over the scans likewise: of each the bytes that its tasks read, one by one."""
    for tasks in _scans(plan):
        yield [sum(split.size_bytes for split in splits) for splits in tasks]


def _scans(plan: Any) -> Iterator[Sequence[Sequence[Split]]]:
    from kafscale.spark.source.source import SplitPartition

    if plan.getClass().getSimpleName() == "DataSourceV2ScanRelation":
        planned = [_unpickled(each) for each in plan.scan().toBatch().planInputPartitions()]
        yield [each.splits for each in planned if isinstance(each, SplitPartition)]
    for further in (plan.children(), plan.subqueries()):
        for index in range(further.size()):
            yield from _scans(further.apply(index))


def _unpickled(partition: Any) -> Any:
    """None of what is not of a source in Python."""
    if partition.getClass().getSimpleName() != "PythonInputPartition":
        return None
    return pickle.loads(bytes(partition.pickedPartition()))


def _line(splits: Sequence[Split]) -> str:
    ranges = [each for split in splits for each in split.ranges]
    segments = {each.key for each in ranges if isinstance(each, Range)}
    has_log = any(isinstance(each, LogRange | GivenRange) for each in ranges)
    size_bytes = sum(split.size_bytes for split in splits)
    topics = ", ".join(sorted({split.topic for split in splits})) or "nothing"
    behind = " and the log behind them" if has_log else ""
    fetched = sum(each.end_offset - each.start_offset for each in ranges if isinstance(each, BrokerRange))
    behind += f", and about {fetched:,} records from brokers" if fetched else ""
    return f"Reads {topics}: {size_bytes:,} bytes of {len(segments)} segments{behind}"
