"""Options that commands share: types of values, settings of `kafscale serve`, and `--bootstrap` with its client."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from kafscale.config import (
    BOOTSTRAP_VARIABLE,
    BUCKET_OPTIONS,
    COMMAND_CONFIG_VARIABLE,
    CONFIG_VARIABLE,
    Address,
    Option,
    Settings,
    load,
    options,
    parse_duration,
    split_list,
)
from kafscale.errors import ConfigError
from kafscale.iso_times import iso_time_ms

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
INT16_MAX, INT32_MAX, INT64_MAX = (1 << 15) - 1, (1 << 31) - 1, (1 << 63) - 1  # of Kafka's protocol

STORE_OPTIONS = ("data_dir", *BUCKET_OPTIONS, "s3_concurrency")
WRITING_OPTIONS = (*STORE_OPTIONS, "s3_sse", "broker_id")  # of commands that take the place of a stopped broker

Bootstrap = tuple[Address, ...]  # brokers of the cluster; the first one that answers is used
Function = Callable[..., Any]

T = TypeVar("T", bound=attrs.AttrsInstance)


class Parsed(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic in newer versions only
    """Type of an option whose text is read by a function that raises ValueError with a message for the user."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


def number(least: int, most: int | None = None) -> Parsed:
    allowed = f"at least {least}" if most is None else f"{least} to {most}"

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,30}", text.strip()):
            raise ValueError(f"'{text}' is not a whole number; allowed: {allowed}")
        value = int(text)
        if value < least or (most is not None and value > most):
            raise ValueError(f"'{text}' is out of range; allowed: {allowed}")
        return value

    return Parsed("number", parse)


class ListOption(click.Option):
    """A repeatable option whose values may be separated by commas."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"multiple": True})

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        return super().type_cast_value(ctx, [item for text in value or () for item in split_list(text)])


def parse_setting(text: str) -> tuple[str, str]:
    """Read NAME=VALUE. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"'{text}' is not a setting; allowed: NAME=VALUE")
    return name, value


def parse_spark_setting(text: str) -> tuple[str, str]:
    """Read NAME=VALUE, or NAME=@PATH for a value in a file. Raises ValueError."""
    name, value = parse_setting(text)
    return name, value_or_file(value)


def value_or_file(value: str) -> str:
    """Return `value`; for @PATH the text of that file without its last line end, for @@… the rest behind one @.

    Arguments are shown by a list of processes, so secrets are better in files. Raises ValueError.
    """
    if not value.startswith("@"):
        return value
    if value.startswith("@@"):
        return value[1:]
    try:
        return Path(value[1:]).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ValueError(f"'{value[1:]}' can't be read: {why}; write @@ for a value that begins with @") from exc


def parse_time(text: str) -> int:
    """Read a time in ms: ISO 8601 (UTC by default), ms since 1970, or `15m` for that long ago. Raises ValueError."""
    try:
        time_ms = _time_ms(text)
    except ValueError:
        time_ms = None
    if time_ms is None or abs(time_ms) > INT64_MAX:
        allowed = "2026-01-31T12:00:00Z, milliseconds since 1970, or 15m for that long ago"
        raise ValueError(f"'{text}' is not a time; allowed: {allowed}")
    return time_ms


def _time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    with suppress(ValueError):
        return int(time.time() * 1000) - parse_duration(text) // 1000
    return iso_time_ms(text)


def parse_bootstrap(text: str) -> Bootstrap:
    return tuple(Address.parse(part, allows_tls=True) for part in split_list(text))


def take(given: dict[str, Any], cls: type[T]) -> T:
    """Move the fields of an attrs class out of `given` into an instance."""
    return cls(**{field.name: given.pop(field.name) for field in attrs.fields(cls)})


def given_count(options: attrs.AttrsInstance) -> int:
    """Count the options that are given: neither None nor a flag that is off."""
    return sum(value is not None and value is not False for value in attrs.astuple(options))


def parse_admin(text: str) -> Address:
    """Read the address of an HTTP server, alone or as a URL, also with a slash at its end. Raises ValueError."""
    return Address.parse(text.strip().rstrip("/"), allows_tls=True)


ADDRESS = Parsed("HOST:PORT", lambda text: Address.parse(text.strip().rstrip("/")))
ADMIN = Parsed("HOST:PORT", parse_admin)
BOOTSTRAP = Parsed("HOST:PORT[,...]", parse_bootstrap)
TIME = Parsed("TIME", parse_time)
SECONDS = Parsed("DURATION", lambda text: parse_duration(text) / 1_000_000)
INDEX = number(0, INT32_MAX)  # a partition, or a broker's id
COUNT = number(1, INT32_MAX)
OFFSET = number(0, INT64_MAX)
SETTING = Parsed("NAME=VALUE", parse_setting)
SPARK_SETTING = Parsed("NAME=VALUE", parse_spark_setting)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
timeout_option = click.option(
    "--timeout", "timeout_seconds", type=SECONDS, default="10m", help="Longest time to wait.  [default: 10m]"
)


