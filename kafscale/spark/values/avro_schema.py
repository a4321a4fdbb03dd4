"""Prepares Avro schemas: resolves references, compares logical types, and derives the Arrow type of each node.

fastavro would make Python objects of dates and timestamps, and Arrow takes plain numbers. So all logical types except
`decimal` are removed before fastavro sees a schema; those of the reader decide the columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from kafscale.errors import ConfigError, DecodeError
from kafscale.spark.values.avro_bounds import DECIMAL
from kafscale.spark.values.columns import Count, SchemaPlace, error_text
from kafscale.spark.values.registry import Schema

Node = Any  # a name, a list (union) or a dict, as in the JSON of a schema

PRIMITIVES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
TIMES = frozenset({"time-millis", "time-micros", "timestamp-nanos", "local-timestamp-nanos"})  # numbers, units differ
UNITS = TIMES | {logical for _, logical in LOGICAL}
DECIMAL_MAX_DIGITS = 38  # Spark's


def parse(schema: Schema) -> tuple[Node, dict[str, Node]]:
    """Return the schema with full names, and its named types, with those of its references. Raises DecodeError."""
    named: dict[str, Node] = {}
    try:
        return _parse(schema, named), named
    except Exception as exc:  # fastavro raises KeyError and others for some
        raise DecodeError(f"{schema} is not a valid Avro schema: {error_text(exc)}") from exc


def _parse(schema: Schema, named: dict[str, Node]) -> Node:
    for reference in schema.references:
        if reference.name not in named:
            _parse(reference.schema, named)
    return fastavro.parse_schema(json.loads(schema.text), named)


def inlined(node: Node, named: dict[str, Node], seen: set[str]) -> Node:
    """Return a schema with each named type defined where it stands first, without units (see `check_units`)."""
    if isinstance(node, list):
        return [inlined(one, named, seen) for one in node]
    if isinstance(node, str):
        if node in PRIMITIVES or node in seen:
            return node
        return inlined(named[node], named, seen)
    kept = {key: value for key, value in node.items() if not key.startswith("__")}
    if kept.pop("logicalType", None) == "decimal":
        kept["logicalType"] = DECIMAL
    if "name" in kept:
        if kept["name"] in seen:
            return kept["name"]
        seen.add(kept["name"])
    for key in ("items", "values"):
        if key in kept:
            kept[key] = inlined(kept[key], named, seen)
    if "fields" in kept:
        kept["fields"] = [{**field, "type": inlined(field["type"], named, seen)} for field in kept["fields"]]
    if not isinstance(kept["type"], str):
        return inlined(kept["type"], named, seen)
    return kept


def type_of(node: Node, named: dict[str, Node], place: SchemaPlace) -> pa.DataType:
    """Return Spark's type of a reader's schema.

    Raises ConfigError for recursion, too many columns, decimals over 38 digits.
    """
    if isinstance(node, list):
        return _union_type(node, named, place)
    if isinstance(node, str):
        return PRIMITIVES[node] if node in PRIMITIVES else type_of(named[node], named, place)
    kind, logical = node["type"], node.get("logicalType")
    if not isinstance(kind, str):
        return type_of(kind, named, place)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        if node["precision"] > DECIMAL_MAX_DIGITS:
            raise ConfigError(f"a decimal of {node['precision']} digits: Spark's have {DECIMAL_MAX_DIGITS} at most")
        return pa.decimal128(node["precision"], node.get("scale", 0))
    if kind == "array":
        return pa.list_(_field("element", node["items"], named, place))
    if kind == "map":
        return pa.map_(pa.string(), _field("value", node["values"], named, place))
    if kind in ("record", "error"):
        name = node["name"]
        if name in place.around:
            raise ConfigError(f"record {name} contains itself, which no column can: give a reader schema that ends")
        inside = place.within(name)
        return pa.struct([_field(field["name"], field["type"], named, inside) for field in node["fields"]])
    if kind == "enum":
        return pa.string()
    if kind == "fixed":
        return pa.binary()
    if kind in PRIMITIVES:
        return LOGICAL.get((kind, str(logical)), PRIMITIVES[kind])
    return type_of(named[kind], named, place)


def _field(name: str, node: Node, named: dict[str, Node], place: SchemaPlace) -> pa.Field:
    place.columns.take()
    return pa.field(name, type_of(node, named, place), nullable=is_nullable(node))


def is_nullable(node: Node) -> bool:
    return node == "null" or (isinstance(node, list) and "null" in node)


def branches(union: list[Node]) -> list[Node]:
    return [one for one in union if one != "null"]


def plain_union_type(union: list[Node]) -> pa.DataType | None:
    """Return the type of a union of numbers that widen to one, as Spark's `from_avro` does, or None."""
    names = {one if isinstance(one, str) else "" for one in branches(union)}
    if names == {"int", "long"}:
        return pa.int64()
    return pa.float64() if names == {"float", "double"} else None


