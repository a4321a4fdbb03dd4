"""Results of two decoders of the same payloads, to be compared."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pyarrow as pa

from kafscale.spark.values.columns import Decoded


def shown(values: pa.Array, *, maps_have_order: bool) -> list[Any]:
    """Show values as Python's, but that NaN is NaN, and a time is a number, which may be out of Python's range."""
    type_, valid = values.type, values.is_valid().to_pylist()
    found: list[Any]
    if pa.types.is_struct(type_):
        fields = [values.field(place) for place in range(type_.num_fields)]
        columns = [shown(field, maps_have_order=maps_have_order) for field in fields]
        found = [[column[row] for column in columns] for row in range(len(values))]
    elif pa.types.is_map(type_):
        keys, items = (shown(array, maps_have_order=maps_have_order) for array in (values.keys, values.items))
        flat = list(zip(keys, items, strict=True))
        found = [flat[start:end] for start, end in pairwise(values.offsets.to_pylist())]
        found = found if maps_have_order else [sorted(value, key=repr) for value in found]
    elif pa.types.is_list(type_):
        flat = shown(values.values, maps_have_order=maps_have_order)
        found = [flat[start:end] for start, end in pairwise(values.offsets.to_pylist())]
    elif pa.types.is_temporal(type_):
        found = values.view(pa.int32() if type_.bit_width == 32 else pa.int64()).to_pylist()
    else:
        found = list(map(repr, values.to_pylist()))
    return [value if is_valid else None for value, is_valid in zip(found, valid, strict=True)]


def same(one: Decoded, other: Decoded, *, maps_have_order: bool) -> None:
    """Assert that values, their types and the errors are the same."""
    told = [[error and re.sub("0x[0-9a-f]+", "", error) for error in decoded.errors] for decoded in (one, other)]
    assert told[0] == told[1]
    assert one.values.type == other.values.type
    assert shown(one.values, maps_have_order=maps_have_order) == shown(other.values, maps_have_order=maps_have_order)
    one.values.validate(full=True)
