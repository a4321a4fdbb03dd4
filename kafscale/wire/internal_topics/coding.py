"""Keys and values of internal topics to bytes and back.

    key      record type int16 | key
    value    version int16 | value

The record type tells keys apart that are in one topic; each has one version only. A value is written in the version
that Kafka 4.1 writes, unless its writer asks for another, and read in any that Kafka ever wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from kafscale.buffers import Buffer
from kafscale.errors import DecodeError
from kafscale.wire.codec import decode, encode
from kafscale.wire.schema import NEVER

_prefix = struct.Struct(">h")


class Value:
    """Base of values: their versions, the first flexible one (KIP-482), and the one that Kafka 4.1 writes as a rule."""

    __slots__ = ()
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_SINCE: ClassVar[int] = 0
    WRITTEN_VERSION: ClassVar[int] = 0

    def __init_subclass__(
        cls, *, versions: tuple[int, int] | None = None, flexible: int = NEVER, written: int = 0
    ) -> None:
        if versions is not None:  # attrs makes a class with slots a second time, without these arguments
            cls.MIN_VERSION, cls.MAX_VERSION = versions
            cls.FLEXIBLE_SINCE, cls.WRITTEN_VERSION = flexible, written


class Key:
    """Base of keys, which have one version: their record type, and the class of their values."""

    __slots__ = ()
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, NEVER
    RECORD_TYPE: ClassVar[int]
    VALUE: ClassVar[type[Value]]

    def __init_subclass__(cls, *, record_type: int | None = None, value: type[Value] = Value) -> None:
        if record_type is not None:  # as above
            cls.RECORD_TYPE, cls.VALUE = record_type, value


V = TypeVar("V", bound=Value)


def encode_key(key: Key) -> bytes:
    return b"".join([_prefix.pack(key.RECORD_TYPE), *encode(key, 0)])


def encode_value(value: Value, version: int | None = None) -> bytes:
    """Return the value of a record, in the version that Kafka 4.1 writes where none is given. Raises ValueError."""
    written = value.WRITTEN_VERSION if version is None else version
    return b"".join([_prefix.pack(written), *encode(value, written)])


def decode_key(kinds: Mapping[int, type], data: Buffer) -> Any:
    """Return the key of a record; None for another record type, which Kafka ignores as well. Raises DecodeError."""
    record_type = _read_prefix(data)
    kind = kinds.get(record_type)
    return None if kind is None else decode(kind, 0, memoryview(data)[_prefix.size :])


def decode_value(cls: type[V], data: Buffer) -> V:
    """Return the value of a record, of the class that its key has as `VALUE`. Raises DecodeError."""
    version = _read_prefix(data)
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise DecodeError(f"{cls.__name__} of version {version}; known are {cls.MIN_VERSION} to {cls.MAX_VERSION}")
    return decode(cls, version, memoryview(data)[_prefix.size :])


def _read_prefix(data: Buffer) -> int:
    if len(data) < _prefix.size:
        raise DecodeError(f"a record of an internal topic with {len(data)} bytes, which are too few for its type")
    (number,) = _prefix.unpack_from(data)
    return int(number)
