"""Counts, offsets and times by Spark that need no records: what footers tell takes the place of Spark's job.

Spark's optimized plan says whether a statement is of that kind: one aggregate, of `count`, `min` and `max` of columns
that footers tell, by `partition` and `topic` or not, over one topic, with conditions that are bounds. Anything else is
left to Spark, and so is what footers do not tell if it is much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.errors import ConfigError, StoreError
from kafscale.spark.bucket.reading import DataLoss
from kafscale.spark.bucket.times import Period
from kafscale.spark.bucket.totals import GROUPS, NEVER_NULL, Totals, told_by_footers, totals_of
from kafscale.spark.source.bounds import OPERATORS, SWAPPED, Bounds
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions
from kafscale.spark.source.planning import Planner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEFT_MAX_BYTES = 16 << 20  # that is read here; Spark's tasks are for more
SCAN = "DataSourceV2ScanRelation"
EXTREMES_OF = ("offset", "partition", "timestamp")  # columns of which there are `min` and `max`
COMPARISONS = ("EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
EPOCH = datetime.fromtimestamp(0, UTC)


class _Other(Exception):
    """A plan of another kind."""


@attrs.frozen
class _Query:
    """What an aggregate is: names of its groups, and of each output the aggregate and its column, or a group."""

    groups: Sequence[str]
    outputs: Sequence[tuple[str, str]]
    bounds: Bounds


def answered(frame: DataFrame, options: Mapping[str, str]) -> DataFrame | None:
    """Return the rows of a statement that reads one topic by these options; None if they are Spark's to find."""
    query_execution: Any = frame._jdf.queryExecution()  # of which no type is known here
    try:
        query = _query(query_execution.optimizedPlan())
        totals = _totals(options, query)
        rows = list(_rows(query, totals))
    except (_Other, ConfigError, DataLoss, StoreError, OverflowError):
        return None
    return frame.sparkSession.createDataFrame(rows, frame.schema)


# ---- what is asked for -----------------------------------------------------------------------------------------------


def _query(plan: Any) -> _Query:
    if _class(plan) != "Aggregate":
        raise _Other
    groups = [_column(each) for each in _items(plan.groupingExpressions())]
    outputs = [_output(each, groups) for each in _items(plan.aggregateExpressions())]
    if not set(groups) <= set(GROUPS) or not any(name != "group" for name, _ in outputs):
        raise _Other
    bounds = Bounds()
    [node] = _items(plan.children())
    while _class(node) != SCAN:
        if _class(node) == "Filter":
            bounds = bounds.within(_bounds(node.condition()))
        elif _class(node) != "Project" or any(
            _class(each) != "AttributeReference" for each in _items(node.projectList())
        ):
            raise _Other
        [node] = _items(node.children())
    return _Query(groups, outputs, bounds)


def _output(expression: Any, groups: Sequence[str]) -> tuple[str, str]:
    if _class(expression) == "AttributeReference" and expression.name() in groups:
        return "group", expression.name()
    child = expression.child() if _class(expression) == "Alias" else None
    if child is not None and _class(child) == "AttributeReference" and child.name() in groups:
        return "group", child.name()
    if child is None or _class(child) != "AggregateExpression" or child.isDistinct() or child.filter().isDefined():
        raise _Other
    function = child.aggregateFunction()
    name, arguments = _class(function).lower(), _items(function.children())
    if (
        name == "count"
        and len(arguments) == 1
        and _class(arguments[0]) == "Literal"
        and arguments[0].value() is not None
    ):
        return "count", ""
    column = _column(arguments[0]) if len(arguments) == 1 else ""
    if (name == "count" and column in NEVER_NULL) or (name in ("min", "max") and column in EXTREMES_OF):
        return name, column
    raise _Other


def _bounds(condition: Any) -> Bounds:
    kind = _class(condition)
    if kind == "And":
        return _bounds(condition.left()).within(_bounds(condition.right()))
    if kind == "IsNotNull" and _column(condition.child()) in NEVER_NULL:
        return Bounds()
    if kind not in COMPARISONS:
        raise _Other
    operator, left, right = OPERATORS[kind], condition.left(), condition.right()
    if _class(left) == "Literal":
        operator, left, right = SWAPPED[operator], right, left
    if _class(right) != "Literal" or not isinstance(right.value(), int):
        raise _Other
    name, value = _column(left), right.value()
    if name == "timestamp" and right.dataType().simpleString() == "timestamp":
        return Bounds(period=Period.compared(operator, value))
    if name == "partition" and operator == "=":
        return Bounds(partitions=frozenset([value]))
    if name != "offset":
        raise _Other
    return Bounds.of_offset(operator, value)


def _column(expression: Any) -> str:
    if _class(expression) != "AttributeReference":
        raise _Other
    return str(expression.name())


def _class(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name.removesuffix("$")


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


# ---- what there is ---------------------------------------------------------------------------------------------------


def _totals(options: Mapping[str, str], query: _Query) -> Sequence[Totals]:
    given = Given(options)
    limits = BatchOptions.of(given)
    max_bytes = min(LEFT_MAX_BYTES, limits.max_scan_bytes or LEFT_MAX_BYTES)
    limits = attrs.evolve(limits, max_scan_bytes=None)
    with closing(Planner.of(ReadOptions.of(given))) as planner:
        splits = planner.given(planner.batch(limits, query.bounds))
        told = told_by_footers(planner.catalog, splits, with_first_time=("min", "timestamp") in query.outputs)
        if sum(split.size_bytes for split in told.left) > max_bytes:
            raise _Other
        with_times = any(column == "timestamp" and name != "count" for name, column in query.outputs)
        reader = planner.reader(["offset", "timestamp"] if with_times else ["offset"])
        left = [totals_of(split, records) for split in told.left for records in reader.read_all([split])]
    return [*told.totals, *(each for each in left if each is not None)]


def _rows(query: _Query, totals: Sequence[Totals]) -> Iterator[tuple[Any, ...]]:
    found: dict[tuple[Any, ...], list[Totals]] = {} if query.groups else {(): []}
    for each in totals:
        found.setdefault(tuple(getattr(each, name) for name in query.groups), []).append(each)
    for group, of_group in found.items():
        values = dict(zip(query.groups, group, strict=True))
        yield tuple(
            values[column] if name == "group" else _value(name, column, of_group) for name, column in query.outputs
        )


def _value(name: str, column: str, totals: Sequence[Totals]) -> Any:
    if name == "count":
        return sum(each.count for each in totals)
    if not totals:
        return None
    if column == "timestamp":
        times = [each.first_ms if name == "min" else each.last_ms for each in totals]
        return EPOCH + timedelta(milliseconds=(min if name == "min" else max)(ms for ms in times if ms is not None))
    if column == "partition":
        return (min if name == "min" else max)(each.partition for each in totals)
    return min(each.first_offset for each in totals) if name == "min" else max(each.last_offset for each in totals)
