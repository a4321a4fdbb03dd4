"""Generate the source of decoders: `decode(buf, pos)` for one message class and version.

`pos` never goes back, and a length is compared with the bytes left before anything is made of it. Elements of arrays
are counted over the whole message, since one of a byte may become an object of a hundred; so are tagged fields. A
decoder in pieces is a generator that pauses after each PIECE_COUNT of them.
"""

from __future__ import annotations

import struct
from typing import Any

import attrs

from kafscale.errors import DecodeError
from kafscale.wire.primitives import TAGS_MAX_COUNT, read_uvarint, skip_fields
from kafscale.wire.schema import (
    FIXED,
    STRING_MAX_BYTES,
    Array,
    Field,
    FieldType,
    Nullable,
    is_fixed,
    tagged_fields,
    untagged_fields,
)
from kafscale.wire.source import CodeSource

# Of all arrays of a message together: 100,000 partitions, or a million ids. As objects that is up to 200 MB.
ELEMENTS_MAX_COUNT = 1_000_000

_NAMES: dict[str, Any] = {
    "DecodeError": DecodeError,
    "StructError": struct.error,
    "read_uvarint": read_uvarint,
    "skip_fields": skip_fields,
    "unpack_from": struct.unpack_from,
}


def compile_decoder(cls: type, version: int, *, flexible: bool, in_pieces: bool = False) -> Any:
    title = f"{cls.__name__} v{version}"
    source = CodeSource(title=f"decoder {title}{' in pieces' if in_pieces else ''}", names=dict(_NAMES))
    most = getattr(cls, "ELEMENTS_MAX_COUNT", ELEMENTS_MAX_COUNT)
    compiler = _DecoderCompiler(
        source=source, version=version, flexible=flexible, elements_max_count=most, in_pieces=in_pieces
    )
    with source.block("def decode(buf, pos):"):
        source.add("size = len(buf)")
        source.add("elements = piece = 0")
        if in_pieces:
            source.pause()
        with source.block("try:"):
            compiler.struct("message", cls)
        with source.block("except IndexError:"):
            source.add(f"raise DecodeError('{title}: the message ends early') from None")
        with source.block("except (DecodeError, StructError, ValueError) as error:"):
            source.add(f"raise DecodeError(f'{title}, before byte {{pos}}: {{error}}') from error")
        source.add("return message, pos")
    return source.build("decode")


def minimum_bytes(type_: FieldType, version: int, *, flexible: bool) -> int:
    """Return the least size of a value, at least 1: it bounds the count that an array may claim."""
    if isinstance(type_, str):
        if type_ in FIXED:
            return struct.calcsize(">" + FIXED[type_])
        return 1 if flexible else 2 if type_ == "string" else 4
    if isinstance(type_, Array):
        return 1 if flexible else 4
    if isinstance(type_, Nullable):
        return 1
    fields = untagged_fields(type_, version)
    return max(1, sum(minimum_bytes(field.type, version, flexible=flexible) for field in fields) + flexible)


