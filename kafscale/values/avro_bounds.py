"""Refuses Avro values that would crash fastavro: its C recurses for each level, and trusts each count of items.

400 KB of a legal schema that contains itself overflow the stack, and 5 bytes announce ten million items that take no
bytes. Values of schemas that allow this are walked first; others end after at most as many steps as they have bytes.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import attrs
import fastavro.read

from kafscale.errors import DecodeError
from kafscale.wire.primitives import read_varlong

Node = Any  # as in `avro_schema`

DEPTH_MAX = 1000  # records, arrays and maps within each other; Jackson's limit for JSON; a level takes 0.4 KiB of stack
EMPTY_ITEMS_MAX = 10_000  # of arrays, in one value, that take no bytes
EMPTY_PER_BYTE = 16  # of other things that take no bytes, for each byte of a value, beside EMPTY_ITEMS_MAX
DECIMAL_MAX_BYTES = 1024  # 38 digits take 16; to make a decimal of a number takes the square of its length
DECIMAL = "kafscale-decimal"  # the logical type by which fastavro calls `read_decimal`

_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def read_decimal(data: bytes, writer: dict[str, Any], _: Any = None) -> Decimal:
    """Read a decimal as fastavro does, but within bounds. Raises DecodeError."""
    if len(data) > DECIMAL_MAX_BYTES:
        raise DecodeError(f"a decimal of {len(data)} bytes; at most {DECIMAL_MAX_BYTES} are read")
    context = Context(prec=writer["precision"])
    return context.create_decimal(int.from_bytes(data, "big", signed=True)).scaleb(-writer.get("scale", 0), context)


_readers: dict[str, Any] = fastavro.read.LOGICAL_READERS
for _kind in ("bytes", "fixed"):
    _readers[f"{_kind}-{DECIMAL}"] = read_decimal


@attrs.define(eq=False, repr=False)
class _Step:
    """The walk over one node of a schema. `children`: fields, branches, or the one kind of item.

    empty_count: the number of values without bytes in it, or in a record without choices.
    """

    kind: str
    children: list[_Step] = attrs.field(factory=list)
    fixed_bytes: int | None = None  # where all values take as many
    empty_count: int = 0


@attrs.frozen(kw_only=True)
class Walk:
    """Walks over values of one writer schema. `is_needed`: some values would crash fastavro."""

    is_needed: bool
    _step: _Step

    def check(self, payload: bytes, items_max: int) -> None:
        """Raise DecodeError for a value that is nested too deep, has too many items, or does not end."""
        try:
            self._walk(payload, items_max)
        except IndexError as exc:
            raise DecodeError("it ends before it is whole") from exc

    def _walk(self, payload: bytes, items_max: int) -> None:
        left = items_max
        empty_left = EMPTY_ITEMS_MAX
        free_left = EMPTY_ITEMS_MAX + EMPTY_PER_BYTE * len(payload)
        position = 0
        pending: list[tuple[_Step, int, int]] = [(self._step, 1, 0)]  # steps with their count and depth
        while pending:
            step, count, depth = pending.pop()
            if depth > DEPTH_MAX:
                raise DecodeError(f"it is nested more than {DEPTH_MAX} levels deep")
            if step.fixed_bytes is not None:
                position += step.fixed_bytes * count
                free_left -= step.empty_count * count
                if free_left < 0:
                    raise DecodeError(f"what takes no bytes is in it too often for {len(payload)} bytes")
                continue
            if count > 1:
                pending.append((step, count - 1, depth))
            if step.kind == "record":
                pending += [(child, 1, depth + 1) for child in reversed(step.children)]
            elif step.kind == "union":
                index, position = read_varlong(payload, position)
                if not 0 <= index < len(step.children):
                    raise DecodeError(f"there is no branch {index} of the union")
                pending.append((step.children[index], 1, depth))
            elif step.kind == "items":
                item_count, position = _read_count(payload, position)
                if not item_count:
                    continue
                left -= item_count
                empty_left -= item_count if step.children[0].fixed_bytes == 0 else 0
                if min(left, empty_left) < 0 or (step.children[0].fixed_bytes != 0 and item_count > len(payload)):
                    raise DecodeError(f"{item_count} items of an array or a map are too many for {len(payload)} bytes")
                pending += [(step, 1, depth), (step.children[0], item_count, depth + 1)]
            elif step.kind == "sized":
                size, position = read_varlong(payload, position)
                if size < 0:
                    raise DecodeError(f"a length of {size} bytes")
                position += size
            else:
                _, position = read_varlong(payload, position)
            if position > len(payload):
                raise DecodeError("it ends before it is whole")


def walk_of(node: Node, named: dict[str, Node]) -> Walk:
    compiler = _Compiler(named)
    step = compiler.compile(node)
    return Walk(is_needed=compiler.is_needed, step=step)


@attrs.define(eq=False, repr=False)
class _Compiler:
    named: dict[str, Node]
    is_needed: bool = False
    _made: dict[str, _Step] = attrs.field(factory=dict, init=False)
    _open: set[str] = attrs.field(factory=set, init=False)

    def compile(self, node: Node) -> _Step:
        if isinstance(node, list):
            return _Step("union", [self.compile(one) for one in node])
        if isinstance(node, str):
            return self._of_name(node)
        kind = node["type"]
        if not isinstance(kind, str):
            return self.compile(kind)
        if kind in ("record", "error"):
            return self._record(node)
        if kind == "array":
            item = self.compile(node["items"])
            self.is_needed |= item.fixed_bytes == 0
            return _Step("items", [item])
        if kind == "map":
            entry = [_Step("sized"), self.compile(node["values"])]
            return _Step("items", [_Step("record", entry)])
        if kind == "fixed":
            return _Step("fixed", fixed_bytes=node["size"], empty_count=0 if node["size"] else 1)
        return _Step("long") if kind == "enum" else self._of_name(kind)

    def _of_name(self, name: str) -> _Step:
        if name in _FIXED_BYTES:
            return _Step(name, fixed_bytes=_FIXED_BYTES[name], empty_count=1 if name == "null" else 0)
        if name in ("int", "long"):
            return _Step("long")
        if name in ("bytes", "string"):
            return _Step("sized")
        self.is_needed |= name in self._open  # it contains itself
        return self._made.get(name) or self.compile(self.named[name])

    def _record(self, node: Node) -> _Step:
        step = self._made[node["name"]] = _Step("record")
        self._open.add(node["name"])
        step.children = [self.compile(field["type"]) for field in node["fields"]]
        self._open.discard(node["name"])
        sizes = [child.fixed_bytes for child in step.children]
        if None not in sizes:
            step.fixed_bytes = sum(size or 0 for size in sizes)
        step.empty_count = max(sum(child.empty_count for child in step.children), 1 if step.fixed_bytes == 0 else 0)
        self.is_needed |= step.empty_count > EMPTY_PER_BYTE
        return step


def _read_count(payload: bytes, position: int) -> tuple[int, int]:
    count, position = read_varlong(payload, position)
    if count < 0:
        _, position = read_varlong(payload, position)
    return abs(count), position
