"""Values that confluent-kafka's serializers write with the stand-in for a schema registry, and their readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import attrs
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory
from google.protobuf.message import Message

from kafscale.spark.values.decoder import ValueDecoder, make_reader
from kafscale.spark.values.options import ReaderOptions
from kafscale.testing.schema_registry import Registry as Registry
from kafscale.testing.schema_registry import running_registry as running_registry
from kafscale.values import protobuf_schema
from kafscale.values.registry import RegistryClient, RegistryOptions, Schema

Headers = list[tuple[str, str | bytes | None]]


def prefixed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


@lru_cache
def message_class(text: str, name: str) -> Any:
    file = protobuf_schema.load(Schema(format="PROTOBUF", text=text))
    descriptor = protobuf_schema.message_named(file, name)
    assert descriptor is not None
    return message_factory.GetMessageClass(descriptor)


@attrs.define(eq=False, kw_only=True)
class Values:
    """Writes to the subject `<topic>-value`, and reads by any schema.

    headers: get the schema's id, which then does not stand in front of the value.
    """

    registry: Registry
    client: RegistryClient = attrs.field(init=False)
    _confluent: SchemaRegistryClient = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.client = RegistryClient(options=RegistryOptions(urls=(self.registry.url,)), sleep=lambda seconds: None)
        self._confluent = SchemaRegistryClient({"url": self.registry.url})

    def close(self) -> None:
        self.client.close()
        self._confluent.close()

    def avro(self, schema: Any, value: Any, *, topic: str = "orders", headers: Headers | None = None) -> bytes:
        serializer = AvroSerializer(self._confluent, json.dumps(schema), conf=_conf(headers))
        return self._bytes(serializer, value, topic, headers)

    def json(self, schema: Any, value: Any, *, topic: str = "orders", headers: Headers | None = None) -> bytes:
        serializer = JSONSerializer(json.dumps(schema), self._confluent, conf=_conf(headers))
        return self._bytes(serializer, value, topic, headers)

    def protobuf(self, message: Message, *, topic: str = "orders", headers: Headers | None = None) -> bytes:
        serializer = ProtobufSerializer(type(message), self._confluent, conf=_conf(headers))
        return self._bytes(serializer, message, topic, headers)

    def reader(self, format: str, schema: Any, **options: Any) -> ValueDecoder:
        """Return a decoder into a schema given as text, or as the JSON of it."""
        text = schema if isinstance(schema, str) and format == "protobuf" else json.dumps(schema)
        given = Schema(format=format.upper(), text=text)
        return self._decoder(ReaderOptions(format=format, schema=given, **options))

    def reader_of(self, subject: str = "orders-value", **options: Any) -> ValueDecoder:
        schema = self.client.by_subject(subject)
        return self._decoder(ReaderOptions(format=schema.format.lower(), schema=schema, **options))

    def _decoder(self, options: ReaderOptions) -> ValueDecoder:
        return ValueDecoder(reader=make_reader(options), client=self.client)

    def _bytes(self, serializer: Any, value: Any, topic: str, headers: Headers | None) -> bytes:
        written = serializer(value, SerializationContext(topic, MessageField.VALUE, headers))
        assert isinstance(written, bytes)
        return written


def _conf(headers: Headers | None) -> dict[str, Any]:
    return {} if headers is None else {"schema.id.serializer": header_schema_id_serializer}


@contextmanager
def running_values() -> Iterator[Values]:
    with running_registry() as registry:
        made = Values(registry=registry)
        try:
            yield made
        finally:
            made.close()
