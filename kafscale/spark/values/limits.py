"""How many columns a reader schema may become, and how deep: types that are used twice at each level double with each.

A reader passes a `Place` down while it makes columns of its schema, and counts each of them there.
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
    """How many there may still be of something that a schema makes."""

    left: int
    excess: str  # what is told when there are too many

    def take(self, count: int = 1) -> None:
        """Raises ConfigError when there are too many."""
        self.left -= count
        if self.left < 0:
            raise ConfigError(self.excess)


def is_too_deep(type_: pa.DataType) -> bool:
    """Tell whether a column's type has more levels than may be."""
    level = [type_]
    for _ in range(DEPTH_MAX):
        level = [each.field(index).type for each in level for index in range(each.num_fields)]
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
class Place:
    """Where in a reader schema its columns are being made.

    around: what tells the types that this place is within. columns: how many there may still be in the whole schema.
    """

    around: tuple[Any, ...] = ()
    columns: Count = attrs.field(factory=_columns)

    def within(self, type_: Any) -> Place:
        """The place of what is in this type here."""
        return Place((*self.around, type_), self.columns)


CELLS_MAX = 10_000_000  # of one value: some 100 MB of Arrow's
CELL_BYTES = 64  # of memory, as an object of Python's and in a column
TEXT_BYTES = 8  # of memory for a byte of a payload: UTF-32 as an object, and UTF-8 in a column

Get = Callable[[Any, str], Any]
_CountOf = Callable[[Any], int]


def width_of(type_: pa.DataType) -> int:
    """Return how many columns it is; those within items count once."""
    return 1 + sum(width_of(each) for each in _children(type_))


@lru_cache
def widest_item(type_: pa.DataType) -> int:
    """The width of the widest item of an array or a map; 0 where there is none."""
    own = width_of(type_) - 1 if pa.types.is_list(type_) or pa.types.is_map(type_) else 0
    return max([own, *map(widest_item, _children(type_))])


def _children(type_: pa.DataType) -> Iterable[pa.DataType]:
    return [type_.field(index).type for index in range(type_.num_fields)]


def uncounted_bytes(type_: pa.DataType) -> int:
    """Return how long a payload may be whose row of this type need not be counted: each item takes a byte at least."""
    return CELLS_MAX // max(1, widest_item(type_))


@attrs.frozen(kw_only=True)
class RowMemory:
    """How much memory the row of a value takes at most, about: so much whatever it has, and for each payload byte."""

    own_bytes: int
    per_payload_byte: float

    @classmethod
    def of(cls, type_: pa.DataType, *, item_cells: int = 0, more_per_byte: float = 0) -> RowMemory:
        """Return that of rows of a type. `item_cells`: of an item that has more of them than its type, by defaults.

        `more_per_byte`: bytes that the row takes besides, for each byte of the payload.
        """
        cells = max(widest_item(type_), item_cells if widest_item(type_) else 0)
        return cls(
            own_bytes=CELL_BYTES * (width_of(type_) + item_cells),
            per_payload_byte=TEXT_BYTES + CELL_BYTES * cells + more_per_byte,
        )


def check_cells(row: Any, type_: pa.DataType, get: Get) -> None:
    """get: a member of a struct's row by name. Raises DecodeError."""
    if (count := _count(row, type_, get)) > CELLS_MAX:
        raise DecodeError(f"the value would become {count} cells of columns; at most {CELLS_MAX} are made of one")


def _count(row: Any, type_: pa.DataType, get: Get) -> int:
    """Cells of the items in a row."""
    if row is None or not widest_item(type_):
        return 0
    if pa.types.is_struct(type_):
        return sum(_count(get(row, field.name), field.type, get) for field in type_)
    item = type_.item_type if pa.types.is_map(type_) else type_.value_type
    items = row.values() if pa.types.is_map(type_) else row
    inner = sum(_count(each, item, get) for each in items) if widest_item(item) else 0
    return len(row) * (width_of(type_) - 1) + inner
