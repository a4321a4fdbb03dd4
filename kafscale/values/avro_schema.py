"""Prepares Avro schemas: resolves references, and compares logical types.

fastavro would make Python objects of dates and timestamps, while Arrow and JSON take plain numbers. So all logical
types except `decimal` are removed before fastavro sees a schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro

from kafscale.errors import DecodeError
from kafscale.values.avro_bounds import DECIMAL
from kafscale.values.limits import Count, error_text
from kafscale.values.registry import Schema

Node = Any  # a name, a list (union) or a dict, as in the JSON of a schema

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
UNITS = frozenset(
    (
        *("date", "time-millis", "time-micros"),
        *("timestamp-millis", "timestamp-micros", "timestamp-nanos"),
        *("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"),
    )
)


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


def branches(union: list[Node]) -> list[Node]:
    return [one for one in union if one != "null"]


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
