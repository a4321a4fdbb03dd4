"""A stand-in for a Confluent-compatible schema registry: in memory, served over HTTP on a free port of this machine.

It stores any schema unchecked. Ids, versions, references, look-ups, deletion, compatibility levels and errors are those
of the real one. `format=serialized` returns the stored text: base64 where confluent-kafka registered it, else `.proto`.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_OID, uuid5

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
from kafscale.values import protobuf_schema
from kafscale.values.registry import RegistryClient, RegistryOptions, Schema
from tests.devtools.external.http_servers import http_server

Json = dict[str, Any]


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


@attrs.define(eq=False, kw_only=True)
class Registry:
    """The state, and its knobs. All may be read and set by a test while requests come in.

    basic_auth: `user:password` that requests must have. bearer_token: likewise.
    failures: HTTP statuses that the next requests get instead of an answer, in this order.
    compatible: what every check of compatibility answers.
    requests: method and path of each request, for assertions. headers: likewise, with names in lower case.
    """

    basic_auth: str | None = None
    bearer_token: str | None = None
    failures: list[int] = attrs.field(factory=list)
    compatible: bool = True
    requests: list[str] = attrs.field(factory=list)
    headers: list[dict[str, str]] = attrs.field(factory=list)
    url: str = attrs.field(default="", init=False)
    _schemas: dict[int, Json] = attrs.field(factory=dict, init=False)
    _subjects: dict[str, dict[int, int]] = attrs.field(factory=dict, init=False)  # version -> id
    _guids: dict[str, int] = attrs.field(factory=dict, init=False)
    _levels: dict[str, str] = attrs.field(factory=dict, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def register(self, subject: str, text: str, *, format: str = "AVRO", references: tuple[Json, ...] = ()) -> int:
        """Register without a request; returns the id. A reference is {name, subject, version}."""
        body = {"schema": text, "schemaType": format, "references": list(references)}
        with self._lock:
            return int(self._register(subject, body)["id"])

    def answer(self, method: str, path: str, body: Json) -> Any:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        for pattern, handler in self._routes():
            names = pattern.split()
            if names[0] == method and len(names) - 1 == len(parts):
                arguments = [part for name, part in zip(names[1:], parts, strict=True) if name == "*"]
                if all(name in ("*", part) for name, part in zip(names[1:], parts, strict=True)):
                    with self._lock:
                        return handler(*arguments, body)
        raise _Refused(404, f"HTTP 404 Not Found: {method} {path}")

    def allows(self, authorization: str | None) -> bool:
        if self.basic_auth is not None:
            return authorization == "Basic " + base64.b64encode(self.basic_auth.encode()).decode("ascii")
        return self.bearer_token is None or authorization == f"Bearer {self.bearer_token}"

    def _routes(self) -> list[tuple[str, Callable[..., Any]]]:
        return [
            ("GET subjects", lambda body: sorted(self._subjects)),
            ("POST subjects *", self._lookup),
            ("DELETE subjects *", self._delete_subject),
            ("GET subjects * versions", lambda subject, body: sorted(self._versions(subject))),
            ("POST subjects * versions", self._register),
            ("GET subjects * versions *", self._version),
            ("GET subjects * versions * schema", lambda *found: json.loads(self._version(*found)["schema"])),
            ("DELETE subjects * versions *", self._delete_version),
            ("GET schemas types", lambda body: ["JSON", "PROTOBUF", "AVRO"]),
            ("GET schemas ids *", self._schema),
            ("GET schemas guids *", lambda guid, body: self._schema(str(self._guids.get(guid, "")), body)),
            ("GET schemas ids * schema", lambda schema_id, body: self._schema(schema_id, body)["schema"]),
            ("GET schemas ids * versions", self._used_by),
            ("GET config", lambda body: {"compatibilityLevel": self._levels.get("", "BACKWARD")}),
            ("PUT config", lambda body: self._set_level("", body)),
            ("GET config *", self._level),
            ("PUT config *", self._set_level),
            ("POST compatibility subjects * versions *", lambda *_: {"is_compatible": self.compatible}),
            ("POST compatibility subjects * versions", lambda *_: {"is_compatible": self.compatible}),
            ("GET mode", lambda body: {"mode": "READWRITE"}),
        ]

    def _versions(self, subject: str) -> dict[int, int]:
        if subject not in self._subjects:
            raise _Refused(40401, f"Subject '{subject}' not found.")
        return self._subjects[subject]

    def _register(self, subject: str, body: Json) -> Json:
        schema = _canonical(body)
        if not schema["schema"]:
            raise _Refused(42201, "Empty schema")
        for reference in schema["references"]:
            self._version(reference["subject"], str(reference["version"]), {})
        found = [schema_id for schema_id, one in self._schemas.items() if one == schema]
        schema_id = found[0] if found else len(self._schemas) + 1
        self._schemas[schema_id] = schema
        versions = self._subjects.setdefault(subject, {})
        if schema_id not in versions.values():
            versions[max(versions, default=0) + 1] = schema_id
        self._guids[_guid(schema_id)] = schema_id
        return {"id": schema_id, "guid": _guid(schema_id)}

    def _lookup(self, subject: str, body: Json) -> Json:
        schema = _canonical(body)
        for version, schema_id in self._versions(subject).items():
            if self._schemas[schema_id] == schema:
                return self._described(subject, version)
        raise _Refused(40403, "Schema not found")

    def _described(self, subject: str, version: int) -> Json:
        schema_id = self._subjects[subject][version]
        names = {"subject": subject, "version": version, "id": schema_id, "guid": _guid(schema_id)}
        return {**names, **_shown(self._schemas[schema_id])}

    def _version(self, subject: str, version: str, body: Json) -> Json:
        versions = self._versions(subject)
        number = max(versions) if version in ("latest", "-1") else int(version) if version.isdigit() else 0
        if number not in versions:
            raise _Refused(40402, f"Version {version} not found.")
        return self._described(subject, number)

    def _delete_subject(self, subject: str, body: Json) -> list[int]:
        versions = sorted(self._versions(subject))
        del self._subjects[subject]
        return versions

    def _delete_version(self, subject: str, version: str, body: Json) -> int:
        number = int(self._version(subject, version, body)["version"])
        del self._subjects[subject][number]
        if not self._subjects[subject]:
            del self._subjects[subject]
        return number

    def _schema(self, schema_id: str, body: Json) -> Json:
        schema = self._schemas.get(int(schema_id)) if schema_id.isdigit() else None
        if schema is None:
            raise _Refused(40403, f"Schema {schema_id} not found")
        return _shown(schema)

    def _used_by(self, schema_id: str, body: Json) -> list[Json]:
        self._schema(schema_id, body)
        return [
            {"subject": subject, "version": version}
            for subject, versions in self._subjects.items()
            for version, one in versions.items()
            if one == int(schema_id)
        ]

    def _level(self, subject: str, body: Json) -> Json:
        if subject not in self._levels:
            raise _Refused(40408, f"Subject '{subject}' does not have subject-level compatibility configured")
        return {"compatibilityLevel": self._levels[subject]}

    def _set_level(self, subject: str, body: Json) -> Json:
        self._levels[subject] = body["compatibility"]
        return {"compatibility": body["compatibility"]}


def _guid(schema_id: int) -> str:
    return str(uuid5(NAMESPACE_OID, str(schema_id)))


def _canonical(body: Json) -> Json:
    return {
        "schema": body.get("schema", ""),
        "schemaType": body.get("schemaType") or "AVRO",
        "references": [
            {"name": one["name"], "subject": one["subject"], "version": one["version"]}
            for one in body.get("references") or ()
        ],
    }


def _shown(schema: Json) -> Json:
    """Return a schema as the real registry answers: without a type for Avro, without an empty list of references."""
    hidden = {"schemaType": "AVRO", "references": []}
    return {key: value for key, value in schema.items() if hidden.get(key) != value}


@contextmanager
def running_registry(registry: Registry | None = None, context: ssl.SSLContext | None = None) -> Iterator[Registry]:
    """Serve a registry, a new one by default, until the block ends. A TLS `context` makes it an https server."""
    registry = registry or Registry()
    with http_server(_handler(registry), context) as registry.url:
        yield registry


def _handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            registry.requests.append(f"{self.command} {self.path}")
            registry.headers.append({name.lower(): value for name, value in self.headers.items()})
            if registry.failures:
                self._reply(registry.failures.pop(0), {"message": "as the test has asked for"})
            elif not registry.allows(self.headers.get("authorization")):
                self._reply(401, {"error_code": 401, "message": "Unauthorized"})
            else:
                try:
                    path = re.sub("//+", "/", urlsplit(self.path).path)
                    self._reply(200, registry.answer(self.command, path, json.loads(body or b"{}")))
                except _Refused as refused:
                    status = int(str(refused.code)[:3])
                    self._reply(status, {"error_code": refused.code, "message": refused.message})

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 # names of http.server

        def _reply(self, status: int, body: Any) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing: `requests` has them."""

    return Handler


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
