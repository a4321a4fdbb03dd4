"""The client's side of a frame: request headers out, response headers in (sans-IO).

    request    size, api_key, api_version, correlation_id, client_id; from a flexible version on also tagged fields
    response   size, correlation_id; from a flexible version on also tagged fields, but never for ApiVersions
"""

from __future__ import annotations

import struct

from kafscale.errors import DecodeError
from kafscale.wire.messages.api_versions import ApiVersionsRequest
from kafscale.wire.primitives import Buffer, skip_tags

_REQUEST = struct.Struct(">ihhih")
_CORRELATION_ID = struct.Struct(">i")


def request_head(key_and_version: tuple[int, int], correlation_id: int, client_id: bytes, body_bytes: int) -> bytes:
    """What goes before the body of a request with a header of version 1, the frame's size included."""
    size = _REQUEST.size - 4 + len(client_id) + body_bytes
    return _REQUEST.pack(size, *key_and_version, correlation_id, len(client_id)) + client_id


def split_response(frame: Buffer, api_key: int, *, flexible: bool) -> tuple[int, memoryview]:
    """The correlation id and the body of a response frame (without its size). Raises DecodeError."""
    view = memoryview(frame)
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(view)
        position = _CORRELATION_ID.size
        if flexible and api_key != ApiVersionsRequest.API_KEY:
            position = skip_tags(view, position, len(view))
    except (struct.error, IndexError) as exc:
        raise DecodeError("the frame ends in its header") from exc
    return correlation_id, view[position:]
