"""Declaration of options: `option()` makes an attrs field one; `Option` describes it.

Flags, environment variables, TOML keys, the reference page and `kafscale config` are made from the declaration. A
field's type says how its text is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import attrs

from kafscale.config.units import format_duration, format_size, parse_duration, parse_size
from kafscale.config.values import (
    Address,
    IpConnections,
    Listener,
    ListenerProtocol,
    StoreEncryption,
    StoreUrl,
    split_list,
    split_principals,
)
from kafscale.errors import ConfigError

Size = Annotated[int, "size"]
Seconds = Annotated[float, "seconds"]
Milliseconds = Annotated[int, "milliseconds"]
AddressOrNone = Annotated[Address | None, "or none"]  # None for the word
PrincipalText = Annotated[str, "principal"]  # TYPE:NAME, where the name may have commas

_UNIT_SUFFIXES = ("_seconds", "_ms", "_count")  # `_bytes` stays: Kafka's own options say bytes, but never seconds or ms
NONE_WORD = "none"
_METADATA_KEY = "kafscale.option"


@attrs.frozen(kw_only=True)
class Help:
    """Help and bounds of an option; `why` is its trade-off, or Kafka's name and default."""

    text: str
    why: str = ""
    name: str = ""
    least: float = -math.inf
    most: float = math.inf


def option(default: Any, text: str, **details: Any) -> Any:
    """Declare an attrs field that is an option. `details` are fields of `Help`."""
    return attrs.field(default=default, metadata={_METADATA_KEY: Help(text=text, **details)})


@attrs.frozen(kw_only=True)
class Option:
    """An option: `attribute` and `type` are its field's; `tuple[X, ...]` is repeatable."""

    attribute: str
    type: Any
    help: Help

    @cached_property
    def name(self) -> str:
        """The key in the TOML file, such as `chunk-pool-bytes`."""
        if self.help.name:
            return self.help.name
        attribute = self.attribute
        for suffix in _UNIT_SUFFIXES:
            attribute = attribute.removesuffix(suffix)
        return attribute.replace("_", "-")

    @cached_property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        return f"KAFSCALE_{self.name.upper().replace('-', '_')}"

    @property
    def is_repeatable(self) -> bool:
        return _is_tuple(self.type)

    @property
    def is_switch(self) -> bool:
        return self.type is bool

    @property
    def form(self) -> str:
        """Return the placeholder of a value, as in `--segment-bytes SIZE`."""
        return _kind(self.type).form

    @property
    def allowed(self) -> str:
        """Return the bounds of a number, or the form of any other value."""
        least, most = self.help.least, self.help.most
        if least == -math.inf:
            return self.form
        return f"at least {self.format(least)}" if most == math.inf else f"{self.format(least)} to {self.format(most)}"

    def parse(self, raw: object, *, given_as: str) -> Any:
        """Read a value from text or TOML. Raises ConfigError, which begins with `given_as`."""
        try:
            value = _parse(raw, self.type)
        except ValueError as exc:
            raise ConfigError(f"{given_as}: {exc}") from exc
        self.check(value, given_as=given_as)
        return value

    def check(self, value: Any, *, given_as: str) -> None:
        """Raise ConfigError if a number is out of bounds."""
        if isinstance(value, int | float) and not self.help.least <= value <= self.help.most:
            raise ConfigError(f"{given_as}: '{self.format(value)}' is out of range; allowed: {self.allowed}")

    def format(self, value: Any) -> str:
        """Format a value as a user writes it; empty for an option without a value."""
        if value is None:
            return NONE_WORD if self.type == AddressOrNone else ""
        text = _kind(self.type).format
        return ",".join(map(text, value)) if self.is_repeatable else text(value)


def options_of(settings_class: type) -> tuple[Option, ...]:
    types = get_type_hints(settings_class, include_extras=True)
    return tuple(
        Option(attribute=field.name, type=types[field.name], help=field.metadata[_METADATA_KEY])
        for field in attrs.fields(settings_class)
        if _METADATA_KEY in field.metadata
    )


