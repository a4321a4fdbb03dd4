"""Configs of a broker beside others that Kafka has no name for: any of the brokers tells and changes them."""

from __future__ import annotations

from typing import Final

from kafscale.cluster.membership.records import BrokerRecord, BrokerState
from kafscale.cluster.registries.config_definitions import ConfigDefinition, ConfigSource, ConfigType
from kafscale.cluster.registries.config_entries import ConfigEntry
from kafscale.config import Durability

DRAINING: Final = ConfigDefinition(
    name="kafscale.draining",
    type=ConfigType.BOOLEAN,
    default="false",
    documentation="Whether the broker is to lead nothing: its partitions move to others.",
)
_DURABILITY = ConfigDefinition(
    name="kafscale.durability",
    type=ConfigType.STRING,
    default=None,
    documentation="The broker's --durability, which says whether others can lead what it led when it is lost.",
)
FULL: Final = "full"
_STATE = ConfigDefinition(
    name="kafscale.state",
    type=ConfigType.STRING,
    default=None,
    documentation="Whether the broker serves, as the others know; full if it does, and its disk takes no more.",
)
_VERSION = ConfigDefinition(
    name="kafscale.version",
    type=ConfigType.STRING,
    default=None,
    documentation="The version that it runs, or ran last.",
)


def member_entries(record: BrokerRecord) -> list[ConfigEntry]:
    """Return them in order of name."""
    source = ConfigSource.DYNAMIC_BROKER_CONFIG if record.is_draining else ConfigSource.DEFAULT_CONFIG
    return [
        ConfigEntry(definition=DRAINING, value=str(record.is_draining).lower(), source=source),
        _read_only(_DURABILITY, _durability(record).value),
        _read_only(_STATE, FULL if record.state is BrokerState.LIVE and record.has_no_room else record.state.value),
        _read_only(_VERSION, record.version),
    ]


def _durability(record: BrokerRecord) -> Durability:
    if record.acknowledges_locally:
        return Durability.WAL
    return Durability.S3_WAL if record.has_stream else Durability.SEGMENT


def _read_only(definition: ConfigDefinition, value: str) -> ConfigEntry:
    return ConfigEntry(definition=definition, value=value, source=ConfigSource.STATIC_BROKER_CONFIG, read_only=True)
