"""Keys and values of internal topics to bytes and back.

    key      record type int16 | key
    value    version int16 | value

The record type tells keys apart that are in one topic; each has one version only. A value is written in the version
that Kafka 4.1 writes, unless its writer asks for another, and read in any that Kafka ever wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from kafscale.buffers import Buffer
from kafscale.errors import DecodeError
from kafscale.wire.codec import decode, encode

_prefix = struct.Struct(">h")


class Key(Protocol):
    """Declarations of a key class besides its attributes and `VALUE`, the class of its values."""

    RECORD_TYPE: ClassVar[int]


class Value(Protocol):
    """Declarations of a value class besides its attributes."""

    MIN_VERSION: int
    MAX_VERSION: int
    WRITTEN_VERSION: ClassVar[int]
    """The version that Kafka 4.1 writes as a rule."""


V = TypeVar("V", bound=Value)


def encode_key(key: Key) -> bytes:
    """Return the key of a record."""
    return b"".join([_prefix.pack(key.RECORD_TYPE), *encode(key, 0)])


def encode_value(value: Value, version: int | None = None) -> bytes:
    """Return the value of a record, in the version that Kafka 4.1 writes where none is given.

    Raises:
        ValueError: the class does not have this version.
    """
    written = value.WRITTEN_VERSION if version is None else version
    return b"".join([_prefix.pack(written), *encode(value, written)])


def decode_key(kinds: Mapping[int, type], data: Buffer) -> Any:
    """Return the key of a record of the topic that has these `kinds`; None for a record type that is not among them.

    Kafka passes over records of unknown types: a newer version may have written them before it was taken back.

    Raises:
        DecodeError: the bytes are not a key.
    """
    record_type = _read_prefix(data)
    kind = kinds.get(record_type)
    return None if kind is None else decode(kind, 0, memoryview(data)[_prefix.size :])


def decode_value(cls: type[V], data: Buffer) -> V:
    """Return the value of a record, which is of the class that its key has as `VALUE`.

    Raises:
        DecodeError: the bytes are no such value, or one of a version that only a newer broker can read.
    """
    version = _read_prefix(data)
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise DecodeError(f"{cls.__name__} of version {version}; known are {cls.MIN_VERSION} to {cls.MAX_VERSION}")
    return decode(cls, version, memoryview(data)[_prefix.size :])


def _read_prefix(data: Buffer) -> int:
    if len(data) < _prefix.size:
        raise DecodeError(f"a record of an internal topic with {len(data)} bytes, which are too few for its type")
    (number,) = _prefix.unpack_from(data)
    return int(number)
