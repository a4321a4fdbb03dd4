"""Reads Avro values by fastavro into a reader schema; Arrow makes columns of them.

Unions of null and one other type become that type, nullable; other unions become a struct with a field for each branch,
as Spark's `from_avro` does. Bytes left over behind a value are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from kafscale.errors import ConfigError, DecodeError
from kafscale.spark.values import avro_types
from kafscale.spark.values.avro_plan import plan_avro
from kafscale.spark.values.columns import (
    CELLS_MAX,
    COLUMNS_MAX,
    Decode,
    Decoded,
    RowMemory,
    SchemaPlace,
    decode_each,
    joined,
    to_columns,
    uncounted_bytes,
)
from kafscale.spark.values.payloads import LANES_MIN_COUNT, Payloads, Plan
from kafscale.values import avro_schema
from kafscale.values.avro_bounds import Walk, walk_of
from kafscale.values.avro_resolution import AvroResolution, needs_wrapping, parsed
from kafscale.values.avro_schema import Node
from kafscale.values.limits import Count, error_text
from kafscale.values.registry import Schema

Convert = Callable[[Any], Any]

DEFAULTS_MAX = COLUMNS_MAX  # cells of all defaults of a reader schema


@attrs.define(eq=False, kw_only=True, repr=False)
class AvroReader:
    """Reads values into a reader schema. Raises ConfigError, when made, if the schema can't be columns."""

    schema: Schema
    type: pa.DataType = attrs.field(init=False)
    memory: RowMemory = attrs.field(init=False)
    _node: Node = attrs.field(init=False)
    _named: dict[str, Node] = attrs.field(init=False)
    _raw_type: pa.DataType = attrs.field(init=False)  # as fastavro's rows have it: milliseconds are not yet micro
    _convert: Convert | None = attrs.field(init=False)
    _items_max: int = attrs.field(init=False)  # an item that lacks its fields has their defaults

    def __attrs_post_init__(self) -> None:
        try:
            self._node, self._named = avro_schema.parse(self.schema)
        except DecodeError as exc:
            raise ConfigError(str(exc)) from exc
        self._raw_type = avro_types.type_of(self._node, self._named, SchemaPlace())
        self.type = avro_types.in_microseconds(self._raw_type)
        defaults = Count(DEFAULTS_MAX, f"the defaults of {self.schema} are more than {DEFAULTS_MAX} cells of columns")
        self._parsed(defaults, wrapped=False)
        item_cells = 1 + DEFAULTS_MAX - defaults.left
        self.memory = RowMemory.of(self.type, item_cells=item_cells)
        self._items_max = min(uncounted_bytes(self.type), CELLS_MAX // item_cells)
        self._convert = _converter(self._node, self._named) if _has_choice(self._node, self._named) else None

    def _parsed(self, defaults: Count, *, wrapped: bool) -> Node:
        found = parsed(avro_schema.inlined(self._node, self._named, set()), wrapped=wrapped)
        _set_defaults(found, self._named, defaults)
        return found

    def of_writer(self, schema: Schema) -> Decode:
        """Make the decoder of a writer schema. Raises DecodeError unless it is Avro that the reader's can resolve."""
        if schema.format != "AVRO":
            raise DecodeError(f"{schema} is of type {schema.format}, not AVRO")
        node, named = avro_schema.parse(schema)
        avro_schema.check_units(node, self._node, (named, self._named))
        whole = avro_schema.inlined(node, named, set())
        of_reader = avro_schema.inlined(self._node, self._named, set())
        wrapped = needs_wrapping(whole) or needs_wrapping(of_reader)
        try:
            writer = parsed(whole, wrapped=wrapped)
        except Exception as exc:
            raise DecodeError(f"{schema} is not a valid Avro schema: {error_text(exc)}") from exc
        reader = None if whole == of_reader else self._parsed(Count(DEFAULTS_MAX, ""), wrapped=wrapped)
        walk = walk_of(node, named)
        plan = None if walk.is_needed or wrapped or self._convert is not None else self._plan(writer, reader)
        return partial(self._decode, AvroResolution(writer, reader, wrapped), walk, plan)

    def _plan(self, writer: Node, reader: Node | None) -> Plan | None:
        return plan_avro(writer, writer if reader is None else reader, self._raw_type, self.type)

    def _decode(
        self, resolution: AvroResolution, walk: Walk, plan: Plan | None, payloads: Payloads | Sequence[bytes]
    ) -> Decoded:
        if plan is None or len(payloads) < LANES_MIN_COUNT:
            return self._decode_each(resolution, walk, payloads)
        payloads = Payloads.of(payloads)
        found, is_read = plan.decode(payloads, max_bytes=self._items_max)
        read = Decoded(values=found, errors=[None] * len(found))
        return joined(read, np.flatnonzero(is_read), payloads, partial(self._decode_each, resolution, walk))

    def _decode_each(self, resolution: AvroResolution, walk: Walk, payloads: Sequence[bytes]) -> Decoded:
        convert, items_max = self._convert, self._items_max

        def one(payload: bytes) -> Any:
            if walk.is_needed or len(payload) > items_max:
                walk.check(payload, items_max)
            stream = BytesIO(payload)
            row = resolution.read(stream, with_names=convert is not None)
            if stream.tell() != len(payload):
                raise DecodeError(f"{len(payload) - stream.tell()} bytes are left over after the value")
            return row if convert is None else convert(row)

        rows, errors = decode_each(payloads, one)
        return to_columns(rows, errors, self._columns, self.type)

    def _columns(self, rows: Sequence[Any]) -> pa.Array:
        array = pa.array(rows, self._raw_type)
        return array if self.type == self._raw_type else array.cast(self.type)


def _set_defaults(node: Node, named: dict[str, Node], cells: Count) -> None:
    if isinstance(node, list):
        for one in node:
            _set_defaults(one, named, cells)
    elif isinstance(node, dict):
        for key in ("items", "values", "type"):
            _set_defaults(node.get(key), named, cells)
        for field in node.get("fields", ()):
            _set_defaults(field["type"], named, cells)
            if "default" in field:
                field["default"] = avro_schema.default_value(field["type"], field["default"], named, cells)


def _is_choice(node: Node) -> bool:
    return isinstance(node, list) and len(avro_schema.branches(node)) > 1 and avro_types.plain_union_type(node) is None


def _has_choice(node: Node, named: dict[str, Node]) -> bool:
    if isinstance(node, list):
        return _is_choice(node) or any(_has_choice(one, named) for one in node)
    if isinstance(node, str):
        return node in named and _has_choice(named[node], named)
    if not isinstance(node["type"], str):
        return _has_choice(node["type"], named)
    children = [node[key] for key in ("items", "values") if key in node]
    children += [field["type"] for field in node.get("fields", ())]
    return any(_has_choice(child, named) for child in children)


def _converter(node: Node, named: dict[str, Node]) -> Convert:
    """Convert rows of fastavro, with the names of union branches, into rows for Arrow."""
    if isinstance(node, list):
        return _choice_converter(node, named) if _is_choice(node) else _nullable_converter(node, named)
    if isinstance(node, str):
        return _converter(named[node], named) if node in named else _same
    if not isinstance(node["type"], str):
        return _converter(node["type"], named)
    if node["type"] == "array":
        item = _converter(node["items"], named)
        return lambda values: [item(value) for value in values]
    if node["type"] == "map":
        item = _converter(node["values"], named)
        return lambda values: {key: item(value) for key, value in values.items()}
    if node["type"] in ("record", "error"):
        fields = [(field["name"], _converter(field["type"], named)) for field in node["fields"]]
        return lambda row: {name: convert(row[name]) for name, convert in fields}
    return _same


def _same(value: Any) -> Any:
    return value


def _nullable_converter(node: list[Node], named: dict[str, Node]) -> Convert:
    found = avro_schema.branches(node)
    convert = _converter(found[0], named) if len(found) == 1 else _same

    def nullable(value: Any) -> Any:
        if value is None:
            return None
        return convert(value[1] if isinstance(value, tuple) else value)

    return nullable


def _choice_converter(node: list[Node], named: dict[str, Node]) -> Convert:
    members = [(_Branch.of(one, named), _converter(one, named)) for one in avro_schema.branches(node)]

    def choice(value: Any) -> Any:
        if value is None:
            return None
        name, value = value if isinstance(value, tuple) else (None, value)
        for index, (branch, convert) in enumerate(members):
            if branch.holds(name, value):
                return {f"member{index}": convert(value)}
        raise DecodeError(f"a {type(value).__name__} is in no branch of the reader's union")

    return choice


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float,),
    "double": (float,),
    "bytes": (bytes,),
    "fixed": (bytes,),
    "string": (str,),
    "enum": (str,),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
    "error": (dict,),
}


@attrs.define(frozen=True, kw_only=True)
class _Branch:
    """The marks of one branch of a union. fields: of a record, as its name is missing where the writer has no union."""

    name: str | None
    types: tuple[type, ...]
    fields: frozenset[str] | None

    @classmethod
    def of(cls, node: Node, named: dict[str, Node]) -> _Branch:
        node = named.get(node, node) if isinstance(node, str) else node
        kind = node["type"] if isinstance(node, dict) else node
        types = _PYTHON_TYPES[kind]
        if isinstance(node, dict) and node.get("logicalType") == "decimal":
            types = (Decimal,)
        return cls(
            name=node.get("name") if isinstance(node, dict) else None,
            types=types,
            fields=frozenset(field["name"] for field in node["fields"]) if kind in ("record", "error") else None,
        )

    def holds(self, name: str | None, value: Any) -> bool:
        if name is not None:
            return name == self.name
        return type(value) in self.types and (self.fields is None or self.fields == value.keys())
