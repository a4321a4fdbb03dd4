"""Definitions of Kafka's configs: type, default and accepted values, checked with the messages of Kafka's ConfigDef."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Final

import attrs

from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_CONFIG

Value = bool | int | float | str | tuple[str, ...]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
# Kafka 4.1 sets this one when a cluster is made, so that it knows which replicas may lead (KIP-966).
CLUSTER_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType({MIN_INSYNC_REPLICAS: "1"})


class ConfigType(enum.IntEnum):
    """A config's type, by the numbers of DescribeConfigs version 3."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(enum.IntEnum):
    """Sources of a config's value, by the numbers of DescribeConfigs version 1."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    GROUP_CONFIG = 8


@attrs.frozen
class ConfigDefinition:
    """One config as Kafka documents it.

    `default` is None only for broker configs that need not be set. `allowed` and `item_pattern` restrict strings, or
    the items of a LIST. `broker_name` is the broker config with a topic config's default. KafScale obeys the config if
    `acts` is set.
    """

    name: str
    type: ConfigType
    default: str | None
    documentation: str = attrs.field(kw_only=True)
    broker_name: str | None = attrs.field(default=None, kw_only=True)
    least: float = attrs.field(default=-math.inf, kw_only=True)
    most: float = attrs.field(default=math.inf, kw_only=True)
    allowed: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    item_pattern: str | None = attrs.field(default=None, kw_only=True)
    acts: bool = attrs.field(default=False, kw_only=True)

    def parse(self, text: str) -> Value:
        """Return the typed value. Raises KafkaError INVALID_CONFIG."""
        match self.type:
            case ConfigType.BOOLEAN:
                return self._boolean(text)
            case ConfigType.STRING:
                value = text.strip(_TRIMMED)
                self._check_allowed(value)
                return value
            case ConfigType.LIST:
                return self._list(text)
            case _:
                return self._number(text)

    def canonical(self, text: str) -> str:
        """Return a value as Kafka writes it, such as `100000` for ` +100000 `. Raises KafkaError as `parse`."""
        value = self.parse(text)
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, bool):
            return str(value).lower()
        return _double_text(value) if isinstance(value, float) else str(value)

    def _boolean(self, text: str) -> bool:
        word = text.strip(_TRIMMED).lower()
        if word not in ("true", "false"):
            raise self._invalid(text, "Expected value to be either true or false")
        return word == "true"

    def _number(self, text: str) -> int | float:
        value = _parse_number(text.strip(_TRIMMED), self.type)
        if value is None:
            raise self._invalid(text, f"Not a number of type {self.type.name}")
        if value < self.least:
            raise self._invalid(value, f"Value must be at least {self.least}")
        if value > self.most:
            raise self._invalid(value, f"Value must be no more than {self.most}")
        self._check_allowed(str(value))
        return value

    def _list(self, text: str) -> tuple[str, ...]:
        items = split_list(text)
        for item in items:
            self._check_allowed(item)
            if self.item_pattern is not None and not re.fullmatch(self.item_pattern, item):
                raise self._invalid(text, f"Each item must match {self.item_pattern}")
        return items

    def _check_allowed(self, value: str) -> None:
        if self.allowed and value not in self.allowed:
            raise self._invalid(value, f"String must be one of: {', '.join(self.allowed)}")

    def _invalid(self, value: object, why: str) -> KafkaError:
        return KafkaError(INVALID_CONFIG, f"Invalid value {value} for configuration {self.name}: {why}")


@attrs.frozen
class DynamicConfigs:
    """Broker configs set at run time: on one broker, and as the default of all brokers."""

    own: Mapping[str, str] = MappingProxyType({})
    default: Mapping[str, str] = CLUSTER_DEFAULTS

    def values(self, name: str) -> list[tuple[str, ConfigSource]]:
        """Return the values of a config with their sources, the one in force first."""
        own, default = ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        found = (self.own.get(name), own), (self.default.get(name), default)
        return [(value, source) for value, source in found if value is not None]

    def in_force(self) -> Mapping[str, str]:
        return {**self.default, **self.own}


NOTHING_SET: Final = DynamicConfigs()


def split_list(text: str) -> tuple[str, ...]:
    """Split a LIST into stripped items. Keeps empty items, as Kafka does."""
    text = text.strip(_TRIMMED)
    return tuple(re.split(r"\s*,\s*", text)) if text else ()


# Characters that Java's String.trim removes, and other white space, which older data can contain.
_TRIMMED = "".join(character for character in map(chr, range(0x3001)) if character <= " " or character.isspace())
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?")  # Java's, without NaN and hex
_INTEGER = re.compile(r"[+-]?\d{1,4000}")  # Java takes any script's digits; `int` refuses much longer ones


def _parse_number(text: str, type: ConfigType) -> int | float | None:
    """Parse a number as Java does; return None for any other text."""
    if type is ConfigType.DOUBLE:
        value = float(text.rstrip("fFdD")) if _DOUBLE.fullmatch(text) else math.nan
        return value if math.isfinite(value) else None
    if not _INTEGER.fullmatch(text):
        return None
    most = INT32_MAX if type is ConfigType.INT else INT64_MAX
    number = int(text)
    return number if -most - 1 <= number <= most else None


def _double_text(value: float) -> str:
    """Write a number as Java's Double.toString does."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int), "the number is finite"
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{fraction}E{exponent + len(digits) - 1}"
