"""Generate the source of encoders: `encode(message, write)` for one message class and version.

Records are written as the buffers that they are. A value that does not fit raises struct.error: messages are our own.
An encoder in pieces is a generator that pauses after each PIECE_COUNT elements of arrays.
"""

from __future__ import annotations

import struct
from typing import Any

import attrs

from kafscale.wire.primitives import UVARINT, uvarint
from kafscale.wire.schema import (
    FIXED,
    Array,
    EncodedArray,
    Field,
    FieldType,
    Nullable,
    is_fixed,
    tagged_fields,
    untagged_fields,
)
from kafscale.wire.source import CodeSource

_NAMES: dict[str, Any] = {"EncodedArray": EncodedArray, "UVARINT": UVARINT, "pack": struct.pack, "uvarint": uvarint}


def compile_encoder(cls: type, version: int, *, flexible: bool, in_pieces: bool = False) -> Any:
    title = f"encoder {cls.__name__} v{version}{' in pieces' if in_pieces else ''}"
    source = CodeSource(title=title, names=dict(_NAMES))
    compiler = _EncoderCompiler(source=source, version=version, flexible=flexible, write="write", in_pieces=in_pieces)
    with source.block("def encode(message, write):"):
        if in_pieces:
            source.add("piece = 0")
            source.pause()
        else:
            source.add("pass")
        compiler.struct("message", cls)
    return source.build("encode")


def compile_array_encoder(of: type, version: int, *, flexible: bool) -> Any:
    source = CodeSource(title=f"encoder array of {of.__name__} v{version}", names=dict(_NAMES))
    with source.block("def encode(elements, write):"):
        _EncoderCompiler(source=source, version=version, flexible=flexible, write="write").array("elements", of)
    return source.build("encode")


@attrs.define(kw_only=True, eq=False, repr=False)
class _EncoderCompiler:
    source: CodeSource
    version: int
    flexible: bool
    write: str  # the name of the function that takes each part
    in_pieces: bool = False

    def struct(self, expression: str, cls: type) -> None:
        run: list[Field] = []  # fixed fields not yet written
        for field in untagged_fields(cls, self.version):
            if is_fixed(field.type):
                run.append(field)
            else:
                self._fixed_run(expression, run)
                variable = self.source.variable(field.name)  # the attribute is read once
                self.source.add(f"{variable} = {expression}.{field.name}")
                self._value(variable, field.type)
        self._fixed_run(expression, run)
        if self.flexible:
            self._tags(expression, cls)

    def _add(self, part: str) -> None:
        self.source.add(f"{self.write}({part})")

    def _fixed_run(self, expression: str, run: list[Field]) -> None:
        if run:
            pack = self.source.bind_pack("".join(FIXED[str(field.type)] for field in run))
            self._add(f"{pack}({', '.join(f'{expression}.{field.name}' for field in run)})")
            run.clear()

    def _value(self, variable: str, type_: FieldType) -> None:
        if isinstance(type_, Array):
            if not type_.may_be_encoded:
                self.array(variable, type_.of)
                return
            with self.source.block(f"if {variable}.__class__ is EncodedArray:"):
                self._add(f"{variable}.data")
            with self.source.block("else:"):
                self.array(variable, type_.of)
        elif isinstance(type_, Nullable):
            self._nullable(variable, type_, null=b"\xff")
        elif isinstance(type_, type):
            self.struct(variable, type_)
        elif is_fixed(type_):
            self._add(f"{self.source.bind_pack(FIXED[type_])}({variable})")
        else:
            self._variable_length(variable, type_)

    def _nullable(self, variable: str, type_: Nullable, *, null: bytes) -> None:
        with self.source.block(f"if {variable} is None:"):
            self._add(repr(null))
        with self.source.block("else:"):
            self._add(r"b'\x01'")
            self.struct(variable, type_.of)

    def array(self, variable: str, of: FieldType) -> None:
        source = self.source
        with source.block(f"if {variable} is None:"):
            self._null("i")
        with source.block("else:"):
            count = source.variable("count")
            source.add(f"{count} = len({variable})")
            self._length(count, "i")
            if is_fixed(of) and of != "uuid":  # "16s" can't be repeated by a number in front
                self._add(f"pack(f'>{{{count}}}{FIXED[of]}', *{variable})")
                return
            item = source.variable("item")
            with source.block(f"for {item} in {variable}:"):
                self._value(item, of)
                if self.in_pieces:
                    source.count_element("1")

    def _variable_length(self, variable: str, type_: str) -> None:
        source = self.source
        code = "h" if type_ == "string" else "i"
        length = source.variable("length")
        with source.block(f"if {variable} is None:"):
            self._null(code)
        if type_ == "records":
            with source.block(f"elif isinstance({variable}, list):"):
                source.add(f"{length} = sum(map(len, {variable}))")
                self._length(length, code)
                buffer = source.variable("buffer")
                with source.block(f"for {buffer} in {variable}:"):
                    self._add(buffer)
        with source.block("else:"):
            if type_ == "string":
                source.add(f"{variable} = {variable}.encode()")
            source.add(f"{length} = len({variable})")
            self._length(length, code)
            self._add(variable)

    def _null(self, code: str) -> None:
        self._add(r"b'\0'" if self.flexible else repr(struct.pack(">" + code, -1)))

    def _length(self, variable: str, code: str) -> None:
        if self.flexible:
            self._add(f"UVARINT[{variable} + 1] if {variable} < 127 else uvarint({variable} + 1)")
        else:
            self._add(f"{self.source.bind_pack(code)}({variable})")

    def _tagged(self, variable: str, type_: FieldType) -> None:
        if isinstance(type_, Nullable):
            self._nullable(variable, type_, null=b"\0")  # a varint here
        else:
            self._value(variable, type_)

    def _tags(self, expression: str, cls: type) -> None:
        source = self.source
        known = tagged_fields(cls, self.version)
        if not known:
            self._add(r"b'\0'")
            return
        present = source.variable("present")
        source.add(f"{present} = []")
        for tag, field in known.items():
            value, parts = source.variable(field.name), source.variable("parts")
            source.add(f"{value} = {expression}.{field.name}")
            is_written = "True" if field.always else f"{value} != {source.bind(field.default, 'default')}"
            with source.block(f"if {is_written}:"):
                source.add(f"{parts} = []")
                attrs.evolve(self, write=f"{parts}.append")._tagged(value, field.type)
                source.add(f"{parts} = b''.join({parts})")
                source.add(f"{present}.append({uvarint(tag)!r} + uvarint(len({parts})) + {parts})")
        self._add(f"UVARINT[len({present})]")
        with source.block(f"for {parts} in {present}:"):
            self._add(parts)
