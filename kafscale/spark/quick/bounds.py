"""What DuckDB's conditions on a scan leave of a topic, as bounds of partitions, offsets and times.

DuckDB gives its conditions as an expression of Arrow. What that excludes is asked of Arrow itself, by which it decides
which files of a data set to open: could a row of these offsets satisfy it? Where the answer turns is found by halving.
So every form of condition that Arrow understands counts, and one that it does not understand leaves out nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from kafscale.spark.bucket.decode import COLUMN_TYPES
from kafscale.spark.bucket.times import FIRST_MS, LAST_MS, Period
from kafscale.spark.source.bounds import Bounds

OFFSET_LAST = (1 << 62) - 1
TIME_LAST_US = (1 << 62) - 1
MICROSECONDS_PER_MS = 1000

_FORMAT, _FILES = ds.ParquetFileFormat(), LocalFileSystem()


@attrs.frozen(kw_only=True)
class Condition:
    """Arrow's expression, of the columns of a schema."""

    expression: Any
    schema: pa.Schema

    def bounds(self, partitions: Sequence[int]) -> Bounds:
        """Return what the condition leaves. partitions: all that there are."""
        kept = [each for each in partitions if self._allows(pc.field("partition") == _value("partition", each))]
        start_offset, end_offset, period = None, None, Period()
        if self.names("offset"):
            lowest, highest = self._range("offset", 0, OFFSET_LAST)
            start_offset = lowest or None
            end_offset = None if highest == OFFSET_LAST else highest + 1
        if self.names("timestamp"):
            lowest, highest = self._range("timestamp", -TIME_LAST_US, TIME_LAST_US)
            period = Period(
                first_ms=FIRST_MS if lowest == -TIME_LAST_US else lowest // MICROSECONDS_PER_MS,
                last_ms=LAST_MS if highest == TIME_LAST_US else highest // MICROSECONDS_PER_MS,
            )
        return Bounds(
            partitions=None if len(kept) == len(partitions) else frozenset(kept),
            start_offset=start_offset,
            end_offset=end_offset,
            period=period,
        )

    def names(self, column: str) -> bool:
        """Tell whether the condition may be about a column: not being about it is certain."""
        return column in str(self.expression)

    def _range(self, name: str, first: int, last: int) -> tuple[int, int]:
        """Return the least and the greatest value that may satisfy it; both are `first` if none does."""
        column = pc.field(name)
        if not self._allows((column >= _value(name, first)) & (column <= _value(name, last))):
            return first, first
        lowest = _turning(first, last, lambda value: self._allows(column <= _value(name, value)))
        highest = -_turning(-last, -first, lambda value: self._allows(column >= _value(name, -value)))
        return lowest, highest

    def _allows(self, guarantee: Any) -> bool:
        """Tell whether a row of which the guarantee holds may satisfy the condition. No file is opened."""
        fragment = _FORMAT.make_fragment("nowhere", filesystem=_FILES, partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], self.schema, _FORMAT, _FILES)
        return next(iter(dataset.get_fragments(filter=self.expression)), None) is not None


def _turning(first: int, last: int, is_true: Callable[[int], bool]) -> int:
    """Return the least value from which on it is true; `last` if it is nowhere before."""
    while first < last:
        middle = (first + last) // 2
        if is_true(middle):
            last = middle
        else:
            first = middle + 1
    return first


def _value(name: str, value: int) -> Any:
    return pa.scalar(value, COLUMN_TYPES[name])
