"""Derives the Arrow type of each node of an Avro reader schema. Logical types of the reader decide the columns."""

from __future__ import annotations

import pyarrow as pa

from kafscale.errors import ConfigError
from kafscale.spark.values.columns import SchemaPlace
from kafscale.values.avro_schema import Node, branches

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
DECIMAL_MAX_DIGITS = 38  # Spark's


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
