"""Declaration of options: `option()` makes an attrs field one, with its help and bounds; `Option` describes it.

Flags, environment variables, keys of the TOML file, the reference page and `kafscale config` are made from the
declaration. A field's type says how its text is read: `Size` (bytes), `Seconds` and `Milliseconds` (durations in the
unit of the attribute's suffix), `Listener`, `StoreUrl`, enums. The one cattrs converter is here.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from functools import cached_property, partial
from operator import eq
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import attrs
import cattrs

from kafscale.config.units import format_duration, format_size, parse_duration, parse_size
from kafscale.config.values import (
    Address,
    AuthorizerKind,
    Durability,
    IpConnections,
    Listener,
    ListenerProtocol,
    LogFormat,
    LogLevel,
    SaslMechanism,
    SslClientAuth,
    SslVersion,
    StoreEncryption,
    StoreUrl,
    split_list,
    split_principals,
)
from kafscale.errors import ConfigError

Size = Annotated[int, "size"]
Seconds = Annotated[float, "seconds"]
Milliseconds = Annotated[int, "milliseconds"]
PrincipalText = Annotated[str, "principal"]  # TYPE:NAME, where the name may have commas

_UNIT_SUFFIXES = ("_seconds", "_ms", "_count")  # `_bytes` stays: Kafka's own options say bytes, but never seconds or ms
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
    """Declare an attrs field that is an option. `details` are those of `Help`."""
    return attrs.field(default=default, metadata={_METADATA_KEY: Help(text=text, **details)})


@attrs.frozen(kw_only=True)
class Option:
    """An option: `attribute` is the name of its field, `type` the field's type; `tuple[X, ...]` is repeatable."""

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
    def is_bounded(self) -> bool:
        """Tell whether the value has a least or a greatest."""
        return (self.help.least, self.help.most) != (-math.inf, math.inf)

    @property
    def form(self) -> str:
        """Return the placeholder of a value, as in `--segment-bytes SIZE`."""
        return _form(self.type)

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
            value = converter.structure(raw, self.type)
        except ValueError as exc:
            raise ConfigError(f"{given_as}: {exc}") from exc
        self.check(value, given_as=given_as)
        return value

    def check(self, value: Any, *, given_as: str) -> None:
        """Raise ConfigError if a number is out of bounds."""
        if isinstance(value, int | float) and not self.help.least <= value <= self.help.most:
            raise ConfigError(f"{given_as}: '{self.format(value)}' is out of range; allowed: {self.allowed}")

    def format(self, value: Any) -> str:
        """Format a value as a user writes it; empty for None."""
        if value is None:
            return ""
        text = converter.unstructure(value, unstructure_as=self.type)
        return ",".join(text) if isinstance(text, list | tuple) else str(text)


def options_of(settings_class: type) -> tuple[Option, ...]:
    """Return the options of an attrs class, in order of declaration."""
    types = get_type_hints(settings_class, include_extras=True)
    return tuple(
        Option(attribute=field.name, type=types[field.name], help=field.metadata[_METADATA_KEY])
        for field in attrs.fields(settings_class)
        if _METADATA_KEY in field.metadata
    )


def _is_tuple(of_type: Any) -> bool:
    origin: object = get_origin(of_type)
    return origin is tuple


_FORMS = {
    bool: "true|false",
    int: "NUMBER",
    str: "TEXT",
    Path: "PATH",
    Size: "SIZE",
    Seconds: "DURATION",
    Milliseconds: "DURATION",
    PrincipalText: "TYPE:NAME",
    Address: "HOST:PORT",
    Listener: "[NAME=]HOST:PORT",
    ListenerProtocol: "NAME=PROTOCOL",
    IpConnections: "IP:NUMBER",
    StoreUrl: "URL",
    StoreEncryption: "AES256|aws:kms:KEY",
}


def _form(of_type: Any) -> str:
    if of_type in _FORMS:
        return _FORMS[of_type]
    if isinstance(of_type, type) and issubclass(of_type, enum.Enum):
        return "|".join(str(word) for word in of_type)
    return _form(get_args(of_type)[0])  # X | None, or tuple[X, ...]


