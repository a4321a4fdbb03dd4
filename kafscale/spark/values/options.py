"""How values are read, as options: of `from_registry` by keyword, of the data source by name.

The reader schema is looked up once, when a query is planned, so that its columns stay what they are while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafscale.errors import ConfigError
from kafscale.spark.values.decoder import FORMATS, ReaderOptions
from kafscale.spark.values.registry import RegistryClient, RegistryOptions, Schema
from kafscale.spark.values.registry_credentials import Credentials

NAMES = frozenset(
    {
        "valueFormat",
        "valueSubject",
        "valueSchemaVersion",
        "valueSchema",
        "valueMessage",
        "valueValidate",
        "schemaRegistryUrl",
        "schemaRegistryBasicAuth",
        "schemaRegistryBasicAuthFile",
        "schemaRegistryBearerToken",
        "schemaRegistryBearerTokenFile",
        "schemaRegistryCaFile",
        "schemaRegistryConfigFile",
    }
)


@attrs.define(frozen=True, kw_only=True)
class ValueOptions:
    """Says which schema values are read into, and by which registry.

    format: avro, protobuf or json; None for what the subject's schema is.
    subject: whose schema is the reader's; version: of the subject, a number or `latest`.
    schema: the reader schema's text, in place of a subject; it needs `format`, and can't have references.
    message, validate: as `ReaderOptions` has them.
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
        """Parse the options of the data source; others of them are passed over. None without `valueFormat`.

        The names are taken in any case of letters, as Spark hands them over. Raises ConfigError.
        """
        lowered = {name.lower(): value for name, value in options.items()}
        found = {name: lowered[name.lower()] for name in NAMES if name.lower() in lowered}
        if "valueFormat" not in found:
            if found:
                raise ConfigError(f"{min(found)} has no effect without valueFormat: one of {', '.join(FORMATS)}")
            return None
        if "schemaRegistryUrl" not in found:
            raise ConfigError("valueFormat needs schemaRegistryUrl: http://host:port of the schema registry")
        credentials = Credentials(
            basic_auth=found.get("schemaRegistryBasicAuth"),
            basic_auth_file=found.get("schemaRegistryBasicAuthFile"),
            bearer_token=found.get("schemaRegistryBearerToken"),
            bearer_token_file=found.get("schemaRegistryBearerTokenFile"),
            config_file=found.get("schemaRegistryConfigFile"),
            ca_file=found.get("schemaRegistryCaFile"),
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
        """Return what values are read into. topic: its subject `<topic>-value` is taken where none was given.

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
