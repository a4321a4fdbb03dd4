"""One Kafka config: its name, type, default and what values it takes; checked in the words of Kafka's ConfigDef."""

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


@attrs.frozen(kw_only=True)
class ConfigDefinition:
    """One config as Kafka documents it.

    `default` is text, as it travels, and None only for configs of brokers that need not be set. `least` and `most`
    bound numbers, `allowed` lists the values (of a LIST: the items) if they are a closed set, `item_pattern` is what
    each item of a LIST must match. `broker_name` is the broker config that gives a topic config its default. `acts` is
    whether KafScale does anything by it.
    """

    name: str
    type: ConfigType
    default: str | None
    documentation: str
    broker_name: str | None = None
    least: float = -math.inf
    most: float = math.inf
    allowed: tuple[str, ...] = ()
    item_pattern: str | None = None
    acts: bool = False

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
        """Return the text that Kafka answers for a value that was typed like this. Raises as `parse` does."""
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
    """Broker configs that were set at run time, by name: those of one broker, and those of all brokers."""

    own: Mapping[str, str] = MappingProxyType({})
    default: Mapping[str, str] = CLUSTER_DEFAULTS

    def values(self, name: str) -> list[tuple[str, ConfigSource]]:
        """Return the values that were set for a config, the one in force first."""
        own, default = ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return [
            (configs[name], source) for configs, source in ((self.own, own), (self.default, default)) if name in configs
        ]

    def in_force(self) -> Mapping[str, str]:
        """Return the configs that are in force, by name."""
        return {**self.default, **self.own}


NOTHING_SET: Final = DynamicConfigs()


def split_list(text: str) -> tuple[str, ...]:
    """Return the items of a LIST, without the white space around them; empty items stay, as in Kafka."""
    text = text.strip(_TRIMMED)
    return tuple(re.split(r"\s*,\s*", text)) if text else ()


# Characters that Java's String.trim removes, and other white space, which older data may have.
_TRIMMED = "".join(character for character in map(chr, range(0x3001)) if character <= " " or character.isspace())
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?")  # Java's, without NaN and hex
_INTEGER = re.compile(r"[+-]?\d{1,4000}")  # Java takes any script's digits; `int` refuses much longer ones


def _parse_number(text: str, type: ConfigType) -> int | float | None:
    """Parse a number as Java does; None if the text is not a number of this type."""
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