def _text(raw: object, _type: Any = str) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"'{raw}' is not a string; put it in quotes")
    if not raw.strip():
        raise ValueError("'' is empty; leave the option out to use its default")
    return raw


def _path(raw: object, _type: Any) -> Path:
    try:
        return Path(_text(raw)).expanduser()
    except RuntimeError as exc:
        raise ValueError(f"'{raw}' begins with a home directory that doesn't exist; write the whole path") from exc


def _integer(raw: object, _type: Any) -> int:
    text = str(raw).strip()
    digits = text.removeprefix("-")
    if isinstance(raw, bool) or not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise ValueError(f"'{raw}' is not a whole number")
    return int(text)


def _switch(raw: object, _type: Any) -> bool:
    word = str(raw).strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"'{raw}' is not a switch; allowed: true, false")
    return word == "true"


def _size(raw: object, _type: Any) -> int:
    return parse_size(str(raw))


def _seconds(raw: object, _type: Any) -> float:
    return parse_duration(str(raw)) / 1_000_000


def _milliseconds(raw: object, _type: Any) -> int:
    duration_us = parse_duration(str(raw))
    if duration_us % 1000:
        raise ValueError(f"'{raw}' is finer than a millisecond; allowed: whole milliseconds")
    return duration_us // 1000


def _word(raw: object, enum_type: Any) -> Any:
    words = [str(word) for word in enum_type]
    if raw not in words:
        raise ValueError(f"'{raw}' is not known; allowed: {', '.join(words)}")
    return enum_type(raw)


def _repeated(raw: object, tuple_type: Any) -> tuple[Any, ...]:
    item_type = get_args(tuple_type)[0]
    split = split_principals if item_type == PrincipalText else split_list
    values: list[object] = []
    for item in raw if isinstance(raw, list | tuple) else [raw]:
        values += split(item) if isinstance(item, str) else [item]
    return tuple(converter.structure(value, item_type) for value in values)


def _make_converter() -> cattrs.Converter:
    made = cattrs.Converter(detailed_validation=False)
    reading: list[tuple[Any, Callable[[Any, Any], Any], Callable[[Any], Any]]] = [
        (str, _text, str),
        (Path, _path, str),
        (int, _integer, lambda value: value),
        (bool, _switch, lambda value: "true" if value else "false"),
        (Size, _size, format_size),
        (Seconds, _seconds, lambda seconds: format_duration(round(seconds * 1_000_000))),
        (Milliseconds, _milliseconds, lambda milliseconds: format_duration(milliseconds * 1000)),
        (PrincipalText, _text, str),
        (Address, lambda raw, _type: Address.parse(_text(raw), allows_tls=True), str),
        (Listener, lambda raw, _type: Listener.parse(_text(raw)), str),
        (ListenerProtocol, lambda raw, _type: ListenerProtocol.parse(_text(raw)), str),
        (IpConnections, lambda raw, _type: IpConnections.parse(_text(raw)), str),
        (StoreUrl, lambda raw, _type: StoreUrl.parse(_text(raw)), str),
        (StoreEncryption, lambda raw, _type: StoreEncryption.parse(_text(raw)), str),
    ]
    for of_type, structure, unstructure in reading:
        if isinstance(of_type, type):  # cattrs looks up classes before it asks predicates
            made.register_structure_hook(of_type, structure)
            made.register_unstructure_hook(of_type, unstructure)
        else:
            made.register_structure_hook_func(partial(eq, of_type), structure)
            made.register_unstructure_hook_func(partial(eq, of_type), unstructure)
    for enum_type in (
        *(AuthorizerKind, Durability, LogLevel, LogFormat),
        *(SaslMechanism, SslClientAuth, SslVersion),
    ):
        made.register_structure_hook(enum_type, _word)
        made.register_unstructure_hook(enum_type, str)
    made.register_structure_hook_func(_is_tuple, _repeated)
    return made


converter = _make_converter()
