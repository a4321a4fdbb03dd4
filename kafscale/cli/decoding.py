"""Options of `kafscale consume` that decode keys and values by a schema registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from kafscale.cli.options import Function

if TYPE_CHECKING:
    from kafscale.cli.record_decoder import RecordDecoder

VALUE_FORMATS = ("avro", "protobuf", "json")
URL_VARIABLE = "KAFSCALE_SCHEMA_REGISTRY_URL"
CONFIG_VARIABLE = "KAFSCALE_SCHEMA_REGISTRY_CONFIG"


@attrs.frozen(kw_only=True)
class DecodingOptions:
    value_format: str | None
    key_format: str | None
    registry: str | None
    registry_config: str | None

    def open(self) -> RecordDecoder | None:
        """Make the decoder; None without a format. Raises ConfigError."""
        formats = {"key": self.key_format, "value": self.value_format}
        wanted = {field: format for field, format in formats.items() if format is not None}
        if not wanted:
            if self.registry is not None and not _is_of_environment("registry"):
                raise click.UsageError("--registry needs --value-format or --key-format")
            return None
        if self.registry is None:
            raise click.UsageError("--value-format and --key-format need --registry: http://HOST:PORT")
        from kafscale.cli.record_decoder import RecordDecoder
        from kafscale.values.credentials import RegistryCredentials
        from kafscale.values.decoding import RegistryDecoder

        credentials = RegistryCredentials(config_file=self.registry_config)
        return RecordDecoder(
            {
                field: RegistryDecoder(self.registry, format=format, credentials=credentials)
                for field, format in wanted.items()
            }
        )


def _is_of_environment(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.ENVIRONMENT


def decoding_options(function: Function) -> Function:
    """Give a command the options of DecodingOptions."""
    formats = click.Choice(VALUE_FORMATS)
    about = "Decode {} by the schema registry, into JSON; they begin with the id of a schema of this type."
    for option in (
        click.option(
            "--registry-config",
            metavar="FILE",
            envvar=CONFIG_VARIABLE,
            help="File of the registry's settings, as Confluent's clients name them: basic.auth.user.info, ssl.…  "
            f"[{CONFIG_VARIABLE}]",
        ),
        click.option(
            "--registry",
            metavar="URL",
            envvar=URL_VARIABLE,
            help=f"Schema registry; several separated by commas.  [{URL_VARIABLE}]",
        ),
        click.option("--key-format", type=formats, help=about.format("keys")),
        click.option("--value-format", type=formats, help=about.format("values")),
    ):
        function = option(function)
    return function
