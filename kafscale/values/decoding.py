"""Decodes single keys and values, each by its own writer schema, for people: the consumer and the console show them.

The value for JSON has Protobuf's JSON mapping; of Avro, bytes are base64, decimals text, dates and times numbers as
they were written. Spark's columns are made by `kafscale.spark.values`.
"""

from __future__ import annotations

import base64
import json
import math
import re
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

import attrs

from kafscale.errors import ConfigError, DecodeError, KafScaleError
from kafscale.extras import missing_extra
from kafscale.lru import LruCache
from kafscale.values.credentials import RegistryCredentials
from kafscale.values.limits import error_text
from kafscale.values.registry import RegistryClient, Schema, SchemaId

FORMATS = ("avro", "protobuf", "json")
PREFIX_BYTES = 5  # 0, and an id
GLOBAL_PREFIX_BYTES = 17  # 1, and a UUID
VALUE_ID_HEADER, KEY_ID_HEADER = "__value_schema_id", "__key_schema_id"  # as Confluent's serializers name them
DECODERS_MAX_COUNT = 500  # kept, one for each writer schema
DEPTH_MAX = 200  # objects and arrays within each other: who writes or reads the JSON may call itself for each

Decode = Callable[[bytes], Any]


@attrs.define(eq=False, repr=False)
class RegistryDecoder:
    """Decodes bytes that were written with a schema registry. Blocking, and safe for many threads.

    url: of the registry, several by commas. format: avro, protobuf or json if values of others are errors.
    timeout_seconds: of one request, None for the registry's default. Close it.
    Raises ConfigError, when made, if the URL or the credentials are wrong.
    """

    url: str
    format: str | None = attrs.field(default=None, kw_only=True)
    credentials: RegistryCredentials = attrs.field(factory=RegistryCredentials, kw_only=True)
    timeout_seconds: float | None = attrs.field(default=None, kw_only=True)
    client: RegistryClient = attrs.field(init=False)
    _decoders: LruCache[SchemaId, Decode] = attrs.field(factory=lambda: LruCache(DECODERS_MAX_COUNT), init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(f"the format is {self.format!r}: one of {', '.join(FORMATS)}")
        options = self.credentials.options(self.url)
        if self.timeout_seconds is not None:
            options = attrs.evolve(options, timeout_seconds=self.timeout_seconds)
        self.client = RegistryClient(options=options)

    def decode(self, data: bytes, id_header: bytes | None = None) -> Any:
        """Return the value for JSON: None, or objects, arrays, texts, booleans and finite numbers.

        id_header: the record's VALUE_ID_HEADER, or KEY_ID_HEADER for a key, which newer serializers write in place of a
        prefix.

        Raises DecodeError if the bytes don't fit their schema, UnknownSchema, RegistryError if the registry does not
        answer, StartupError if the format's package is missing.
        """
        schema_id, start = _schema_id(framed := (id_header or b"") + data)
        decode = self._of_schema(schema_id)
        try:
            return to_json(decode(framed[start:]))
        except KafScaleError:
            raise
        except RecursionError as exc:
            raise DecodeError("it is nested too deep") from exc
        except Exception as exc:  # a library given garbage may raise anything
            raise DecodeError(f"the value does not fit schema {schema_id}: {error_text(exc)}") from exc

    def close(self) -> None:
        """Close the connections to the registry."""
        self.client.close()

    def _of_schema(self, schema_id: SchemaId) -> Decode:
        with self._lock:
            decode = self._decoders.get(schema_id)
        if decode is None:
            schema = self.client.by_id(schema_id)
            if self.format not in (None, schema.format.lower()):
                raise DecodeError(f"{schema} is of type {schema.format}, not {str(self.format).upper()}")
            decode = _decoder(schema)
            with self._lock:
                self._decoders.put(schema_id, decode)
        return decode


def _schema_id(framed: bytes) -> tuple[SchemaId, int]:
    if len(framed) >= PREFIX_BYTES and framed[0] == 0:
        return int.from_bytes(framed[1:PREFIX_BYTES], "big"), PREFIX_BYTES
    if len(framed) >= GLOBAL_PREFIX_BYTES and framed[0] == 1:
        return UUID(bytes=framed[1:GLOBAL_PREFIX_BYTES]), GLOBAL_PREFIX_BYTES
    if len(framed) < PREFIX_BYTES:
        raise DecodeError(f"{len(framed)} bytes are too few for a schema registry's prefix of {PREFIX_BYTES}")
    raise DecodeError(f"the first byte is {framed[0]}, not 0: it was not written with a schema registry")


def _decoder(schema: Schema) -> Decode:
    try:
        if schema.format == "AVRO":
            from kafscale.values.avro_values import avro_decoder

            return avro_decoder(schema)
        if schema.format == "PROTOBUF":
            from kafscale.values.protobuf_values import protobuf_decoder

            return protobuf_decoder(schema)
    except ImportError as exc:
        raise missing_extra(schema.format.lower(), exc, what=f"a value of type {schema.format}") from exc
    except RecursionError as exc:
        raise DecodeError(f"{schema} is nested too deep") from exc
    if schema.format == "JSON":
        return parse_json
    raise DecodeError(f"{schema} is of type {schema.format}, which is not known here; known: AVRO, PROTOBUF, JSON")


def parse_json(data: bytes) -> Any:
    """Parse JSON text. Raises ValueError, RecursionError."""
    return json.loads(data.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_SURROGATES = re.compile("[\ud800-\udfff]")


def to_json(value: Any, depth: int = 0) -> Any:
    """Return a decoded value as one that JSON has. Raises DecodeError if it is nested too deep."""
    if isinstance(value, str):  # without halves of UTF-16 pairs, which UTF-8 does not have
        return value if value.isascii() else _SURROGATES.sub("\ufffd", value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal):
        return str(value)
    if depth >= DEPTH_MAX:
        raise DecodeError(f"it is nested more than {DEPTH_MAX} levels deep")
    if isinstance(value, dict):
        return {to_json(key): to_json(one, depth + 1) for key, one in value.items()}
    return [to_json(one, depth + 1) for one in value]
