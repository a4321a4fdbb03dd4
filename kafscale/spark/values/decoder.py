"""A column of framed values into columns: each value by its own writer schema, schemas parsed once.

A bad value yields an error text and never an exception; a registry that does not answer raises `RegistryError`, since
else a registry's hour of downtime would send every value to the dead letters.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from uuid import UUID

import attrs
import numpy as np
import pyarrow as pa

from kafscale.errors import ConfigError, DecodeError, UnknownSchema
from kafscale.spark.values.cells import RowMemory
from kafscale.spark.values.columns import Decode, Decoded, Reader, error_text
from kafscale.spark.values.registry import RegistryClient, Schema

PREFIX_BYTES = 5  # 0, and an id
GLOBAL_PREFIX_BYTES = 17  # 1, and a UUID, in a header
FORMATS = ("avro", "protobuf", "json")


@attrs.define(frozen=True, kw_only=True)
class ReaderOptions:
    """What values are read into. May be pickled.

    format: avro, protobuf or json. schema: the reader schema.
    message: Protobuf: the message's full name; None for the first of the file.
    validate: JSON: hold each value to its writer schema, which is ten times slower.
    """

    format: str
    schema: Schema
    message: str | None = None
    validate: bool = False

    def __attrs_post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"the value format is {self.format!r}: one of {', '.join(FORMATS)}")
        if self.schema.format.lower() != self.format:
            raise ConfigError(f"{self.schema} is of type {self.schema.format}, but the value format is {self.format}")
        if self.message is not None and self.format != "protobuf":
            raise ConfigError(f"a message's name is for protobuf, but the value format is {self.format}")
        if self.validate and self.format != "json":
            raise ConfigError(f"validation is for json, but the value format is {self.format}")


def make_reader(options: ReaderOptions) -> Reader:
    """The reader of a format, whose libraries are imported here. Raises ConfigError if the schema can't be columns."""
    try:
        return _make_reader(options)
    except RecursionError as exc:
        raise ConfigError(f"{options.schema} is nested too deep to be columns") from exc


def _make_reader(options: ReaderOptions) -> Reader:
    if options.format == "avro":
        from kafscale.spark.values.avro import AvroReader

        return AvroReader(schema=options.schema)
    if options.format == "protobuf":
        from kafscale.spark.values.protobuf import ProtobufReader

        return ProtobufReader(schema=options.schema, message=options.message)
    from kafscale.spark.values.json_schema import JsonReader

    return JsonReader(schema=options.schema, validate=options.validate)


@attrs.define(eq=False, kw_only=True, repr=False)
class ValueDecoder:
    """Keeps the decoders of the writer schemas it has met: as many as the topics have, which is few."""

    reader: Reader
    client: RegistryClient
    _decoders: dict[bytes, Decode | DecodeError] = attrs.field(factory=dict, init=False)

    @property
    def type(self) -> pa.DataType:
        return self.reader.type

    @property
    def memory(self) -> RowMemory:
        return self.reader.memory

    def decode(self, values: Sequence[bytes | None], with_header: Container[int] = ()) -> Decoded:
        """Decode framed values; a null one (a tombstone) stays null, without an error. Raises RegistryError.

        with_header: positions of values in front of which stands what was their header; it may be a global id.
        """
        errors: list[str | None] = [None] * len(values)
        parts: list[pa.Array] = []
        places: list[list[int]] = []
        for prefix, positions in _group(values, with_header, errors).items():
            try:
                decode = self._of_prefix(prefix)
            except (UnknownSchema, DecodeError) as exc:
                for position in positions:
                    errors[position] = error_text(exc)
                continue
            decoded = decode([values[position][len(prefix) :] for position in positions])  # type: ignore[index]
            for position, error in zip(positions, decoded.errors, strict=True):
                errors[position] = error
            parts.append(decoded.values)
            places.append(positions)
        return Decoded(values=self._scatter(parts, places, len(values)), errors=errors)

    def _scatter(self, parts: list[pa.Array], places: list[list[int]], count: int) -> pa.Array:
        """The decoded values in the order that they came in, null in the places that are in no part."""
        if len(parts) == 1 and len(parts[0]) == count:
            return parts[0]
        if not parts:
            return pa.nulls(count, self.type)
        indices = np.zeros(count, np.int64)
        missing = np.ones(count, np.bool_)
        order = np.concatenate([np.asarray(positions) for positions in places])
        indices[order] = np.arange(len(order))
        missing[order] = False
        return pa.concat_arrays(parts).take(pa.array(indices, mask=missing))

    def _of_prefix(self, prefix: bytes) -> Decode:
        decode = self._decoders.get(prefix)
        if decode is None:
            is_global = len(prefix) == GLOBAL_PREFIX_BYTES
            schema_id = UUID(bytes=prefix[1:]) if is_global else int.from_bytes(prefix[1:], "big")
            schema = self.client.by_id(schema_id)
            try:
                decode = self.reader.of_writer(schema)
            except DecodeError as exc:
                decode = exc
            except RecursionError:
                decode = DecodeError(f"{schema} is nested too deep")
            self._decoders[prefix] = decode
        if isinstance(decode, DecodeError):
            raise decode
        return decode


def _group(
    values: Sequence[bytes | None], with_header: Container[int], errors: list[str | None]
) -> dict[bytes, list[int]]:
    """The positions of the values by prefix; those without one get their error text."""
    positions: dict[bytes, list[int]] = {}
    for position, value in enumerate(values):
        if value is None:
            continue
        if position in with_header and value[0] == 1 and len(value) >= GLOBAL_PREFIX_BYTES:
            positions.setdefault(value[:GLOBAL_PREFIX_BYTES], []).append(position)
        elif len(value) < PREFIX_BYTES:
            errors[position] = f"{len(value)} bytes are too few for a schema registry's prefix of {PREFIX_BYTES}"
        elif value[0]:
            errors[position] = f"the first byte is {value[0]}, not 0: the value was not written with a schema registry"
        else:
            positions.setdefault(value[:PREFIX_BYTES], []).append(position)
    return positions
