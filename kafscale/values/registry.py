"""A blocking client of a Confluent-compatible schema registry for Spark's driver and tasks.

Several registries may learn of an id at different times, so an unknown id is asked for again for some seconds, but not
again soon, as garbage names many ids. A registry may be hostile: requests, references, answers and kept schemas are
bounded.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit
from uuid import UUID

import attrs

from kafscale.backoff import Backoff
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError, RegistryError, UnknownSchema
from kafscale.http.blocking import BlockingClient, NoServerAnswer, ServerAnswer
from kafscale.login.tls import tls_context
from kafscale.login.tokens import TokenEndpoint

BASIC_AUTH_VARIABLE = "KAFSCALE_SCHEMA_REGISTRY_BASIC_AUTH"
ROUND_COUNT = 3  # as librdkafka's registry client
BACKOFF = Backoff(0.2)  # between rounds
UNKNOWN_SECONDS = 30  # how long an id stays unknown without another request
LAG_PAUSES_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.5)  # while an id may come that is unknown
UNKNOWN_MAX_COUNT = 10_000  # values of garbage name many ids
REFERENCE_MAX_DEPTH = 32
ANSWER_MAX_BYTES = 8 << 20  # Confluent's registry keeps a schema in a record, of 1 MiB at most by default
LOOKUP_SECONDS = 60.0  # for a schema with all its references, and attempts at several URLs
LOOKUP_MAX_BYTES = 4 * ANSWER_MAX_BYTES
KEPT_MAX_LENGTH = 64 << 20  # characters of schemas; then all are forgotten, and asked for again when they are needed
RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
T = TypeVar("T")
SchemaId = int | UUID  # newer serializers name a schema by its global id, in a header

UNKNOWN_ERROR_CODES = frozenset({40401, 40402, 40403})  # subject, version, schema


@attrs.frozen(kw_only=True)
class OAuthOptions:
    """An issuer of tokens by OAuth's client credentials.

    `cluster` and `identity_pool` are headers for Confluent Cloud.
    """

    url: str
    client_id: str
    client_secret: str = attrs.field(repr=False)
    scope: str | None = None
    cluster: str | None = None
    identity_pool: str | None = None

    def __attrs_post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the URL of the schema registry's issuer is {self.url!r}: give https://…")

    @property
    def headers(self) -> dict[str, str]:
        found = {"target-sr-cluster": self.cluster, "confluent-identity-pool-id": self.identity_pool}
        return {name: value for name, value in found.items() if value is not None}


def _host_of(url: str) -> str | None:
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return parts.netloc if parts.scheme in ("http", "https") else None


@attrs.define(frozen=True, kw_only=True)
class RegistryOptions:
    """The URLs of a registry, tried in order, and credentials.

    timeout_seconds: of a whole request. basic_auth: `user:password`. At most one of basic_auth, bearer_token and oauth.
    ca_file: PEM file of trusted authorities; None for the system's.
    tls: Kafka's client settings of TLS (`kafscale.login.tls`), as pairs; they name files, which tasks read, too.
    """

    urls: tuple[str, ...]
    basic_auth: str | None = attrs.field(default=None, repr=False)
    bearer_token: str | None = attrs.field(default=None, repr=False)
    oauth: OAuthOptions | None = None
    ca_file: str | None = None
    tls: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    timeout_seconds: float = 10.0

    def __attrs_post_init__(self) -> None:
        hosts = [_host_of(url) for url in self.urls]
        if any("@" in (url if host is None else host) for url, host in zip(self.urls, hosts, strict=True)):
            raise ConfigError(  # which does not repeat it: it would be in a log
                "the schema registry's URL has credentials in it: give them by a file or the environment "
                f"({BASIC_AUTH_VARIABLE})"
            )
        if not hosts or None in hosts:
            raise ConfigError(
                f"the schema registry's URL is {','.join(self.urls)!r}: give http://host:port, several by commas"
            )
        if [self.basic_auth, self.bearer_token, self.oauth].count(None) < 2:
            raise ConfigError("give the schema registry one of basic auth, a bearer token and an issuer of tokens")
        if self.basic_auth is not None and ":" not in self.basic_auth:
            raise ConfigError("basic auth for the schema registry has the form user:password")
        if self.ca_file is not None and any(name.startswith(("ssl.ca.", "ssl.truststore.")) for name, _ in self.tls):
            raise ConfigError("give the authorities of the schema registry once: as a CA file, or in its settings")

    @classmethod
    def parse_urls(cls, text: str) -> tuple[str, ...]:
        return tuple(url.strip().rstrip("/") for url in text.split(",") if url.strip())


@attrs.define(frozen=True, kw_only=True)
class Schema:
    """A schema as the registry gives it.

    format: AVRO, PROTOBUF or JSON. text: for PROTOBUF, a .proto file's text or the base64 of a FileDescriptorProto.
    id: None for one that was given by hand.
    """

    format: str
    text: str
    references: tuple[SchemaReference, ...] = ()
    id: SchemaId | None = None

    def __str__(self) -> str:
        return f"schema {self.id}" if self.id is not None else "the given schema"


@attrs.define(frozen=True, kw_only=True)
class SchemaReference:
    name: str
    schema: Schema


@attrs.define(eq=False)
class _Lookup:
    end_seconds: float
    left_bytes: int = LOOKUP_MAX_BYTES

    def spend(self, count: int) -> None:
        self.left_bytes -= count
        if self.left_bytes < 0:
            raise RegistryError(f"a schema and its references have more than {LOOKUP_MAX_BYTES} bytes")

    def check_time(self, now_seconds: float, failures: Sequence[str]) -> None:
        if now_seconds >= self.end_seconds:
            about = f" ({'; '.join(failures)})" if failures else ""
            raise RegistryError(
                f"the schema registry gave no schema with its references in {LOOKUP_SECONDS:g} s{about}"
            )


@attrs.define(eq=False, kw_only=True, repr=False)
class RegistryClient:
    """Looks schemas up, and keeps them. Safe for many threads."""

    options: RegistryOptions
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    request_count: int = attrs.field(default=0, init=False)
    _http: BlockingClient = attrs.field(init=False)
    _tokens: TokenEndpoint | None = attrs.field(default=None, init=False)
    _schemas: dict[SchemaId, Schema] = attrs.field(factory=dict, init=False)
    _kept_length: int = attrs.field(default=0, init=False)
    _unknown_until: dict[SchemaId, float] = attrs.field(factory=dict, init=False)  # kept when that is over
    _patient_from: float = attrs.field(default=0.0, init=False)  # the next time that an unknown id is waited for
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        context = None
        if self.options.ca_file is not None or self.options.tls:
            authorities = {} if self.options.ca_file is None else {"ssl.ca.location": self.options.ca_file}
            try:
                context = tls_context({**dict(self.options.tls), **authorities})
            except ConfigError as exc:
                raise ConfigError(f"the schema registry's {exc}") from exc
        self._http = BlockingClient(
            timeout_seconds=self.options.timeout_seconds,
            deadline_seconds=self.options.timeout_seconds,
            body_max_bytes=ANSWER_MAX_BYTES,
            ssl_context=context,
        )
        if self.options.oauth is not None:
            self._tokens = _token_endpoint(self.options.oauth, context)

    def by_id(self, schema_id: SchemaId) -> Schema:
        """Return a schema with its references. Raises UnknownSchema, RegistryError."""
        return self._by_id(schema_id, REFERENCE_MAX_DEPTH, self._lookup())

    def by_subject(self, subject: str, version: int | str = "latest") -> Schema:
        """Return one version of a subject with its references. Raises UnknownSchema, RegistryError."""
        return self._by_subject(subject, version, REFERENCE_MAX_DEPTH, self._lookup())

    def close(self) -> None:
        self._http.close()

    def _lookup(self) -> _Lookup:
        return _Lookup(self.clock() + LOOKUP_SECONDS)

    def _by_subject(self, subject: str, version: int | str, depth: int, lookup: _Lookup) -> Schema:
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/{quote(str(version))}", lookup)
        return self._by_id(_field(found, "id", int), depth, lookup)

    def _by_id(self, schema_id: SchemaId, depth: int, lookup: _Lookup) -> Schema:
        schema = self._schemas.get(schema_id)
        if schema is not None:
            return schema
        if self._unknown_until.get(schema_id, 0.0) > self.clock():
            raise UnknownSchema(f"the schema registry has no schema {schema_id}")
        if depth == 0:
            raise RegistryError(
                f"references of schemas are nested more than {REFERENCE_MAX_DEPTH} deep, or in a circle"
            )
        path = f"/schemas/guids/{schema_id}" if isinstance(schema_id, UUID) else f"/schemas/ids/{schema_id}"
        try:
            found = self._get_when_there(path, schema_id, lookup)
            if (
                found.get("schemaType") == "PROTOBUF"
            ):  # registries that don't know the format answer with the text again
                found = {**found, **self._get(f"{path}?format=serialized", lookup)}
        except UnknownSchema as exc:
            self._remember_unknown(schema_id)
            raise UnknownSchema(f"the schema registry has no schema {schema_id}") from exc
        schema = Schema(
            format=_field(found, "schemaType", str, "AVRO"),
            text=_field(found, "schema", str),
            references=tuple(self._reference(one, depth - 1, lookup) for one in _field(found, "references", list, [])),
            id=schema_id,
        )
        self._keep(schema_id, schema)
        return schema

    def _reference(self, found: Any, depth: int, lookup: _Lookup) -> SchemaReference:
        subject, version = _field(found, "subject", str), _field(found, "version", int)
        return SchemaReference(
            name=_field(found, "name", str), schema=self._by_subject(subject, version, depth, lookup)
        )

    def _keep(self, schema_id: SchemaId, schema: Schema) -> None:
        with self._lock:
            if self._kept_length > KEPT_MAX_LENGTH:
                self._schemas.clear()
                self._kept_length = 0
            self._schemas[schema_id] = schema
            self._kept_length += len(schema.text)

    def _get_when_there(self, path: str, schema_id: SchemaId, lookup: _Lookup) -> dict[str, Any]:
        if schema_id not in self._unknown_until and self.clock() >= self._patient_from:
            for pause_seconds in LAG_PAUSES_SECONDS:
                try:
                    return self._get(path, lookup)
                except UnknownSchema:
                    self.sleep(pause_seconds)
            self._patient_from = self.clock() + UNKNOWN_SECONDS
        return self._get(path, lookup)

    def _remember_unknown(self, schema_id: SchemaId) -> None:
        with self._lock:
            if len(self._unknown_until) >= UNKNOWN_MAX_COUNT:
                self._unknown_until.clear()
            self._unknown_until[schema_id] = self.clock() + UNKNOWN_SECONDS

    def _get(self, path: str, lookup: _Lookup) -> dict[str, Any]:
        failures: list[str] = []
        for attempt in range(ROUND_COUNT):
            if attempt:
                self.sleep(BACKOFF.seconds(attempt - 1))
            lookup.check_time(self.clock(), failures)
            failures = []
            unknown: UnknownSchema | None = None
            for url in self.options.urls:
                lookup.check_time(self.clock(), failures)
                try:
                    answer = self._send(url.rstrip("/") + path)
                except NoServerAnswer as exc:
                    failures.append(f"{url}: {exc}")
                    continue
                if answer.status in RETRIED_STATUSES:
                    failures.append(f"{url}: HTTP {answer.status}")
                    continue
                lookup.spend(len(answer.body))
                try:
                    return _body(url, path, answer)
                except UnknownSchema as exc:
                    unknown = exc  # to this one: another may have heard of it
            if unknown is not None:
                raise unknown
        raise RegistryError(
            f"no schema registry answers ({'; '.join(failures)}): check that it runs and is reached from here,"
            " driver and workers alike"
        )

    def _send(self, url: str) -> ServerAnswer:
        headers = {"accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.options.basic_auth is not None:
            credentials = base64.b64encode(self.options.basic_auth.encode()).decode("ascii")
            headers["authorization"] = f"Basic {credentials}"
        elif self.options.bearer_token is not None:
            headers["authorization"] = f"Bearer {self.options.bearer_token}"
        elif self.options.oauth is not None and self._tokens is not None:
            headers |= {"authorization": f"Bearer {_token(self._tokens)}", **self.options.oauth.headers}
        self.request_count += 1
        return self._http.send("GET", url, headers)


def _token_endpoint(oauth: OAuthOptions, context: ssl.SSLContext | None) -> TokenEndpoint:
    trust = None
    if oauth.url.startswith("https://"):
        trust = ssl.create_default_context()
        for certificate in () if context is None else context.get_ca_certs(binary_form=True):
            trust.load_verify_locations(cadata=certificate)
    return TokenEndpoint(
        url=oauth.url,
        client_id=oauth.client_id,
        client_secret=oauth.client_secret,
        scope=oauth.scope,
        context=trust,
    )


def _token(tokens: TokenEndpoint) -> str:
    try:
        return tokens.get().text
    except (BrokerUnavailable, KafkaError) as exc:
        raise RegistryError(f"the schema registry can't be asked: {exc}") from exc


def _body(url: str, path: str, answer: ServerAnswer) -> dict[str, Any]:
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):  # 200,000 brackets are deeper than Python reads
        body = None
    if not isinstance(body, dict):
        body = {}
    if answer.status in (401, 403):
        raise RegistryError(
            f"the schema registry {url} refuses (HTTP {answer.status}): check basic auth or bearer token, "
            "or what the issuer of tokens allows"
        )
    if answer.status == 404 and body.get("error_code") in UNKNOWN_ERROR_CODES:
        raise UnknownSchema(f"the schema registry {url} has no {path}: {body.get('message', '')}")
    if answer.status != 200 or not body:
        raise RegistryError(
            f"{url} does not answer as a schema registry does (HTTP {answer.status} for {path}): check the URL"
        )
    return body


def _field(found: Any, name: str, type_: type[T], default: T | None = None) -> T:
    value = found.get(name) if isinstance(found, dict) else None
    if value is None and default is not None:
        return default
    if not isinstance(value, type_) or isinstance(value, bool):
        raise RegistryError(
            f"the schema registry does not answer as one does: its field '{name}' is missing or of another type; "
            "check the URL"
        )
    return value
