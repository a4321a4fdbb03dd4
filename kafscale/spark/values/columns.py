"""The common part of the formats: limits of schemas and values, and decoded rows as an Arrow array.

A type used twice at each level doubles with each, and a few bytes of an array's item may become a thousand columns.
Only large records with wide items are counted, as others can't be too large. Rows that Arrow refuses become error
texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.errors import DecodeError
from kafscale.spark.values.payloads import Payloads
from kafscale.values.limits import Count, error_text
from kafscale.values.registry import Schema

DEPTH_MAX = 200  # of types within types: what reads them calls itself, and Pythons differ in how often that may be
COLUMNS_MAX = 10_000  # nested ones among them; BigQuery's limit; Spark's own plans become slow before


def is_too_deep(type_: pa.DataType) -> bool:
    level = [type_]
    for _ in range(DEPTH_MAX):
        level = [inner.field(index).type for inner in level for index in range(inner.num_fields)]
        if not level:
            return False
    return True


_TOO_MANY_COLUMNS = (
    f"the schema would become more than {COLUMNS_MAX} columns, nested ones among them: "
    "give a reader schema that leaves out what is not needed"
)


@attrs.frozen
class SchemaPlace:
    """A place in a reader schema while its columns are made.

    around: marks of the types around it. columns: the number left in the whole schema.
    """

    around: tuple[Any, ...] = ()
    columns: Count = attrs.field(factory=lambda: Count(COLUMNS_MAX, _TOO_MANY_COLUMNS))

    def within(self, type_: Any) -> SchemaPlace:
        return SchemaPlace((*self.around, type_), self.columns)


CELLS_MAX = 10_000_000  # of one value: some 100 MB of Arrow's
CELL_BYTES = 64  # of memory, as an object of Python's and in a column
TEXT_BYTES = 8  # of memory for a byte of a payload: UTF-32 as an object, and UTF-8 in a column

Get = Callable[[Any, str], Any]


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


@attrs.define(frozen=True, kw_only=True)
class Decoded:
    """Decoded values: null for an error or a null value. errors: a text or None for each value."""

    values: pa.Array
    errors: list[str | None]


Decode = Callable[[Sequence[bytes]], Decoded]  # payloads of one writer schema
Places = NDArray[np.int64]


class Reader(Protocol):
    """A format's reader schema."""

    @property
    def type(self) -> pa.DataType: ...

    @property
    def memory(self) -> RowMemory: ...

    def of_writer(self, schema: Schema) -> Decode:
        """Return the decoder of a writer schema's payloads. Raises DecodeError if they can't be decoded."""


def decode_each(payloads: Iterable[bytes], decode: Callable[[bytes], Any]) -> tuple[list[Any], list[str | None]]:
    """Return the decoded rows, None for bad ones, and the error texts."""
    rows: list[Any] = []
    errors: list[str | None] = []
    for payload in payloads:
        try:
            rows.append(decode(payload))
            errors.append(None)
        except Exception as exc:  # a library given garbage may raise anything
            rows.append(None)
            errors.append(error_text(exc))
    return rows, errors


def to_columns(
    rows: list[Any], errors: list[str | None], convert: Callable[[Sequence[Any]], pa.Array], type_: pa.DataType
) -> Decoded:
    """Convert rows to an array of type_; rows that `convert` raises for become null, with a text in `errors`."""
    parts: list[pa.Array] = []
    pending = [(0, len(rows))]
    while pending:
        start, end = pending.pop()
        try:
            parts.append(convert(rows[start:end]))
        except Exception as exc:  # Arrow raises half a dozen types of them
            if end - start == 1:
                errors[start] = error_text(exc)
                parts.append(pa.nulls(1, type_))
            else:
                middle = (start + end) // 2
                pending += [(middle, end), (start, middle)]
    return Decoded(values=parts[0] if len(parts) == 1 else pa.concat_arrays(parts), errors=errors)


def scatter(parts: Sequence[pa.Array], places: Sequence[Places], count: int, type_: pa.DataType) -> pa.Array:
    """Join parts with each value in its place, and null in other places."""
    if len(parts) == 1 and len(parts[0]) == count:
        return parts[0]
    if not parts:
        return pa.nulls(count, type_)
    indices = np.zeros(count, np.int64)
    missing = np.ones(count, np.bool_)
    order = np.concatenate(places)
    indices[order] = np.arange(len(order))
    missing[order] = False
    return pa.concat_arrays(parts).take(pa.array(indices, mask=missing))


def joined(read: Decoded, places: Places, payloads: Payloads, decode_each: Callable[[Payloads], Decoded]) -> Decoded:
    """Join the values that were read with the others, which `decode_each` decodes."""
    if len(places) == len(payloads):
        return read
    is_left = np.ones(len(payloads), np.bool_)
    is_left[places] = False
    left = np.flatnonzero(is_left)
    others = decode_each(payloads.only(left))
    errors: list[str | None] = [None] * len(payloads)
    for place, error in zip(left.tolist(), others.errors, strict=True):
        errors[place] = error
    values = scatter([read.values, others.values], [places, left], len(payloads), others.values.type)
    return Decoded(values=values, errors=errors)
