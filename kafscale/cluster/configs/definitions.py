"""One Kafka config: its name, type, default and what values it takes; checked in the words of Kafka's ConfigDef."""

from __future__ import annotations

import enum
import math
import re

import attrs

from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_CONFIG

Value = bool | int | float | str | tuple[str, ...]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class ConfigType(enum.IntEnum):
    """A config's type, by the numbers of DescribeConfigs version 3."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(enum.IntEnum):
    """Where a config's value comes from, by the numbers of DescribeConfigs version 1."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
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
        """The typed value. Raises KafkaError INVALID_CONFIG."""
        text = text.strip()
        match self.type:
            case ConfigType.BOOLEAN:
                return self._boolean(text)
            case ConfigType.STRING:
                self._check_allowed(text, text)
                return text
            case ConfigType.LIST:
                return self._list(text)
            case _:
                return self._number(text)

    def _boolean(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise self._invalid(text, "Expected value to be either true or false")
        return text.lower() == "true"

    def _number(self, text: str) -> int | float:
        value = _parse_number(text, self.type)
        if value is None:
            raise self._invalid(text, f"Not a number of type {self.type.name}")
        if value < self.least:
            raise self._invalid(text, f"Value must be at least {self.least}")
        if value > self.most:
            raise self._invalid(text, f"Value must be no more than {self.most}")
        self._check_allowed(str(value), text)
        return value

    def _list(self, text: str) -> tuple[str, ...]:
        items = tuple(re.split(r"\s*,\s*", text)) if text else ()
        for item in items:
            self._check_allowed(item, text)
            if self.item_pattern is not None and not re.fullmatch(self.item_pattern, item):
                raise self._invalid(text, f"Each item must match {self.item_pattern}")
        return items

    def _check_allowed(self, value: str, text: str) -> None:
        if self.allowed and value not in self.allowed:
            raise self._invalid(text, f"String must be one of: {', '.join(self.allowed)}")

    def _invalid(self, text: str, why: str) -> KafkaError:
        return KafkaError(INVALID_CONFIG, f"Invalid value {text} for configuration {self.name}: {why}")


def _parse_number(text: str, type: ConfigType) -> int | float | None:
    """None if the text is no number of this type."""
    if type is ConfigType.DOUBLE:
        value = float(text) if re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?", text) else math.nan
        return value if math.isfinite(value) else None
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        return None
    most = INT32_MAX if type is ConfigType.INT else INT64_MAX
    number = int(text)
    return number if -most - 1 <= number <= most else None
