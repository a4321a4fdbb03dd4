"""Effective configs with their origin: what DescribeConfigs and CreateTopics tell about a topic or this broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from kafscale.cluster.configs.definitions import ConfigDefinition, ConfigSource
from kafscale.cluster.configs.topic_configs import TOPIC_CONFIGS, BrokerDefaults, usual_defaults


@attrs.frozen(kw_only=True)
class ConfigSynonym:
    """A config that the value may come from."""

    name: str
    value: str | None
    source: ConfigSource


@attrs.frozen(kw_only=True)
class ConfigEntry:
    """A config, its effective value, where that comes from, and where else it might have, most specific first."""

    definition: ConfigDefinition
    value: str | None
    source: ConfigSource
    read_only: bool = False
    synonyms: Sequence[ConfigSynonym] = ()


def topic_entries(overrides: Mapping[str, str], defaults: BrokerDefaults) -> list[ConfigEntry]:
    """Every config of a topic on which `overrides` are set, in order of name."""
    return [_topic_entry(definition, overrides, defaults) for definition in TOPIC_CONFIGS.values()]


def _topic_entry(definition: ConfigDefinition, overrides: Mapping[str, str], defaults: BrokerDefaults) -> ConfigEntry:
    synonyms = []
    if (override := overrides.get(definition.name)) is not None:
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
        synonyms.append(ConfigSynonym(name=definition.name, value=override, source=source))
    if definition.broker_name is not None:
        usual = usual_defaults().value(definition)
        synonyms += broker_synonyms(definition.broker_name, defaults.value(definition), usual)
    return ConfigEntry(
        definition=definition,
        value=defaults.value(definition) if override is None else override,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        synonyms=synonyms,
    )


def broker_synonyms(name: str, value: str | None, default: str | None) -> list[ConfigSynonym]:
    """Return a broker's own setting, where it differs from the default, and the default, if that is not null."""
    synonyms = []
    if default is not None:
        synonyms.append(ConfigSynonym(name=name, value=default, source=ConfigSource.DEFAULT_CONFIG))
    if value != default:
        synonyms.insert(0, ConfigSynonym(name=name, value=value, source=ConfigSource.STATIC_BROKER_CONFIG))
    return synonyms
