"""Bounds of a read by conditions on `partition`, `offset` and `timestamp`.

Conditions come as pyspark's filters, by names and attributes alone. Spark applies all of them again to the rows, so
bounds may be wider than the conditions, never narrower.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import attrs

from kafscale.spark.bucket.splits import ALWAYS, Extent, Period

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
