"""Decodes framed values to struct<value, error>, for `from_registry` and the data source's column `decoded`."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafscale.spark.values.columns import RowMemory
from kafscale.spark.values.decoder import ReaderOptions, ValueDecoder, make_reader
from kafscale.spark.values.options import ValueOptions
from kafscale.spark.values.registry import RegistryClient, RegistryOptions

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
