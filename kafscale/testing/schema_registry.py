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
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_OID, uuid5

import attrs

from kafscale.testing.http_server import http_server

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
    class RegistryHandler(BaseHTTPRequestHandler):
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

    return RegistryHandler
