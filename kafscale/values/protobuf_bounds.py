"""Refuses Protobuf values that would take too much memory: two bytes of an empty message take all fields of its type.

A value of 200 KB took 800 MB that way. So a value that may be too large for its type is walked first, and its memory is
summed up: messages by their fields, repeated elements, and texts that stand for numbers in columns (names of enums and,
in JSON, of fields). The walk ends at damage, as the parser does.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from kafscale.errors import DecodeError
from kafscale.wire.primitives import MAX_VARLONG_BITS, read_uvarint

VALUE_MAX_BYTES = 256 << 20  # of memory, for one value's messages and elements; its texts come on top
MESSAGE_BYTES = 64  # of a message beside its fields; upb's own, and what Python has around it
TEXT_BYTES = 16  # of a field that is text or bytes, without these
NUMBER_BYTES = 8  # of any other field

_VARINT, _FIXED64, _SIZED, _GROUP, _GROUP_END, _FIXED32 = range(6)
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_CONTINUED = bytes(range(0x80, 0x100))  # bytes of a varint behind which it goes on


@attrs.define(eq=False, repr=False)
class _Field:
    """The memory of one occurrence of a field; packed elements take `element_bytes` each."""

    occurrence_bytes: int
    element_bytes: int = 0
    packed: int | None = None  # how an element is written in a packed field; None if there are no packed ones
    message: _Message | None = None


@attrs.define(eq=False, repr=False)
class _Message:
    own_bytes: int = 0
    fields: dict[int, _Field] = attrs.field(factory=dict)


_UNKNOWN = _Message()


@attrs.frozen(kw_only=True)
class MemoryBounds:
    """The bounds of values of one type of message.

    most_per_byte: memory for each byte of a value. unchecked_bytes: the length up to which a value can't be too large.
    """

    most_per_byte: float
    unchecked_bytes: int
    _root: _Message

    @classmethod
    def of(cls, descriptor: Descriptor) -> MemoryBounds:
        made: dict[str, _Message] = {}
        root = _compile(descriptor, made)
        most_per_byte = 1.0
        for message in made.values():
            for field in message.fields.values():
                of_message = field.message.own_bytes if field.message is not None else 0
                most_per_byte = max(most_per_byte, (field.occurrence_bytes + of_message) / 2, field.element_bytes)
        return cls(most_per_byte=most_per_byte, unchecked_bytes=int(VALUE_MAX_BYTES / most_per_byte), root=root)

    def check(self, payload: bytes, start: int) -> None:
        """Check a message from `start` on. Raises DecodeError."""
        if len(payload) - start > self.unchecked_bytes:
            left = VALUE_MAX_BYTES
            for taken in _walk(self._root, payload, start):
                left -= taken
                if left < 0:
                    raise DecodeError(
                        f"its {len(payload) - start} bytes would take more than {VALUE_MAX_BYTES >> 20} MiB of memory"
                    )


def _compile(root: Descriptor, made: dict[str, _Message]) -> _Message:
    pending = [root]
    entries: list[tuple[_Message, _Message]] = []  # of maps, with their values: an entry without one gets an empty one
    while pending:
        descriptor = pending.pop()
        message = made.setdefault(descriptor.full_name, _Message())
        if message.own_bytes:
            continue
        message.own_bytes = MESSAGE_BYTES
        for field in [*descriptor.fields, *descriptor.file.pool.FindAllExtensions(descriptor)]:
            message.own_bytes += _field_bytes(field)
            message.fields[field.number] = compiled = _field(field)
            if field.message_type is not None:
                compiled.message = made.setdefault(field.message_type.full_name, _Message())
                pending.append(field.message_type)
                if descriptor.GetOptions().map_entry:
                    entries.append((message, compiled.message))
    for entry, value in entries:
        entry.own_bytes += value.own_bytes
    return made[root.full_name]


def _field(field: FieldDescriptor) -> _Field:
    if not field.is_repeated or field.message_type is not None:
        return _Field(occurrence_bytes=len(field.name))
    element_bytes = _field_bytes(field)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _Field(occurrence_bytes=len(field.name) + element_bytes)
    packed = _PACKED.get(field.type, _VARINT)
    return _Field(occurrence_bytes=len(field.name) + element_bytes, element_bytes=element_bytes, packed=packed)


def _field_bytes(field: FieldDescriptor) -> int:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return TEXT_BYTES
    if field.enum_type is not None:
        return NUMBER_BYTES + max((len(name) for name in field.enum_type.values_by_name), default=0)
    return NUMBER_BYTES


_PACKED = {
    FieldDescriptor.TYPE_FIXED32: _FIXED32,
    FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64,
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
}


def _walk(root: _Message, payload: bytes, position: int) -> Iterator[int]:
    around: list[tuple[_Message, int]] = []  # with where each ends
    message, end = root, len(payload)
    try:
        while True:
            while position == end and around:
                message, end = around.pop()
            if position >= end:
                return
            tag, position = read_uvarint(payload, position, MAX_VARLONG_BITS)
            field = message.fields.get(tag >> 3)
            wire_type = tag & 7
            if wire_type == _GROUP_END:  # of a group, which ends where its message does
                if not around:
                    return
                message, end = around.pop()
            elif wire_type == _GROUP:
                around.append((message, end))
                message = field.message if field is not None and field.message is not None else _UNKNOWN
                yield message.own_bytes + (0 if field is None else field.occurrence_bytes)
            elif wire_type == _SIZED:
                size, start = read_uvarint(payload, position, MAX_VARLONG_BITS)
                position = start + size
                if field is None:
                    continue
                if field.message is None:
                    yield field.occurrence_bytes + _packed_bytes(field, payload, start, position)
                    continue
                if position > end:
                    return
                around.append((message, end))
                message, position, end = field.message, start, position
                yield message.own_bytes + field.occurrence_bytes
            else:
                if wire_type == _VARINT:
                    _, position = read_uvarint(payload, position, MAX_VARLONG_BITS)
                else:
                    position += _FIXED_BYTES[wire_type]
                if field is not None:
                    yield field.occurrence_bytes
    except (IndexError, KeyError, DecodeError):
        return


def _packed_bytes(field: _Field, payload: bytes, start: int, end: int) -> int:
    if field.packed is None:
        return 0
    if field.packed == _VARINT:
        return field.element_bytes * len(payload[start:end].translate(None, _CONTINUED))
    return field.element_bytes * ((end - start) // _FIXED_BYTES[field.packed])