def settings_flags(*, only: Container[str] | None = None) -> Callable[[Function], Function]:
    """Give a command `--config` and a flag for each option of `kafscale serve`, or for those in `only`.

    Values stay text: `kafscale.config` reads flags, environment and file.
    """

    def decorate(function: Function) -> Function:
        defaults = Settings()
        for option in reversed(options()):
            if only is None or option.attribute in only:
                function = _flag(option, option.format(defaults.value(option)))(function)
        help_text = f"TOML file of options, named as their flags without the dashes.  [{CONFIG_VARIABLE}]"
        return click.option("--config", "config_file", metavar="FILE", help=help_text)(function)

    return decorate


def with_settings(*, only: Container[str]) -> Callable[[Function], Function]:
    """Give a command `--config` and flags, as `settings_flags`, and call it with `loaded`, the settings and sources."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run(config_file: str | None, **given: Any) -> Any:
            flags = {option.attribute: given.pop(option.attribute, None) for option in options()}
            return function(loaded=load(flags, os.environ, config_file), **given)

        return settings_flags(only=only)(run)

    return decorate


def _flag(option: Option, default: str) -> Callable[[Function], Function]:
    shown_default = f"default: {default}; " if default else ""
    help_text = f"{option.help.text}  [{shown_default}{option.variable}]"
    names = (option.flag, option.attribute)
    if option.is_switch:  # alone it means true; a value may be given, as in --auto-create-topics=false
        return click.option(*names, is_flag=False, flag_value="true", metavar=f"[{option.form}]", help=help_text)
    return click.option(*names, multiple=option.is_repeatable, metavar=option.form, help=help_text)


COMMAND_CONFIG = "kafscale.command-config"  # key of click's context


_bootstrap = click.option(
    "--bootstrap",
    type=BOOTSTRAP,
    envvar=BOOTSTRAP_VARIABLE,
    default=DEFAULT_BOOTSTRAP,
    help="Brokers of the cluster; the first one that answers is used.  "
    f"[default: {DEFAULT_BOOTSTRAP}; {BOOTSTRAP_VARIABLE}]",
)
_command_config = click.option(
    "--command-config",
    metavar="FILE",
    envvar=COMMAND_CONFIG_VARIABLE,
    expose_value=False,
    callback=lambda ctx, _, value: ctx.meta.update({COMMAND_CONFIG: value}),
    help="File of Kafka client settings, a NAME=VALUE on each line: security.protocol, ssl.… and sasl.….  "
    f"[{COMMAND_CONFIG_VARIABLE}]",
)


def bootstrap_option(function: Function) -> Function:
    """Give a command `--bootstrap`, and `--command-config` for `run_with_client`."""
    return _bootstrap(_command_config(function))


def with_client(function: Callable[..., Awaitable[None]]) -> Function:
    """Make a command of an async function of a client: connect to `--bootstrap`, and call it with its other options."""

    @wraps(function)
    def run(bootstrap: Bootstrap, **given: Any) -> None:
        run_with_client(bootstrap, lambda client: function(client, **given))

    return bootstrap_option(run)


def run_with_client(
    bootstrap: Bootstrap, use: Callable[[Any], Awaitable[None]], *, limit_seconds: float = math.inf
) -> None:
    """Connect to the first broker that answers, call `use(client)`, and close the connection; give up at the limit."""
    import trio

    from kafscale.client import connect

    security = checked_security(bootstrap)

    async def main() -> None:
        with trio.move_on_after(limit_seconds):
            async with connect(bootstrap, security=security) as client:
                await use(client)

    trio.run(main)


def checked_security(bootstrap: Bootstrap) -> Any:
    """Return the settings of --command-config. Raises ConfigError if they contradict the scheme of an address."""
    security = _security(click.get_current_context().meta.get(COMMAND_CONFIG))
    for address in bootstrap:
        if address.wants_tls not in (None, security.protocol.uses_tls):
            wanted = "with TLS" if address.wants_tls else "without TLS"
            raise ConfigError(
                f"--bootstrap: '{address.scheme}://{address}' is {wanted}, and security.protocol is "
                f"{security.protocol}; allowed: HOST:PORT, with security.protocol in the file of --command-config"
            )
    return security


def _security(command_config: str | None) -> Any:
    from kafscale.login.properties import read_properties
    from kafscale.login.security import PLAINTEXT, client_security

    if command_config is None:
        return PLAINTEXT
    try:
        return client_security(read_properties(Path(command_config)))
    except ConfigError as exc:
        raise ConfigError(f"--command-config {command_config}: {exc}") from exc
