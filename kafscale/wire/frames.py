"""Frames and their headers, sans-IO.

A frame is a 4-byte size and that many bytes. The reader takes received data, cut anywhere, and returns whole frames as
slices of it, without a copy; a frame that takes several reads is gathered in its own buffer. The caller may take over a
large frame that has begun (`take_large_frame`), and receive its rest into its own buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence, Sized
from typing import Final, TypeVar

import attrs

from kafscale.buffers import Buffer, size_of
from kafscale.errors import DecodeError, FrameTooLarge
from kafscale.wire.primitives import skip_tags

SIZE_BYTES: Final = 4

_NOTHING: Final = memoryview(b"")

SizedT = TypeVar("SizedT", bound=Sized)  # a buffer, or what else can be sent; only its length is asked

_size = struct.Struct(">i")
_request_header = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id
_response_header = struct.Struct(">ii")  # size, correlation id
_flexible_response_header = struct.Struct(">iiB")  # and no tagged fields


@attrs.define(eq=False, repr=False)
class FrameReader:
    """Cuts a byte stream into frames. A size that is negative or above `max_frame_bytes` is refused at once."""

    max_frame_bytes: int
    large_frame_bytes: int | None = attrs.field(default=None, kw_only=True)
    """An incomplete frame above this size may be taken over; None if none may."""
    _buffer: memoryview | bytearray = attrs.field(default=_NOTHING, init=False)  # a bytearray is our own
    _wanted_bytes: int = attrs.field(default=SIZE_BYTES, init=False)  # nothing can be cut off before these are here
    _gathered: list[memoryview] = attrs.field(factory=list, init=False)  # frames whose ends came in a later read

    def receive_data(self, data: Buffer) -> None:
        """Take received data. The buffer must not change afterwards: frames are slices of it."""
        if not self._buffer:
            self._buffer = memoryview(data)
            return
        if not isinstance(self._buffer, bytearray):
            self._buffer = bytearray(self._buffer)
        missing_bytes = self._wanted_bytes - len(self._buffer)
        if self._wanted_bytes == SIZE_BYTES or len(data) < missing_bytes:
            self._buffer += data
            return
        view = memoryview(data)
        self._buffer += view[:missing_bytes]
        self._gathered.append(memoryview(self._buffer)[SIZE_BYTES:])
        self._buffer = view[missing_bytes:] if missing_bytes < len(view) else _NOTHING
        self._wanted_bytes = SIZE_BYTES

    def next_frames(self) -> list[memoryview]:
        """Return the complete frames without size prefixes. Raises FrameTooLarge once those before it are returned."""
        frames, self._gathered = self._gathered, []
        if len(self._buffer) < self._wanted_bytes:
            return frames
        view = memoryview(self._buffer)
        position, size = 0, len(view)
        self._wanted_bytes = SIZE_BYTES
        while size - position >= SIZE_BYTES:
            (frame_bytes,) = _size.unpack_from(view, position)
            if not 0 <= frame_bytes <= self.max_frame_bytes:
                if frames:
                    break
                prefix = bytes(view[position : position + SIZE_BYTES])
                raise FrameTooLarge(f"a frame of {frame_bytes} bytes; the limit is {self.max_frame_bytes}", prefix)
            end = position + SIZE_BYTES + frame_bytes
            if end > size:
                self._wanted_bytes = SIZE_BYTES + frame_bytes
                break
            frames.append(view[position + SIZE_BYTES : end])
            position = end
        if position == size:
            self._buffer = _NOTHING  # lest an idle reader hold its last read
        elif size - position <= size // 2:
            self._buffer = bytearray(view[position:])  # lest a few bytes of the next frame do
        else:
            self._buffer = view[position:]
        return frames

    def take_large_frame(self) -> memoryview | None:
        """Take over the first bytes of the frame that has begun, if it is above `large_frame_bytes`.

        The caller must receive the rest of `announced_bytes` exactly; the reader then continues with the next frame.
        """
        if self.large_frame_bytes is None or self.announced_bytes <= self.large_frame_bytes:
            return None
        if len(self._buffer) >= self._wanted_bytes:
            return None  # it has become complete meanwhile
        received = memoryview(self._buffer)[SIZE_BYTES:]
        self._wanted_bytes = SIZE_BYTES
        self._buffer = _NOTHING
        return received

    def clear(self) -> None:
        self._buffer = _NOTHING
        self._gathered.clear()
        self._wanted_bytes = SIZE_BYTES

    @property
    def begun_bytes(self) -> int:
        """Return the received bytes of the frame that has begun, after `next_frames`."""
        return len(self._buffer)

    @property
    def announced_bytes(self) -> int:
        """Return the announced size of the frame that has begun; 0 while it is not known."""
        return self._wanted_bytes - SIZE_BYTES

    def begins_with(self, prefix: bytes) -> bool | None:
        """Tell whether the frame that has begun starts with these bytes; None while that is not known."""
        begun = bytes(self._buffer[SIZE_BYTES : SIZE_BYTES + len(prefix)])
        return begun == prefix if len(begun) == len(prefix) else None


@attrs.define
class RequestHeader:
    """Header of a request. Not frozen, which halves its cost."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int = 0  # where the body starts in the frame


def parse_request_header(frame: memoryview, flexible_since: Callable[[int], int]) -> RequestHeader:
    """Parse a request header of version 1, or 2 for flexible versions (KIP-482). Raises DecodeError."""
    try:
        api_key, api_version, correlation_id, length = _request_header.unpack_from(frame)
        position = _request_header.size
        client_id = None
        if length >= 0:
            end = position + length
            if end > len(frame):
                raise DecodeError("request header: the client id is longer than the frame")
            client_id = str(frame[position:end], "utf-8")
            position = end
        if api_version >= flexible_since(api_key):
            if frame[position]:
                position = skip_tags(frame, position, len(frame))
            else:
                position += 1
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise DecodeError(f"request header: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def request_frame(header: RequestHeader, parts: Sequence[Buffer], *, flexible_header: bool) -> list[Buffer]:
    """Return a request as a client sends it: size, header, body."""
    client_id = None if header.client_id is None else header.client_id.encode()
    length = -1 if client_id is None else len(client_id)
    head = _request_header.pack(header.api_key, header.api_version, header.correlation_id, length)
    head += (client_id or b"") + (b"\0" if flexible_header else b"")
    return [_size.pack(len(head) + size_of(parts)) + head, *parts]


def response_frame(correlation_id: int, parts: Sequence[SizedT], flexible_header: bool) -> list[SizedT | bytes]:
    """Return a response as a broker sends it. ApiVersions always has header version 0 (KIP-511)."""
    body_bytes = size_of(parts)
    if flexible_header:
        return [_flexible_response_header.pack(body_bytes + 5, correlation_id, 0), *parts]
    return [_response_header.pack(body_bytes + 4, correlation_id), *parts]


def parse_response_header(frame: memoryview, *, flexible_header: bool) -> tuple[int, int]:
    """Return the correlation id of a response and the offset of its body. Raises DecodeError."""
    try:
        (correlation_id,) = _size.unpack_from(frame)
        return correlation_id, skip_tags(frame, SIZE_BYTES, len(frame)) if flexible_header else SIZE_BYTES
    except (IndexError, struct.error) as error:
        raise DecodeError(f"response header: {error}") from error