@attrs.define(kw_only=True, eq=False, repr=False)
class _DecoderCompiler:
    source: CodeSource
    version: int
    flexible: bool
    elements_max_count: int
    in_pieces: bool

    def struct(self, out: str, cls: type) -> None:
        source = self.source
        arguments = []
        run: list[tuple[str, str]] = []  # struct codes and variables of fixed fields not yet read
        for field in untagged_fields(cls, self.version):
            variable = source.variable(field.name)
            arguments.append(f"{field.name}={variable}")
            if is_fixed(field.type):
                run.append((FIXED[field.type], variable))
            else:
                self._fixed_run(run)
                self._field(variable, field, owner=cls)
        self._fixed_run(run)
        source.add(f"{out} = {source.bind(cls, cls.__name__)}({', '.join(arguments)})")
        if self.flexible:
            self._tags(out, cls)

    def _fixed_run(self, run: list[tuple[str, str]]) -> None:
        if run:
            codes = "".join(code for code, _ in run)
            variables = ", ".join(variable for _, variable in run)
            self.source.add(f"{variables}, = {self.source.bind_unpack(codes)}(buf, pos)")
            self.source.add(f"pos += {struct.calcsize('>' + codes)}")
            run.clear()

    def _field(self, out: str, field: Field, owner: type) -> None:
        self._value(out, field.type)
        if not field.nullable and not is_fixed(field.type) and not isinstance(field.type, type):
            with self.source.block(f"if {out} is None:"):
                self.source.add(f"raise ValueError('{owner.__name__}.{field.name} is null')")

    def _value(self, out: str, type_: FieldType) -> None:
        if isinstance(type_, Array):
            self._array(out, type_.of)
        elif isinstance(type_, Nullable):
            self._nullable(out, type_, is_null="buf[pos] >= 128")  # a negative int8
        elif isinstance(type_, type):
            self.struct(out, type_)
        elif is_fixed(type_):
            self._fixed_run([(FIXED[type_], out)])
        else:
            self._variable(out, str(type_))

    def _tagged(self, out: str, field: Field, owner: type) -> None:
        if isinstance(field.type, Nullable):
            self._nullable(out, field.type, is_null="not buf[pos]")  # a varint of one byte
        else:
            self._field(out, field, owner)

    def _nullable(self, out: str, type_: Nullable, *, is_null: str) -> None:
        with self.source.block(f"if {is_null}:"):
            self.source.add(f"{out} = None")
            self.source.add("pos += 1")
        with self.source.block("else:"):
            self.source.add("pos += 1")
            self.struct(out, type_.of)

    def _array(self, out: str, of: FieldType) -> None:
        source = self.source
        count = source.variable("count")
        self._length(count, "i")
        with source.block(f"if {count} < 0:"):
            source.add(f"{out} = None")
        with source.block("else:"):
            item_bytes = minimum_bytes(of, self.version, flexible=self.flexible)
            with source.block(f"if {count} * {item_bytes} > size - pos:"):
                source.add(f"raise ValueError(f'an array of {{{count}}} is longer than the message')")
            self._count_elements(count)
            if is_fixed(of) and of != "uuid":  # "16s" can't be repeated by a number in front
                source.add(f"{out} = list(unpack_from(f'>{{{count}}}{FIXED[of]}', buf, pos))")
                source.add(f"pos += {count} * {item_bytes}")
                if self.in_pieces:
                    source.count_element(f"{count} >> 6")  # each of these takes a small part of what a struct does
                return
            source.add(f"{out} = []")
            with source.block(f"for _ in range({count}):"):
                item = source.variable("item")
                self._value(item, of)
                if isinstance(of, str | Array):
                    with source.block(f"if {item} is None:"):
                        source.add("raise ValueError('an element of an array is null')")
                source.add(f"{out}.append({item})")
                if self.in_pieces:
                    source.count_element("1")

    def _count_elements(self, count: str) -> None:
        self.source.add(f"elements += {count}")
        with self.source.block(f"if elements > {self.elements_max_count}:"):
            self.source.add(f"raise ValueError('more than {self.elements_max_count} elements')")

    def _variable(self, out: str, type_: str) -> None:
        source = self.source
        length, end = source.variable("length"), source.variable("end")
        self._length(length, "h" if type_ == "string" else "i")
        with source.block(f"if {length} < 0:"):
            source.add(f"{out} = None")
        with source.block("else:"):
            source.add(f"{end} = pos + {length}")
            with source.block(f"if {end} > size:"):
                source.add(f"raise ValueError(f'{type_} of {{{length}}} bytes is longer than the message')")
            if type_ == "string" and self.flexible:
                with source.block(f"if {length} > {STRING_MAX_BYTES}:"):
                    source.add(f"raise ValueError(f'string of {{{length}}} bytes; {STRING_MAX_BYTES} are allowed')")
            made = {"string": "str({}, 'utf-8')", "bytes": "bytes({})", "records": "{}"}[type_]
            source.add(f"{out} = {made.format(f'buf[pos:{end}]')}")
            source.add(f"pos = {end}")

    def _length(self, out: str, code: str) -> None:
        if not self.flexible:
            self._fixed_run([(code, out)])
            return
        self._uvarint(out)
        self.source.add(f"{out} -= 1")

    def _uvarint(self, out: str) -> None:
        self.source.add(f"{out} = buf[pos]")
        with self.source.block(f"if {out} < 128:"):
            self.source.add("pos += 1")
        with self.source.block("else:"):
            self.source.add(f"{out}, pos = read_uvarint(buf, pos)")

    def _tags(self, out: str, cls: type) -> None:
        source = self.source
        known = tagged_fields(cls, self.version)
        with source.block("if not buf[pos]:"):
            source.add("pos += 1")
        with source.block("else:"):
            count, tag, end = source.variable("count"), source.variable("tag"), source.variable("end")
            self._uvarint(count)
            with source.block(f"if {count} > {TAGS_MAX_COUNT}:"):
                source.add(f"raise ValueError(f'{{{count}}} tagged fields; {TAGS_MAX_COUNT} are allowed')")
            self._count_elements(count)
            if self.in_pieces:
                source.count_element(count)
            if not known:
                source.add(f"pos = skip_fields(buf, pos, size, {count})")
                return
            with source.block(f"for _ in range({count}):"):
                source.add(f"{tag}, pos = read_uvarint(buf, pos)")
                source.add(f"{end}, pos = read_uvarint(buf, pos)")
                source.add(f"{end} += pos")
                with source.block(f"if {end} > size:"):
                    source.add("raise ValueError('tagged field past the end')")
                keyword = "if"
                for number, field in known.items():
                    with source.block(f"{keyword} {tag} == {number}:"):
                        value = source.variable(field.name)
                        self._tagged(value, field, owner=cls)
                        source.add(f"{out}.{field.name} = {value}")
                    keyword = "elif"
                with source.block("else:"):
                    source.add(f"pos = {end}")
                with source.block(f"if pos != {end}:"):
                    source.add(
                        f"raise ValueError(f'tagged field {{{tag}}} of {cls.__name__} does not end where it says')"
                    )
