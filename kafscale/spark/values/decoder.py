"""Decodes a column of framed values: each value by its own writer schema.

A bad value becomes an error text. A registry that does not answer raises `RegistryError`; otherwise an outage would
send every value to the dead letters.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.errors import ConfigError, DecodeError, UnknownSchema
from kafscale.spark.values.columns import (
    DEPTH_MAX,
    Decode,
    Decoded,
    Places,
    Reader,
    RowMemory,
    error_text,
    is_too_deep,
    scatter,
)
from kafscale.spark.values.payloads import Payloads
from kafscale.spark.values.registry import RegistryClient, Schema

PREFIX_BYTES = 5  # 0, and an id
GLOBAL_PREFIX_BYTES = 17  # 1, and a UUID, in a header
FORMATS = ("avro", "protobuf", "json")


@attrs.define(frozen=True, kw_only=True)
class ReaderOptions:
    """The reader schema, as it travels to the tasks.

    format: avro, protobuf or json. message: Protobuf: the message's full name; None for the first of the file.
    validate: JSON: check each value against its writer schema, which is ten times slower.
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
    """Make the reader of a format, and import its libraries. Raises ConfigError if the schema can't be columns."""
    try:
        reader = _make_reader(options)
    except RecursionError as exc:
        raise ConfigError(f"{options.schema} is nested too deep to be columns") from exc
    if is_too_deep(reader.type):
        raise ConfigError(f"{options.schema} is nested too deep to be columns: {DEPTH_MAX} levels at most")
    return reader


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
    """Decodes values, and keeps the decoders of their writer schemas."""

    reader: Reader
    client: RegistryClient
    _decoders: dict[bytes, Decode | DecodeError] = attrs.field(factory=dict, init=False)

    @property
    def type(self) -> pa.DataType:
        return self.reader.type

    @property
    def memory(self) -> RowMemory:
        return self.reader.memory

    def decode(self, values: pa.Array | Sequence[bytes | None], with_header: Collection[int] = ()) -> Decoded:
        """Decode framed values; a null one (a tombstone) stays null, without an error. Raises RegistryError.

        with_header: positions of values with their header put in front, which may be a global id.
        """
        array = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
        framed = Payloads.of(array)
        errors: list[str | None] = [None] * len(framed)
        parts: list[pa.Array] = []
        places: list[Places] = []
        for prefix, positions in _group(framed, array.is_valid(), with_header, errors).items():
            try:
                decode = self._of_prefix(prefix)
            except (UnknownSchema, DecodeError) as exc:
                for position in positions.tolist():
                    errors[position] = error_text(exc)
                continue
            decoded = decode(framed.only(positions, len(prefix)))
            if any(decoded.errors):
                for position, error in zip(positions.tolist(), decoded.errors, strict=True):
                    errors[position] = error
            parts.append(decoded.values)
            places.append(positions)
        return Decoded(values=scatter(parts, places, len(framed), self.type), errors=errors)

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
    framed: Payloads, is_valid: pa.Array, with_header: Collection[int], errors: list[str | None]
) -> dict[bytes, Places]:
    found = is_valid.to_numpy(zero_copy_only=False).copy()
    prefixes = _take_global(framed, found, with_header) if with_header else {}
    lengths, first = framed.lengths, framed.raw.take(framed.starts, mode="clip")
    is_long, begins = lengths >= PREFIX_BYTES, first == 0
    for position in np.flatnonzero(found & ~is_long).tolist():
        errors[position] = f"{lengths[position]} bytes are too few for a schema registry's prefix of {PREFIX_BYTES}"
    for position in np.flatnonzero(found & is_long & ~begins).tolist():
        errors[position] = (
            f"the first byte is {first[position]}, not 0: the value was not written with a schema registry"
        )
    positions = np.flatnonzero(found & is_long & begins)
    ids = framed.raw.take(framed.starts[positions, np.newaxis] + np.arange(1, PREFIX_BYTES)).view(">u4")[:, 0]
    order = np.argsort(ids, kind="stable")
    changes = np.flatnonzero(np.diff(ids[order])) + 1
    for of_one in np.split(positions[order], changes) if len(positions) else ():
        prefixes[framed[int(of_one[0])][:PREFIX_BYTES]] = of_one
    return prefixes


def _take_global(framed: Payloads, found: NDArray[np.bool_], with_header: Collection[int]) -> dict[bytes, Places]:
    positions: dict[bytes, list[int]] = {}
    for position in with_header:
        value = framed[position] if found[position] else b""
        if len(value) >= GLOBAL_PREFIX_BYTES and value[0] == 1:
            positions.setdefault(value[:GLOBAL_PREFIX_BYTES], []).append(position)
    prefixes = {prefix: np.array(sorted(of_one)) for prefix, of_one in positions.items()}
    for of_one in prefixes.values():
        found[of_one] = False
    return prefixes
