"""Effective configs with their origin: what DescribeConfigs and CreateTopics tell about a topic or this broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from kafscale.cluster.registries.config_definitions import ConfigDefinition, ConfigSource, DynamicConfigs
from kafscale.cluster.registries.dynamic_configs import DYNAMIC_CONFIGS
from kafscale.cluster.registries.topic_configs import TOPIC_CONFIGS, BrokerDefaults, usual_defaults


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
        synonyms += dynamic_synonyms(definition.broker_name, defaults.dynamic)
        synonyms += broker_synonyms(definition.broker_name, defaults.value(definition), usual)
    return ConfigEntry(
        definition=definition,
        value=synonyms[0].value if synonyms else definition.default,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        synonyms=synonyms,
    )


def dynamic_synonyms(name: str, dynamic: DynamicConfigs) -> list[ConfigSynonym]:
    """Return what was set for a broker config at run time, the most specific first."""
    return [ConfigSynonym(name=name, value=value, source=source) for value, source in dynamic.values(name)]


def with_dynamic(entry: ConfigEntry, dynamic: DynamicConfigs) -> ConfigEntry:
    """Return a broker's config with the values that were set at run time."""
    name = entry.definition.name
    found = dynamic_synonyms(name, dynamic)
    if not found:
        return entry if name not in DYNAMIC_CONFIGS else attrs.evolve(entry, read_only=False)
    return attrs.evolve(
        entry, value=found[0].value, source=found[0].source, read_only=False, synonyms=[*found, *entry.synonyms]
    )


def default_entries(dynamic: DynamicConfigs) -> list[ConfigEntry]:
    """Return what was set for all brokers, in order of name; without what this version does not know."""
    only = DynamicConfigs(own={}, default=dynamic.default)
    return [
        with_dynamic(
            ConfigEntry(definition=DYNAMIC_CONFIGS[name], value=None, source=ConfigSource.DEFAULT_CONFIG), only
        )
        for name in sorted(dynamic.default.keys() & DYNAMIC_CONFIGS.keys())
    ]


def broker_synonyms(name: str, value: str | None, default: str | None) -> list[ConfigSynonym]:
    """Return a broker's own setting, where it differs from the default, and the default, if that is not null."""
    synonyms = []
    if default is not None:
        synonyms.append(ConfigSynonym(name=name, value=default, source=ConfigSource.DEFAULT_CONFIG))
    if value != default:
        synonyms.insert(0, ConfigSynonym(name=name, value=value, source=ConfigSource.STATIC_BROKER_CONFIG))
    return synonyms
