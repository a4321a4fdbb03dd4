"""Reads JSON Schema values by orjson, and makes columns by the reader schema, checking each value's types.

A schema without one column type (several types, no type, an object without known members, recursion) becomes a string
with the value's JSON. Other rules of a schema than types are checked only with `validate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import orjson
import pyarrow as pa
import referencing
from referencing.jsonschema import DRAFT7

from kafscale.errors import ConfigError, DecodeError
from kafscale.spark.values.columns import (
    CELL_BYTES,
    Decode,
    Decoded,
    RowMemory,
    SchemaPlace,
    check_cells,
    decode_each,
    to_columns,
    uncounted_bytes,
)
from kafscale.values.limits import Count, error_text
from kafscale.values.registry import Schema

Resolver = Any  # of `referencing`: where a schema's references are looked up from
Convert = Callable[[Any], Any]

INT64_MAX = 2**63 - 1


@attrs.define(frozen=True, kw_only=True)
class ColumnShape:
    """A column type, and the conversion of a parsed value for Arrow, which raises DecodeError for another type."""

    type: pa.DataType
    convert: Convert


@attrs.define(eq=False, kw_only=True, repr=False)
class JsonReader:
    """Reads values into a reader schema. Raises ConfigError, when made, if it is invalid. validate: check values."""

    schema: Schema
    validate: bool = False
    _shape: ColumnShape = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        try:
            contents, registry = _parse(self.schema)
            resource = referencing.Resource.from_contents(contents, default_specification=DRAFT7)
            self._shape = _shape(contents, registry.resolver_with_root(resource), SchemaPlace())
        except DecodeError as exc:
            raise ConfigError(str(exc)) from exc
        except ConfigError:
            raise
        except Exception as exc:  # of `referencing`, and of schemas that are not of the shape they must be
            raise ConfigError(f"{self.schema} is not a usable JSON schema: {error_text(exc)}") from exc

    @property
    def type(self) -> pa.DataType:
        return self._shape.type

    @property
    def memory(self) -> RowMemory:
        return RowMemory.of(self.type, more_per_byte=CELL_BYTES)  # of parsed members without a column

    def of_writer(self, schema: Schema) -> Decode:
        """Make the decoder of a writer schema. Raises DecodeError unless it is JSON, and, with `validate`, valid."""
        if schema.format != "JSON":
            raise DecodeError(f"{schema} is of type {schema.format}, not JSON")
        return partial(self._decode, _validator(schema) if self.validate else None)

    def _decode(self, validator: Any, payloads: Sequence[bytes]) -> Decoded:
        from kafscale.spark.values.json_validation import validate

        convert, type_ = self._shape.convert, self.type
        uncounted = uncounted_bytes(type_)

        def one(payload: bytes) -> Any:
            value = orjson.loads(payload)
            if validator is not None:
                validate(validator, value)
            row = None if value is None else convert(value)
            if len(payload) > uncounted:
                check_cells(row, type_, dict.get)
            return row

        rows, errors = decode_each(payloads, one)
        return to_columns(rows, errors, lambda part: pa.array(part, self.type), self.type)


def _parse(schema: Schema) -> tuple[Any, Any]:
    resources: dict[str, Any] = {}

    def collect(one: Schema) -> None:
        for reference in one.references:
            if reference.name in resources:
                continue
            contents = orjson.loads(reference.schema.text)
            resources[reference.name] = referencing.Resource.from_contents(contents, default_specification=DRAFT7)
            collect(reference.schema)

    try:
        contents = orjson.loads(schema.text)
        collect(schema)
    except Exception as exc:
        raise DecodeError(f"{schema} is not a valid JSON schema: {error_text(exc)}") from exc
    return contents, referencing.Registry().with_resources(resources.items())


def _validator(schema: Schema) -> Any:
    from kafscale.spark.values.json_validation import make_validator

    contents, registry = _parse(schema)
    try:
        return make_validator(contents, registry)
    except Exception as exc:
        raise DecodeError(f"{schema} is not a valid JSON schema: {error_text(exc)}") from exc


def _shape(node: Any, resolver: Resolver, place: SchemaPlace) -> ColumnShape:
    place.columns.take()
    node, resolver = _resolved(node, resolver)
    if not isinstance(node, dict) or id(node) in place.around:
        return ANY
    place = place.within(id(node))
    for key in ("oneOf", "anyOf"):
        if key in node and "properties" not in node:
            choices = [one for one in node[key] if one != {"type": "null"}]
            return _shape(choices[0], resolver, place) if len(choices) == 1 else ANY
    kind = _kind(node)
    if kind == "object":
        return _object(node, resolver, place)
    if kind == "array":
        items = node.get("items")
        return _array(_shape(items, resolver, place)) if isinstance(items, dict) else _array(ANY)
    return _SCALARS.get(kind, ANY)


def _resolved(node: Any, resolver: Resolver) -> tuple[Any, Resolver]:
    for _ in range(100):
        if not isinstance(node, dict) or "$ref" not in node:
            return node, resolver
        found = resolver.lookup(node["$ref"])
        node, resolver = found.contents, found.resolver
    raise DecodeError("a $ref leads to itself")


def _kind(node: dict[str, Any]) -> str:
    kinds = node.get("type")
    if kinds is None:
        if "properties" in node or "allOf" in node:
            return "object"
        values = node.get("enum", [node["const"]] if "const" in node else [])
        kinds = {_TYPE_NAMES.get(type(value), "") for value in values}
    elif isinstance(kinds, str):
        return kinds
    rest = set(kinds) - {"null"}
    if rest == {"integer", "number"}:
        return "number"
    return rest.pop() if len(rest) == 1 else ""


_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _object(node: dict[str, Any], resolver: Resolver, place: SchemaPlace) -> ColumnShape:
    members = {name: _shape(one, at, place) for name, one, at in _properties(node, resolver, place.columns)}
    if members:
        return _struct(members)
    rest = node.get("additionalProperties")
    return _map(_shape(rest, resolver, place)) if isinstance(rest, dict) and rest else ANY_OBJECT


def _properties(node: dict[str, Any], resolver: Resolver, columns: Count) -> Iterator[tuple[str, Any, Resolver]]:
    for part in node.get("allOf", ()):
        columns.take()
        found, at = _resolved(part, resolver)
        if isinstance(found, dict):
            yield from _properties(found, at, columns)
    for name, one in node.get("properties", {}).items():
        yield name, one, resolver


def _expected(what: str, value: Any) -> DecodeError:
    return DecodeError(f"expected {what}, got {orjson.dumps(value).decode()[:100]}")


def _struct(members: dict[str, ColumnShape]) -> ColumnShape:
    converts = [(name, shape.convert) for name, shape in members.items()]

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected("an object", value)
        row = {}
        for name, one in converts:
            member = value.get(name)
            if member is not None:
                row[name] = one(member)
        return row

    return ColumnShape(type=pa.struct([pa.field(name, shape.type) for name, shape in members.items()]), convert=convert)


def _map(item: ColumnShape) -> ColumnShape:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected("an object", value)
        return {key: None if one is None else item.convert(one) for key, one in value.items()}

    return ColumnShape(type=pa.map_(pa.string(), item.type), convert=convert)


def _array(item: ColumnShape) -> ColumnShape:
    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise _expected("an array", value)
        return [None if one is None else item.convert(one) for one in value]

    return ColumnShape(type=pa.list_(pa.field("element", item.type)), convert=convert)


def _string(value: Any) -> Any:
    if type(value) is not str:
        raise _expected("a string", value)
    return value


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise _expected("a boolean", value)
    return value


def _number(value: Any) -> Any:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise _expected("a number", value)
    return float(value)


def _integer(value: Any) -> Any:
    if type(value) is float and value.is_integer() and abs(value) <= 2**53:
        return int(value)  # 1.0 is an integer to JSON Schema
    if type(value) is not int or not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise _expected("an integer of 64 bits", value)
    return value


def _text(value: Any) -> Any:
    return orjson.dumps(value).decode()


def _object_text(value: Any) -> Any:
    if type(value) is not dict:
        raise _expected("an object", value)
    return _text(value)


ANY = ColumnShape(type=pa.string(), convert=_text)
ANY_OBJECT = ColumnShape(type=pa.string(), convert=_object_text)
_SCALARS = {
    "string": ColumnShape(type=pa.string(), convert=_string),
    "boolean": ColumnShape(type=pa.bool_(), convert=_boolean),
    "integer": ColumnShape(type=pa.int64(), convert=_integer),
    "number": ColumnShape(type=pa.float64(), convert=_number),
}