def _is_tuple(of_type: Any) -> bool:
    origin: object = get_origin(of_type)
    return origin is tuple


def _item_type(of_type: Any) -> Any:
    return of_type if of_type in _KINDS else get_args(of_type)[0] if get_args(of_type) else of_type


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"'{raw}' is not a string; put it in quotes")
    if not raw.strip():
        raise ValueError("'' is empty; leave the option out to use its default")
    return raw


def _path(raw: object) -> Path:
    try:
        return Path(_text(raw)).expanduser()
    except RuntimeError as exc:
        raise ValueError(f"'{raw}' begins with a home directory that doesn't exist; write the whole path") from exc


def _integer(raw: object) -> int:
    text = str(raw).strip()
    digits = text.removeprefix("-")
    if isinstance(raw, bool) or not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise ValueError(f"'{raw}' is not a whole number")
    return int(text)


def _switch(raw: object) -> bool:
    word = str(raw).strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"'{raw}' is not a switch; allowed: true, false")
    return word == "true"


def _milliseconds(raw: object) -> int:
    duration_us = parse_duration(str(raw))
    if duration_us % 1000:
        raise ValueError(f"'{raw}' is finer than a millisecond; allowed: whole milliseconds")
    return duration_us // 1000


@attrs.frozen
class _Kind:
    form: str
    parse: Callable[[Any], Any]
    format: Callable[[Any], str] = str


_KINDS: Mapping[Any, _Kind] = {
    bool: _Kind("true|false", _switch, lambda value: "true" if value else "false"),
    int: _Kind("NUMBER", _integer),
    str: _Kind("TEXT", _text),
    Path: _Kind("PATH", _path),
    Size: _Kind("SIZE", lambda raw: parse_size(str(raw)), format_size),
    Seconds: _Kind(
        "DURATION",
        lambda raw: parse_duration(str(raw)) / 1_000_000,
        lambda seconds: format_duration(round(seconds * 1_000_000)),
    ),
    Milliseconds: _Kind("DURATION", _milliseconds, lambda milliseconds: format_duration(milliseconds * 1000)),
    PrincipalText: _Kind("TYPE:NAME", _text),
    AddressOrNone: _Kind("HOST:PORT|none", lambda raw: None if raw == NONE_WORD else Address.parse(_text(raw))),
    Address: _Kind("HOST:PORT", lambda raw: Address.parse(_text(raw), allows_tls=True)),
    Listener: _Kind("[NAME=]HOST:PORT", lambda raw: Listener.parse(_text(raw))),
    ListenerProtocol: _Kind("NAME=PROTOCOL", lambda raw: ListenerProtocol.parse(_text(raw))),
    IpConnections: _Kind("IP:NUMBER", lambda raw: IpConnections.parse(_text(raw))),
    StoreUrl: _Kind("URL", lambda raw: StoreUrl.parse(_text(raw))),
    StoreEncryption: _Kind("AES256|aws:kms:KEY", lambda raw: StoreEncryption.parse(_text(raw))),
}


def _kind(of_type: Any) -> _Kind:
    item_type = _item_type(of_type)
    if item_type in _KINDS:
        return _KINDS[item_type]
    words = [str(word) for word in item_type]  # an enum

    def parse(raw: object) -> Any:
        if raw not in words:
            raise ValueError(f"'{raw}' is not known; allowed: {', '.join(words)}")
        return item_type(raw)

    return _Kind("|".join(words), parse)


def _parse(raw: object, of_type: Any) -> Any:
    """Read a value, or the tuple of a repeatable option. Raises ValueError."""
    parse = _kind(of_type).parse
    if not _is_tuple(of_type):
        return parse(raw)
    split = split_principals if _item_type(of_type) == PrincipalText else split_list
    values: list[object] = []
    for item in raw if isinstance(raw, list | tuple) else [raw]:
        values += split(item) if isinstance(item, str) else [item]
    return tuple(parse(value) for value in values)
