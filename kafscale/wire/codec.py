"""Encode and decode messages: `schema` declarations compiled to straight-line Python, once per class and version.

Decoding raises DecodeError on wrong bytes, and allocates at most a small multiple of the received bytes. Decoded
records are slices of the decoded buffer, which must outlive the message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from kafscale.buffers import Buffer
from kafscale.errors import DecodeError
from kafscale.wire.decoder_source import compile_decoder
from kafscale.wire.encoder_source import compile_array_encoder, compile_encoder
from kafscale.wire.schema import EncodedArray

M = TypeVar("M")


def decoder(cls: type[M], version: int) -> Callable[[memoryview, int], tuple[M, int]]:
    """Return `decode(buf, pos) -> (message, next pos)`, raising DecodeError. Raises ValueError for a wrong version."""
    decode: Callable[[memoryview, int], tuple[M, int]] = _compiled(compile_decoder, cls, version, False)
    return decode


def encoder(cls: type[M], version: int) -> Callable[[M, Callable[[Buffer], object]], None]:
    """Return `encode(message, write)`; `write` gets each part in turn. Raises as `decoder`."""
    encode: Callable[[M, Callable[[Buffer], object]], None] = _compiled(compile_encoder, cls, version, False)
    return encode


def decoder_in_pieces(cls: type[M], version: int) -> Callable[[memoryview, int], Generator[None, None, tuple[M, int]]]:
    """Return `decoder` as a generator that pauses during a long message."""
    decode: Callable[[memoryview, int], Generator[None, None, tuple[M, int]]]
    decode = _compiled(compile_decoder, cls, version, True)
    return decode


def encoder_in_pieces(cls: type[M], version: int) -> Callable[[M, Callable[[Buffer], object]], Iterator[None]]:
    """Return `encoder` as a generator that pauses during a long message."""
    encode: Callable[[M, Callable[[Buffer], object]], Iterator[None]] = _compiled(compile_encoder, cls, version, True)
    return encode


def _compile(compile_: Callable[..., Any], cls: type, version: int, in_pieces: bool) -> Any:
    return compile_(cls, version, flexible=is_flexible(cls, version), in_pieces=in_pieces)


_compiled: Callable[..., Any] = cache(_compile)


def decode(cls: type[M], version: int, buf: Buffer) -> M:
    """Decode a message that fills the buffer. Raises DecodeError."""
    message, end = decoder(cls, version)(memoryview(buf), 0)
    if end != len(buf):
        raise DecodeError(f"{cls.__name__} v{version}: {len(buf) - end} bytes are left over")
    return message


def encode(message: object, version: int) -> list[Buffer]:
    """Encode a message as a list of parts, ready for one gathering write."""
    parts: list[Buffer] = []
    encoder(type(message), version)(message, parts.append)
    return parts


def encode_array(elements: Sequence[object], message_class: type, version: int) -> EncodedArray:
    """Encode an array of at least one struct apart from its message, for a field that `may_be_encoded`."""
    parts: list[Buffer] = []
    encode = compile_array_encoder(type(elements[0]), version, flexible=is_flexible(message_class, version))
    encode(elements, parts.append)
    return EncodedArray(b"".join(parts))


def is_flexible(cls: Any, version: int) -> bool:
    """Tell whether a version has compact lengths and tagged fields (KIP-482). Raises ValueError for an unknown one."""
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise ValueError(f"{cls.__name__} has versions {cls.MIN_VERSION} to {cls.MAX_VERSION}, not {version}")
    return bool(version >= cls.FLEXIBLE_SINCE)