def _union_type(union: list[Node], named: dict[str, Node], place: SchemaPlace) -> pa.DataType:
    found = branches(union)
    if not found:
        return pa.null()
    if len(found) == 1:
        return type_of(found[0], named, place)
    plain = plain_union_type(union)
    if plain is not None:
        return plain
    place.columns.take(len(found))
    return pa.struct([pa.field(f"member{index}", type_of(one, named, place)) for index, one in enumerate(found)])


def in_microseconds(type_: pa.DataType) -> pa.DataType:
    """Return the type with timestamps in microseconds, as Spark has no others."""
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(in_microseconds(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(in_microseconds(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, type_.item_field.with_type(in_microseconds(type_.item_type)))
    return type_


def check_units(writer: Node, reader: Node, names: tuple[dict[str, Node], dict[str, Node]]) -> None:
    """Raise DecodeError if writer and reader have different units, which would be read as wrong times.

    A unit on one side only is allowed: plain numbers are read in the reader's unit, and its plain numbers take any
    unit. names: the named types of the writer and of the reader.
    """
    seen: set[tuple[str, str]] = set()
    pending: list[tuple[Node, Node]] = [(writer, reader)]
    while pending:
        pair = _definition(pending[-1][0], names[0]), _definition(pending.pop()[1], names[1])
        for one, other in _pairs(*pair):
            one, other = _definition(one, names[0]), _definition(other, names[1])
            if isinstance(one, list) or isinstance(other, list):
                pending.append((one, other))
                continue
            if not isinstance(one, dict) or not isinstance(other, dict):
                continue
            units = one.get("logicalType"), other.get("logicalType")
            if units[0] in UNITS and units[1] in UNITS and units[0] != units[1]:
                raise DecodeError(f"written as {units[0]}, but the reader schema has {units[1]}")
            key = str(one.get("name", id(one))), str(other.get("name", id(other)))
            if key not in seen:
                seen.add(key)
                pending.extend(_children(one, other))


def _definition(node: Node, named: dict[str, Node]) -> Node:
    while True:
        if isinstance(node, str) and node in named:
            node = named[node]
        elif isinstance(node, dict) and not isinstance(node["type"], str):
            node = node["type"]
        else:
            return node


def _pairs(writer: Node, reader: Node) -> Iterator[tuple[Node, Node]]:
    writers = writer if isinstance(writer, list) else [writer]
    readers = reader if isinstance(reader, list) else [reader]
    for one in writers:
        same = [other for other in readers if _base(other) == _base(one)]
        for other in same or readers:
            yield one, other


def _base(node: Node) -> str:
    return str(node.get("name", node["type"])) if isinstance(node, dict) else str(node)


def _children(writer: dict[str, Node], reader: dict[str, Node]) -> Iterator[tuple[Node, Node]]:
    for key in ("items", "values"):
        if key in writer and key in reader:
            yield writer[key], reader[key]
    written = {field["name"]: field["type"] for field in writer.get("fields", ())}
    for field in reader.get("fields", ()):
        for name in (field["name"], *field.get("aliases", ())):
            if name in written:
                yield written[name], field["type"]


def default_value(node: Node, value: Any, named: dict[str, Node], cells: Count) -> Any:
    """Make the value that fastavro would read from a default's JSON, and take its cells.

    Raises ConfigError at the limit.
    """
    if isinstance(node, list):
        return default_value(node[0], value, named, cells)
    cells.take()
    node = _definition(node, named)
    kind = node["type"] if isinstance(node, dict) else node
    if kind in ("bytes", "fixed") and isinstance(value, str):
        raw = value.encode("latin-1")
        if isinstance(node, dict) and node.get("logicalType") in ("decimal", DECIMAL):
            return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-node.get("scale", 0))
        return raw
    if kind == "record":
        return {
            field["name"]: default_value(field["type"], value.get(field["name"], field.get("default")), named, cells)
            for field in node["fields"]
        }
    if kind == "array":
        return [default_value(node["items"], one, named, cells) for one in value]
    if kind == "map":
        return {key: default_value(node["values"], one, named, cells) for key, one in value.items()}
    return value
