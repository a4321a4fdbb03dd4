"""Decodes single Avro values by their writer schema alone, also of schemas that contain themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

from kafscale.errors import DecodeError
from kafscale.values import avro_schema
from kafscale.values.avro_bounds import Walk, walk_of
from kafscale.values.avro_resolution import AvroResolution, needs_wrapping, parsed
from kafscale.values.limits import error_text
from kafscale.values.registry import Schema

ITEMS_MAX = 1_000_000  # of the arrays and maps of one value


def avro_decoder(schema: Schema) -> Callable[[bytes], Any]:
    """Make the decoder of a writer schema's payloads; a union's value comes without the branch's name.

    Raises DecodeError if the schema is invalid.
    """
    node, named = avro_schema.parse(schema)
    whole = avro_schema.inlined(node, named, set())
    wrapped = needs_wrapping(whole)
    try:
        writer = parsed(whole, wrapped=wrapped)
    except Exception as exc:  # fastavro raises several types
        raise DecodeError(f"{schema} is not a valid Avro schema: {error_text(exc)}") from exc
    return partial(_decode, AvroResolution(writer, None, wrapped), walk_of(node, named))


def _decode(resolution: AvroResolution, walk: Walk, payload: bytes) -> Any:
    if walk.is_needed or len(payload) > ITEMS_MAX:
        walk.check(payload, ITEMS_MAX)
    stream = BytesIO(payload)
    value = resolution.read(stream, with_names=False)
    if stream.tell() != len(payload):
        raise DecodeError(f"{len(payload) - stream.tell()} bytes are left over after the value")
    return value
