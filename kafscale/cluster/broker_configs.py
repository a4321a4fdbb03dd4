"""This broker's settings under the names that Kafka's broker configs have, so that Kafka's tools can show them.

They are read-only: KafScale's settings are set where it is started. Listed are Kafka's names that mean something here,
and the defaults of the topic configs.
"""

from __future__ import annotations

import attrs

from kafscale.cluster.config_definitions import ConfigDefinition, ConfigSource, ConfigType
from kafscale.cluster.config_entries import ConfigEntry, broker_synonyms
from kafscale.cluster.topic_configs import TOPIC_CONFIGS, BrokerDefaults
from kafscale.config import Settings


def broker_entries(settings: Settings) -> list[ConfigEntry]:
    """Every config of this broker, in order of name."""
    entries = _own_entries(settings) + _topic_defaults(settings)
    return sorted(entries, key=lambda entry: entry.definition.name)


def _own_entries(settings: Settings) -> list[ConfigEntry]:
    limits = settings.limits
    broker_id = str(settings.broker_id)
    listeners = ",".join(map(str, settings.listeners))
    advertised = ",".join(map(str, settings.advertised_listeners))
    int_, long, text = ConfigType.INT, ConfigType.LONG, ConfigType.STRING
    return [
        _entry("advertised.listeners", text, advertised, "", "What clients are told to connect to."),
        _entry(
            "auto.create.topics.enable",
            ConfigType.BOOLEAN,
            str(settings.auto_create_topics).lower(),
            "true",
            "Whether a topic is created when a client asks for it.",
        ),
        _entry("broker.id", int_, broker_id, "-1", "Id of this broker."),
        _entry(
            "connections.max.idle.ms",
            long,
            str(round(limits.connection_idle_timeout_seconds * 1000)),
            "600000",
            "A connection that is idle for longer is closed.",
        ),
        _entry("default.replication.factor", int_, "1", "1", "Replication factor of a topic created without one."),
        _entry("delete.topic.enable", ConfigType.BOOLEAN, "true", "true", "Whether topics can be deleted."),
        _entry("fetch.max.bytes", int_, str(limits.fetch_max_bytes), "57671680", "Most that one fetch returns."),
        _entry(
            "group.initial.rebalance.delay.ms",
            int_,
            str(settings.group_initial_rebalance_delay_ms),
            "3000",
            "How long a new consumer group waits for more members.",
        ),
        _entry(
            "group.max.session.timeout.ms",
            int_,
            str(settings.group_max_session_timeout_ms),
            "1800000",
            "Longest session timeout of a group member.",
        ),
        _entry("group.max.size", int_, str(limits.max_group_members_count), "2147483647", "Members of one group."),
        _entry(
            "group.min.session.timeout.ms",
            int_,
            str(settings.group_min_session_timeout_ms),
            "6000",
            "Shortest session timeout of a group member.",
        ),
        _entry("listeners", text, listeners, "PLAINTEXT://:9092", "Addresses that clients are accepted on."),
        _entry("log.dirs", text, str(settings.store), "/tmp/kafka-logs", "Where segments live."),
        _entry("max.connections", int_, str(limits.max_connections_count), "2147483647", "Connections open at once."),
        _entry(
            "max.incremental.fetch.session.cache.slots",
            int_,
            str(limits.max_fetch_sessions_count),
            "1000",
            "Fetch sessions kept.",
        ),
        _entry("node.id", int_, broker_id, "-1", "Id of this broker."),
        _entry(
            "num.partitions",
            int_,
            str(settings.default_partitions_count),
            "1",
            "Partitions of a topic created without a number.",
        ),
        _entry(
            "offset.metadata.max.bytes",
            int_,
            str(limits.offset_metadata_max_bytes),
            "4096",
            "Largest metadata string of a committed offset.",
        ),
        _entry(
            "offsets.retention.minutes",
            int_,
            str(settings.offsets_retention_ms // 60_000),
            "10080",
            "Committed offsets of a group without members are forgotten after this long.",
        ),
        _entry(
            "producer.id.expiration.ms",
            int_,
            str(limits.producer_id_expiration_ms),
            "86400000",
            "An idle idempotent producer is forgotten after this long.",
        ),
        _entry(
            "socket.request.max.bytes", int_, str(limits.max_frame_bytes), "104857600", "Largest request that is read."
        ),
    ]


def _topic_defaults(settings: Settings) -> list[ConfigEntry]:
    """What topics have by default, under the broker's names for it."""
    defaults = BrokerDefaults.of(settings)
    return [
        _read_only(attrs.evolve(definition, name=definition.broker_name), defaults.value(definition))
        for definition in TOPIC_CONFIGS.values()
        if definition.broker_name is not None
    ]


def _entry(name: str, type: ConfigType, value: str, default: str, documentation: str) -> ConfigEntry:
    definition = ConfigDefinition(name=name, type=type, default=default, documentation=documentation)
    return _read_only(definition, value)


def _read_only(definition: ConfigDefinition, value: str) -> ConfigEntry:
    is_default = value == definition.default
    return ConfigEntry(
        definition=definition,
        value=value,
        source=ConfigSource.DEFAULT_CONFIG if is_default else ConfigSource.STATIC_BROKER_CONFIG,
        read_only=True,
        synonyms=broker_synonyms(definition.name, value, definition.default),
    )
