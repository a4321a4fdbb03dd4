"""What all client commands share: `--bootstrap` and how it is reached, running on trio, and options that hold times."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from kafscale.config import (
    BOOTSTRAP_VARIABLE,
    COMMAND_CONFIG_VARIABLE,
    Address,
    SecurityProtocol,
    parse_duration,
    split_list,
)
from kafscale.errors import ConfigError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
INT16_MAX, INT32_MAX, INT64_MAX = (1 << 15) - 1, (1 << 31) - 1, (1 << 63) - 1  # what Kafka's protocol has room for

Bootstrap = tuple[Address, ...]  # brokers of the cluster, of which the first that answers is asked

T = TypeVar("T", bound=attrs.AttrsInstance)


class Parsed(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic in newer versions only
    """An option's type from a function that reads text and raises ValueError with a message for the user."""

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


class Number(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic in newer versions only
    """A whole number within bounds."""

    name = "number"

    def __init__(self, least: int, most: int | None = None) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        if isinstance(value, int):
            return value
        allowed = f"at least {self.least}" if self.most is None else f"{self.least} to {self.most}"
        if not re.fullmatch(r"-?[0-9]{1,30}", value.strip()):
            self.fail(f"'{value}' is not a whole number; allowed: {allowed}", param, ctx)
        number = int(value)
        if number < self.least or (self.most is not None and number > self.most):
            self.fail(f"'{value}' is out of range; allowed: {allowed}", param, ctx)
        return number


class ListOption(click.Option):
    """An option that may be repeated, and whose values may have commas between them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"multiple": True})

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """See click."""
        return super().type_cast_value(ctx, [each for text in value or () for each in split_list(text)])


def parse_setting(text: str) -> tuple[str, str]:
    """Read NAME=VALUE. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"'{text}' is not a setting; allowed: NAME=VALUE")
    return name, value


def parse_spark_setting(text: str) -> tuple[str, str]:
    """Read NAME=VALUE, where the value may be a secret and come from a file. Raises ValueError."""
    name, value = parse_setting(text)
    return name, value_or_file(value)


def value_or_file(value: str) -> str:
    """@PATH stands for what is in that file, without the end of its line.

    Arguments are seen by whoever lists the processes. A value that begins with @ is written with two of them.

    Raises ValueError.
    """
    if not value.startswith("@"):
        return value
    if value.startswith("@@"):
        return value[1:]
    try:
        return Path(value[1:]).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise ValueError(f"'{value[1:]}' can't be read: {why}; write @@ for a value that begins with @") from exc


def parse_time(text: str) -> int:
    """Read a time: ISO 8601 (UTC unless it says otherwise), milliseconds since 1970, or `15m` for that long ago.

    Raises ValueError.
    """
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
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_bootstrap(text: str) -> Bootstrap:
    """Read HOST:PORT, or several with commas between them. Raises ValueError."""
    return tuple(Address.parse(each, allows_tls=True) for each in split_list(text))


def take(options: dict[str, Any], cls: type[T]) -> T:
    """Move the options that are fields of an attrs class out of `options` into an instance of it."""
    return cls(**{field.name: options.pop(field.name) for field in attrs.fields(cls)})


ADDRESS = Parsed("HOST:PORT", Address.parse)
BOOTSTRAP = Parsed("HOST:PORT[,...]", parse_bootstrap)
TIME = Parsed("TIME", parse_time)
INDEX = Number(0, INT32_MAX)  # of a partition, or a broker's id
COUNT = Number(1, INT32_MAX)
OFFSET = Number(0, INT64_MAX)
SETTING = Parsed("NAME=VALUE", parse_setting)
SPARK_SETTING = Parsed("NAME=VALUE", parse_spark_setting)

COMMAND_CONFIG = "kafscale.command-config"  # in what click keeps for a command


def _keep_command_config(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    ctx.meta[COMMAND_CONFIG] = value


_bootstrap = click.option(
    "--bootstrap",
    type=BOOTSTRAP,
    envvar=BOOTSTRAP_VARIABLE,
    default=DEFAULT_BOOTSTRAP,
    help="Brokers of the cluster, of which the first that answers is asked.  "
    f"[default: {DEFAULT_BOOTSTRAP}; {BOOTSTRAP_VARIABLE}]",
)
_command_config = click.option(
    "--command-config",
    metavar="FILE",
    envvar=COMMAND_CONFIG_VARIABLE,
    expose_value=False,
    callback=_keep_command_config,
    help="File of Kafka's client settings, NAME=VALUE in lines; security.protocol, ssl.… and sasl.… count.  "
    f"[{COMMAND_CONFIG_VARIABLE}]",
)


def bootstrap_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--bootstrap`, and `--command-config`, which `run_with_client` knows of."""
    return _bootstrap(_command_config(function))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def run_with_client(bootstrap: Bootstrap, use: Callable[[Any], Awaitable[None]]) -> None:
    """Connect to the first broker that answers, call `use(client)`, close. What it raises comes out as it is."""
    import trio

    from kafscale.client import connect

    security = _security(click.get_current_context().meta.get(COMMAND_CONFIG))
    _check_schemes(bootstrap, security.protocol)

    async def main() -> None:
        async with connect(bootstrap, security=security) as client:
            await use(client)

    trio.run(main)


def _check_schemes(bootstrap: Bootstrap, protocol: SecurityProtocol) -> None:
    """Raise ConfigError if a URL in `--bootstrap` contradicts the security protocol of `--command-config`."""
    for each in bootstrap:
        if each.wants_tls not in (None, protocol.uses_tls):
            wanted = "with TLS" if each.wants_tls else "without TLS"
            raise ConfigError(
                f"--bootstrap: '{each.scheme}://{each}' is {wanted}, and security.protocol is {protocol}; allowed: "
                "HOST:PORT, with security.protocol in the file of --command-config"
            )


def _security(command_config: str | None) -> Any:
    """Read `--command-config`. Raises ConfigError, which names it."""
    from kafscale.login.properties import read_properties
    from kafscale.login.security import PLAINTEXT, client_security

    if command_config is None:
        return PLAINTEXT
    try:
        return client_security(read_properties(Path(command_config)))
    except ConfigError as exc:
        raise ConfigError(f"--command-config {command_config}: {exc}") from exc
