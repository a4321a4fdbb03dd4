"""Decodes single Protobuf values by their writer schema alone, into Protobuf's JSON mapping with fields' own names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FileDescriptor

from kafscale.values import protobuf_schema
from kafscale.values.protobuf_bounds import MemoryBounds
from kafscale.values.registry import Schema


@attrs.frozen(kw_only=True, eq=False)
class _MessageType:
    parse: Callable[[bytes], Any]
    bounds: MemoryBounds


@attrs.define(eq=False, repr=False)
class _MessageTypes:
    file: FileDescriptor
    messages: dict[str, _MessageType] = attrs.field(
        factory=dict
    )  # by full name, so there are no more than the file has

    def message(self, indexes: tuple[int, ...]) -> _MessageType:
        descriptor = protobuf_schema.message_at(self.file, indexes)
        found = self.messages.get(descriptor.full_name)
        if found is None:
            parse = message_factory.GetMessageClass(descriptor).FromString
            found = self.messages[descriptor.full_name] = _MessageType(parse=parse, bounds=MemoryBounds.of(descriptor))
        return found


def protobuf_decoder(schema: Schema) -> Callable[[bytes], Any]:
    """Make the decoder of a writer schema's payloads, which begin with the indexes of their message.

    Fields without presence are there with their defaults. Raises DecodeError if the schema is invalid; RegistryError if
    protoc can't run now.
    """
    return partial(_decode, _MessageTypes(protobuf_schema.load(schema)))


def _decode(writer: _MessageTypes, payload: bytes) -> Any:
    indexes, start = protobuf_schema.read_indexes(payload)
    message = writer.message(indexes)
    message.bounds.check(payload, start)
    return json_format.MessageToDict(
        message.parse(payload[start:]),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=writer.file.pool,
    )
