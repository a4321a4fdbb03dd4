"""Reads Avro values by fastavro, with the rules of Avro's schema resolution, and keeps its errors short.

For a value that does not resolve, fastavro writes whole schemas into the error: for a union of 5,000 records 6 GB of
text, in two minutes. So after the first such error, schemas are replaced by some with a short text; not before, as
fastavro is a fifth slower with them. And a union, array or map by itself is parsed again for each value, so it is read
as the only field of a record, which has the same bytes.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import attrs
import fastavro
from fastavro.read import SchemaResolutionError

from kafscale.values.avro_schema import Node

WRAPPER = "_kafscale_wrapper"  # in no namespace, which types within it would inherit
SHOWN_COUNT = 5  # branches of a union, symbols of an enum
NAME_MAX_CHARACTERS = 60
_NAMED = "__named_schemas"  # fastavro's key of all types in a parsed schema
_SHOWN = ("type", "items", "values", "fields", "symbols")  # keys that are shown; defaults are values


@attrs.define(eq=False, repr=False)
class AvroResolution:
    """Reads payloads of one writer schema into rows of the reader's, or of the writer's own without another.

    Both are parsed; `is_wrapped`: both are wrapped in a record.
    """

    _writer: Node
    _reader: Node | None
    _is_wrapped: bool
    _is_terse: bool = attrs.field(default=False, init=False)

    def read(self, stream: BytesIO, *, with_names: bool) -> Any:
        """Read a value from its beginning. Raises SchemaResolutionError with a short text, and fastavro's other errors.

        with_names: return union branches with their names.
        """
        try:
            row = fastavro.schemaless_reader(stream, self._writer, self._reader, return_named_type=with_names)
        except SchemaResolutionError:
            if self._is_terse:
                raise
            self._writer, self._reader, self._is_terse = _terse(self._writer, {}), _terse(self._reader, {}), True
            stream.seek(0)
            row = fastavro.schemaless_reader(stream, self._writer, self._reader, return_named_type=with_names)
        return row["value"] if self._is_wrapped else row  # type: ignore[call-overload,index]


def needs_wrapping(whole: Node) -> bool:
    """Tell whether fastavro would parse a schema again for each value: one without a name that contains others."""
    return isinstance(whole, list) or (isinstance(whole, dict) and "name" not in whole)


def parsed(whole: Node, *, wrapped: bool) -> Node:
    """Parse a schema, in a record if `wrapped`. Raises fastavro's errors."""
    if wrapped:
        whole = {"type": "record", "name": WRAPPER, "fields": [{"name": "value", "type": whole}]}
    found = fastavro.parse_schema(whole)
    if isinstance(found, dict) and _NAMED in found:
        found[_NAMED] = _Hidden(found[_NAMED])
    return found


class _Hidden(dict[str, Any]):
    def __repr__(self) -> str:
        return f"{len(self)} types"


class _Several(list[Node]):
    """Branches of a union, fields of a record or symbols of an enum; only the first ones are shown."""

    def __repr__(self) -> str:
        shown = [_cut(one) if isinstance(one, str) else repr(one) for one in self[:SHOWN_COUNT]]
        if len(self) > SHOWN_COUNT:
            shown.append(f"and {len(self) - SHOWN_COUNT} more")
        return f"[{', '.join(shown)}]"


class _Definition(dict[str, Any]):
    def __repr__(self) -> str:
        kind, name = self["type"], self.get("name")
        shown = kind if isinstance(kind, str) else "field"
        return _cut(shown if name is None else f"{shown} {name}")


def _terse(node: Node, made: dict[int, Node]) -> Node:
    if isinstance(node, list):
        return _Several(_terse(one, made) for one in node)
    if not isinstance(node, dict):
        return node
    found = made.get(id(node))
    if found is None:
        found = made[id(node)] = _Definition(node)
        for key in _SHOWN:
            if key in node:
                found[key] = _terse(node[key], made)
        if _NAMED in node:
            found[_NAMED] = {name: _terse(one, made) for name, one in node[_NAMED].items()}
    return found


def _cut(text: str) -> str:
    return text if len(text) <= NAME_MAX_CHARACTERS else f"{text[:NAME_MAX_CHARACTERS]}…"
