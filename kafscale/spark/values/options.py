"""Options of decoding: by keyword for `from_registry`, by name for the data source, with the registry's credentials.

Credentials are given, in files, in a file of settings by the names of Confluent's clients, or in the environment of the
planning process, so that no secret is in a program or a command line. In the file of settings, names may begin with
`schema.registry.`; then only those count:

    basic.auth.user.info   USER:PASSWORD, with basic.auth.credentials.source=USER_INFO, or without it
    bearer.auth.token      with bearer.auth.credentials.source=STATIC_TOKEN, or without it
    bearer.auth.credentials.source=OAUTHBEARER, and the issuer of tokens:
        bearer.auth.issuer.endpoint.url, bearer.auth.client.id, bearer.auth.client.secret, bearer.auth.scope
        bearer.auth.logical.cluster, bearer.auth.identity.pool.id, for Confluent Cloud
    ssl.…                  authorities and a certificate, as in `kafscale.login.tls`
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from kafscale.errors import ConfigError
from kafscale.login import tls
from kafscale.login.properties import read_properties
from kafscale.spark.values.registry import BASIC_AUTH_VARIABLE, OAuthOptions, RegistryClient, RegistryOptions, Schema

BEARER_TOKEN_VARIABLE = "KAFSCALE_SCHEMA_REGISTRY_BEARER_TOKEN"
PREFIX = "schema.registry."
USER_INFO, TOKEN = "basic.auth.user.info", "bearer.auth.token"
BASIC_SOURCE, BEARER_SOURCE = "basic.auth.credentials.source", "bearer.auth.credentials.source"
OAUTHBEARER = "OAUTHBEARER"
ISSUER_URL, CLIENT_ID, CLIENT_SECRET = (
    "bearer.auth.issuer.endpoint.url",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
)
SCOPE, CLUSTER, POOL = "bearer.auth.scope", "bearer.auth.logical.cluster", "bearer.auth.identity.pool.id"
_SOURCES = {BASIC_SOURCE: ("USER_INFO",), BEARER_SOURCE: ("STATIC_TOKEN", OAUTHBEARER)}
_PREFIXES = ("basic.auth.", "bearer.auth.", "ssl.")
_OAUTH = (ISSUER_URL, CLIENT_ID, CLIENT_SECRET, SCOPE, CLUSTER, POOL)
_KNOWN = frozenset({USER_INFO, TOKEN, *_SOURCES, *_OAUTH, *tls.KNOWN})


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


@attrs.frozen(kw_only=True)
class RegistryCredentials:
    """The credentials of a user; all may be missing. `config_file` is a file of settings."""

    basic_auth: str | None = attrs.field(default=None, repr=False)
    basic_auth_file: str | None = None
    bearer_token: str | None = attrs.field(default=None, repr=False)
    bearer_token_file: str | None = None
    config_file: str | None = None
    ca_file: str | None = None

    def options(self, urls: str, environment: Mapping[str, str] = os.environ) -> RegistryOptions:
        """Return the options of the registry. Without other credentials the environment counts. Raises ConfigError."""
        settings = {} if self.config_file is None else _settings_in(self.config_file)
        basic = _secret("basic auth", self.basic_auth, self.basic_auth_file)
        bearer = _secret("bearer token", self.bearer_token, self.bearer_token_file)
        oauth = None
        if basic is None and bearer is None:
            basic, bearer, oauth = settings.get(USER_INFO), settings.get(TOKEN), _oauth(self.config_file, settings)
        if basic is None and bearer is None and oauth is None:
            basic, bearer = environment.get(BASIC_AUTH_VARIABLE) or None, environment.get(BEARER_TOKEN_VARIABLE) or None
        return RegistryOptions(
            urls=RegistryOptions.parse_urls(urls),
            basic_auth=basic,
            bearer_token=bearer,
            oauth=oauth,
            ca_file=self.ca_file,
            tls=tuple(sorted((name, value) for name, value in settings.items() if name in tls.KNOWN)),
        )


def _settings_in(file: str) -> Mapping[str, str]:
    found = read_properties(Path(file.strip()))
    if any(name.startswith(PREFIX) for name in found):
        found = {name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)}
    for name, value in found.items():
        if name.startswith(_PREFIXES) and name not in _KNOWN:
            raise ConfigError(f"{file}: {name} is not known here; allowed: {', '.join(sorted(_KNOWN))}")
        if name in _SOURCES and value.strip() not in _SOURCES[name]:
            raise ConfigError(f"{file}: {name} is '{value}'; allowed: {', '.join(_SOURCES[name])}")
    return found


def _oauth(file: str | None, settings: Mapping[str, str]) -> OAuthOptions | None:
    if settings.get(BEARER_SOURCE, "").strip() != OAUTHBEARER:
        return None
    for name in (ISSUER_URL, CLIENT_ID, CLIENT_SECRET):
        if not settings.get(name):
            raise ConfigError(f"{file}: {name} is missing, which {BEARER_SOURCE}={OAUTHBEARER} needs")
    return OAuthOptions(
        url=settings[ISSUER_URL].strip(),
        client_id=settings[CLIENT_ID],
        client_secret=settings[CLIENT_SECRET],
        scope=settings.get(SCOPE),
        cluster=settings.get(CLUSTER),
        identity_pool=settings.get(POOL),
    )


def _secret(what: str, given: str | None, file: str | None) -> str | None:
    if file is None:
        return given
    if given is not None:
        raise ConfigError(f"give the schema registry's {what} either itself or by a file, not both")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"the file of the schema registry's {what} can't be read: {exc}") from exc


_CREDENTIALS = {
    "schemaRegistryBasicAuth": "basic_auth",
    "schemaRegistryBasicAuthFile": "basic_auth_file",
    "schemaRegistryBearerToken": "bearer_token",
    "schemaRegistryBearerTokenFile": "bearer_token_file",
    "schemaRegistryCaFile": "ca_file",
    "schemaRegistryConfigFile": "config_file",
}
NAMES = frozenset(
    (
        *("valueFormat", "valueSubject", "valueSchemaVersion", "valueSchema", "valueMessage", "valueValidate"),
        *("schemaRegistryUrl", *_CREDENTIALS),
    )
)


@attrs.define(frozen=True, kw_only=True)
class ValueOptions:
    """The reader schema of values, and its registry.

    format: avro, protobuf or json; None for that of the subject's schema. version: of the subject, a number or
    `latest`. schema: a reader schema without references as text, in place of a subject; it needs `format`. message,
    validate: as in `ReaderOptions`.
    """

    registry: RegistryOptions
    format: str | None = None
    subject: str | None = None
    version: int | str = "latest"
    schema: str | None = None
    message: str | None = None
    validate: bool = False

    def __attrs_post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(f"the value format is {self.format!r}: one of {', '.join(FORMATS)}")
        if self.subject is not None and self.schema is not None:
            raise ConfigError("give the subject or the schema that values are read into, not both")
        if self.schema is not None and self.format is None:
            raise ConfigError(f"a schema given as text needs its format: one of {', '.join(FORMATS)}")
        if self.version != "latest" and not str(self.version).isdecimal():
            raise ConfigError(f"a subject's version is {self.version!r}: a number, or latest")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ValueOptions | None:
        """Parse the options of the data source; None without `valueFormat`.

        Other options are ignored. Raises ConfigError.
        """
        lowered = {name.lower(): value for name, value in options.items()}
        found = {name: lowered[name.lower()] for name in NAMES if name.lower() in lowered}
        if "valueFormat" not in found:
            if found:
                raise ConfigError(f"{min(found)} has no effect without valueFormat: one of {', '.join(FORMATS)}")
            return None
        if "schemaRegistryUrl" not in found:
            raise ConfigError("valueFormat needs schemaRegistryUrl: http://host:port of the schema registry")
        credentials = RegistryCredentials(
            **{field: found[name] for name, field in _CREDENTIALS.items() if name in found}
        )
        return cls(
            registry=credentials.options(found["schemaRegistryUrl"]),
            format=found["valueFormat"].lower(),
            subject=found.get("valueSubject"),
            version=found.get("valueSchemaVersion", "latest"),
            schema=found.get("valueSchema"),
            message=found.get("valueMessage"),
            validate=_boolean("valueValidate", found.get("valueValidate", "false")),
        )

    def reader_options(self, client: RegistryClient, topic: str | None = None) -> ReaderOptions:
        """Look the reader schema up, by default in the topic's subject `<topic>-value`.

        Raises ConfigError, UnknownSchema, RegistryError.
        """
        if self.schema is not None:
            assert self.format is not None, "checked when made"
            schema = Schema(format=self.format.upper(), text=self.schema)
        else:
            subject = self.subject or (f"{topic}-value" if topic else None)
            if subject is None:
                raise ConfigError("give the subject, or the schema, that values are read into")
            schema = client.by_subject(subject, self.version)
        return ReaderOptions(
            format=self.format or schema.format.lower(), schema=schema, message=self.message, validate=self.validate
        )


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}: true or false")
    return text.lower() == "true"
