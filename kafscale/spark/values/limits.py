"""Limits of schemas and values: columns and depth of a reader schema, and cells and memory of a row.

A type used twice at each level doubles with each, and a few bytes of an array's item may become a thousand columns.
Only large records with wide items are counted, as others can't be too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import attrs
import pyarrow as pa

from kafscale.errors import ConfigError, DecodeError

DEPTH_MAX = 200  # of types within types: what reads them calls itself, and Pythons differ in how often that may be
COLUMNS_MAX = 10_000  # nested ones among them; BigQuery's limit; Spark's own plans become slow before


@attrs.define(eq=False, repr=False)
class Count:
    """A number that a schema may use up; `excess` is the error's text."""

    left: int
    excess: str  # what is told when there are too many

    def take(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise ConfigError(self.excess)


def is_too_deep(type_: pa.DataType) -> bool:
    level = [type_]
    for _ in range(DEPTH_MAX):
        level = [inner.field(index).type for inner in level for index in range(inner.num_fields)]
        if not level:
            return False
    return True


def _columns() -> Count:
    return Count(
        COLUMNS_MAX,
        f"the schema would become more than {COLUMNS_MAX} columns, nested ones among them: "
        "give a reader schema that leaves out what is not needed",
    )


@attrs.frozen
class SchemaPlace:
    """A place in a reader schema while its columns are made.

    around: marks of the types around it. columns: the number left in the whole schema.
    """

    around: tuple[Any, ...] = ()
    columns: Count = attrs.field(factory=_columns)

    def within(self, type_: Any) -> SchemaPlace:
        return SchemaPlace((*self.around, type_), self.columns)


CELLS_MAX = 10_000_000  # of one value: some 100 MB of Arrow's
CELL_BYTES = 64  # of memory, as an object of Python's and in a column
TEXT_BYTES = 8  # of memory for a byte of a payload: UTF-32 as an object, and UTF-8 in a column

Get = Callable[[Any, str], Any]
_CountOf = Callable[[Any], int]


def width_of(type_: pa.DataType) -> int:
    """Return the number of columns; those within items count once."""
    return 1 + sum(width_of(child) for child in _children(type_))


@lru_cache
def widest_item(type_: pa.DataType) -> int:
    """Return the width of the widest item of an array or a map; 0 without one."""
    own = width_of(type_) - 1 if pa.types.is_list(type_) or pa.types.is_map(type_) else 0
    return max([own, *map(widest_item, _children(type_))])


def _children(type_: pa.DataType) -> Iterable[pa.DataType]:
    return [type_.field(index).type for index in range(type_.num_fields)]


def uncounted_bytes(type_: pa.DataType) -> int:
    """Return the length of a payload up to which a row is not counted: each item takes a byte at least."""
    return CELLS_MAX // max(1, widest_item(type_))


@attrs.frozen(kw_only=True)
class RowMemory:
    """About the largest memory of a value's row: a fixed part, and a part for each payload byte."""

    own_bytes: int
    per_payload_byte: float

    @classmethod
    def of(cls, type_: pa.DataType, *, item_cells: int = 0, more_per_byte: float = 0) -> RowMemory:
        """Return the memory of rows of a type.

        item_cells: of an item that has more cells than its type, by defaults. more_per_byte: for each byte of the
        payload.
        """
        cells = max(widest_item(type_), item_cells if widest_item(type_) else 0)
        return cls(
            own_bytes=CELL_BYTES * (width_of(type_) + item_cells),
            per_payload_byte=TEXT_BYTES + CELL_BYTES * cells + more_per_byte,
        )


def check_cells(row: Any, type_: pa.DataType, get: Get) -> None:
    """Raise DecodeError for a row with too many cells. get: returns a struct's member by name."""
    if (count := _count(row, type_, get)) > CELLS_MAX:
        raise DecodeError(f"the value would become {count} cells of columns; at most {CELLS_MAX} are made of one")


def _count(row: Any, type_: pa.DataType, get: Get) -> int:
    if row is None or not widest_item(type_):
        return 0
    if pa.types.is_struct(type_):
        return sum(_count(get(row, field.name), field.type, get) for field in type_)
    item = type_.item_type if pa.types.is_map(type_) else type_.value_type
    items = row.values() if pa.types.is_map(type_) else row
    inner = sum(_count(value, item, get) for value in items) if widest_item(item) else 0
    return len(row) * (width_of(type_) - 1) + inner
