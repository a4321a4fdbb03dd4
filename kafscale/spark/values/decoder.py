"""Decodes a column of framed values, each by its own writer schema, to struct<value, error>.

A bad value becomes an error text. A registry that does not answer raises `RegistryError`; otherwise an outage would
send every value to the dead letters.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from uuid import UUID

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafscale.errors import ConfigError, DecodeError, UnknownSchema
from kafscale.extras import missing_extra
from kafscale.spark.values.columns import (
    DEPTH_MAX,
    Decode,
    Decoded,
    Places,
    Reader,
    RowMemory,
    is_too_deep,
    scatter,
)
from kafscale.spark.values.options import ReaderOptions, ValueOptions
from kafscale.spark.values.payloads import Payloads
from kafscale.values.limits import error_text
from kafscale.values.registry import RegistryClient, RegistryOptions

PREFIX_BYTES = 5  # 0, and an id
GLOBAL_PREFIX_BYTES = 17  # 1, and a UUID, in a header


def make_reader(options: ReaderOptions) -> Reader:
    """Make the reader of a format, and import its libraries.

    Raises StartupError if the format's extra is not installed, ConfigError if the schema can't be columns.
    """
    try:
        reader = _make_reader(options)
    except ImportError as exc:
        raise missing_extra(options.format, exc, what=f"the value format {options.format}") from exc
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


DECODED = "decoded"  # the data source's column
ID_HEADER = "__value_schema_id"  # as Confluent's serializers name it
ROWS_AT_ONCE_COUNT = 10_000  # values whose Python objects are in memory at once; as many as in Spark's Arrow batches
ROWS_AT_ONCE_BYTES = 512 << 20  # of memory that they may become, at most; a single value may be as much by itself
DECODER_MAX_COUNT = 32  # kept by a worker, one for each column of decoded values


@attrs.frozen(kw_only=True)
class Decoding:
    """The registry, and the reader schema as of the plan of the query. Travels to the tasks."""

    registry: RegistryOptions
    reader: ReaderOptions

    @classmethod
    def of(cls, options: ValueOptions, topic: str | None = None) -> Decoding:
        """Look the reader schema up, by default by the topic's name.

        Raises ConfigError, UnknownSchema, RegistryError.
        """
        client = RegistryClient(options=options.registry)
        try:
            return cls(registry=options.registry, reader=options.reader_options(client, topic))
        finally:
            client.close()

    @property
    def type(self) -> pa.StructType:
        """Return the type of the column, nullable throughout. Raises ConfigError if the schema can't be columns."""
        return _struct_type(make_reader(self.reader).type)

    def decode(self, values: pa.Array) -> pa.StructArray:
        """Decode values, some at a time. Raises RegistryError."""
        parts = [self._decode(values.slice(start, count)) for start, count in self._pieces(values)]
        return pa.concat_arrays(parts or [self._decode(values)])

    def select(self, records: pa.RecordBatch, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Return these columns of records, with `decoded` made of `value` and `headers`. Raises RegistryError."""
        for start, count in self._pieces(records["value"]):
            rows = records.slice(start, count)
            decoded = self._decode(*_with_ids_of_headers(rows["value"], rows["headers"]))
            arrays = [decoded if name == DECODED else rows[name] for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _decode(self, values: pa.Array, with_header: Collection[int] = ()) -> pa.StructArray:
        decoder = _decoder(self)
        decoded = decoder.decode(values, with_header)
        type_ = _struct_type(decoder.type)
        errors = pa.array(decoded.errors, pa.string())
        return pa.StructArray.from_arrays([decoded.values.cast(type_[0].type), errors], fields=list(type_))

    def _pieces(self, values: pa.Array) -> Iterator[tuple[int, int]]:
        start, memory = 0, _decoder(self).memory
        while start < len(values):
            count = _rows_at_once_count(values.slice(start, ROWS_AT_ONCE_COUNT), memory)
            yield start, count
            start += count


def _rows_at_once_count(values: pa.Array, memory: RowMemory) -> int:
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    taken = np.cumsum(memory.own_bytes + memory.per_payload_byte * lengths)
    return max(1, int(np.searchsorted(taken, ROWS_AT_ONCE_BYTES, side="right")))


def _with_ids_of_headers(values: pa.Array, headers: pa.Array) -> tuple[pa.Array, Collection[int]]:
    entries = headers.flatten()
    named = pc.equal(entries.field("key"), ID_HEADER)
    if not pc.any(named).as_py():
        return values, ()
    rows = pc.list_parent_indices(headers).filter(named).to_pylist()
    found = dict(zip(reversed(rows), reversed(entries.field("value").filter(named).to_pylist()), strict=True))
    framed = [
        value if value is None or index not in found else (found[index] or b"") + value
        for index, value in enumerate(values.to_pylist())
    ]
    return pa.array(framed, pa.binary()), found.keys()


def _struct_type(value: pa.DataType) -> pa.StructType:
    return pa.struct([pa.field("value", _nullable(value)), pa.field("error", pa.string())])


def _nullable(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, _nullable(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(_nullable(type_.value_type))
    return type_


@lru_cache(maxsize=DECODER_MAX_COUNT)
def _decoder(decoding: Decoding) -> ValueDecoder:
    client = RegistryClient(options=decoding.registry)
    decoder = ValueDecoder(reader=make_reader(decoding.reader), client=client)
    weakref.finalize(decoder, client.close)  # when the worker keeps it no more, or ends
    return decoder
