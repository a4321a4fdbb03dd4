"""Options of decoding: by keyword for `from_registry`, by name for the data source, with the registry's credentials."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafscale.errors import ConfigError
from kafscale.values.credentials import RegistryCredentials
from kafscale.values.registry import RegistryClient, RegistryOptions, Schema

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
