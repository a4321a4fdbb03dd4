"""The common part of the formats: decoded rows become an Arrow array, rows that Arrow refuses become error texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.spark.values.limits import RowMemory
from kafscale.spark.values.payloads import Payloads
from kafscale.spark.values.registry import Schema

TEXT_MAX_CHARACTERS = 500


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


def error_text(exc: Exception) -> str:
    """Return an error in one line of bounded length."""
    text = " ".join(str(exc)[: 2 * TEXT_MAX_CHARACTERS].split())
    return f"{type(exc).__name__}: {text}"[:TEXT_MAX_CHARACTERS]


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
