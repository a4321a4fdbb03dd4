"""All of Kafka 4.1's topic configs, checked and listed whether or not they act in KafScale yet.

A topic keeps what was set on it as text (its overrides). The rest comes from the broker's settings, where they have the
same thing, else from Kafka's defaults. `docs/reference/topic-configs.md` is made from the table by `reference_page`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs

from kafscale.cluster.registries.config_definitions import (
    INT64_MAX,
    NOTHING_SET,
    ConfigDefinition,
    ConfigType,
    DynamicConfigs,
)
from kafscale.config import Settings
from kafscale.errors import KafkaError
from kafscale.log.partition.log_config import LogConfig
from kafscale.wire.error_codes import INVALID_CONFIG

THROTTLED_REPLICA = r"\*|([0-9]+:[0-9]+)?"

_TABLE = (
    ConfigDefinition(
        name="cleanup.policy",
        type=ConfigType.LIST,
        default="delete",
        allowed=("compact", "delete"),
        broker_name="log.cleanup.policy",
        documentation="What happens to old records: `delete` drops them by age and size, `compact` keeps the latest of "
        "each key. A record without a key is refused if the list has `compact`.",
        acts=True,
    ),
    ConfigDefinition(
        name="compression.gzip.level",
        type=ConfigType.INT,
        default="-1",
        allowed=("-1", *map(str, range(1, 10))),
        broker_name="compression.gzip.level",
        documentation="Level for `compression.type` gzip.",
    ),
    ConfigDefinition(
        name="compression.lz4.level",
        type=ConfigType.INT,
        default="9",
        least=1,
        most=17,
        broker_name="compression.lz4.level",
        documentation="Level for `compression.type` lz4.",
    ),
    ConfigDefinition(
        name="compression.type",
        type=ConfigType.STRING,
        default="producer",
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_name="compression.type",
        documentation="Codec that batches are stored with; `producer` keeps them as they were sent, which is what "
        "KafScale always does.",
    ),
    ConfigDefinition(
        name="compression.zstd.level",
        type=ConfigType.INT,
        default="3",
        least=-131072,
        most=22,
        broker_name="compression.zstd.level",
        documentation="Level for `compression.type` zstd.",
    ),
    ConfigDefinition(
        name="delete.retention.ms",
        type=ConfigType.LONG,
        default="86400000",
        least=0,
        broker_name="log.cleaner.delete.retention.ms",
        documentation="How long a tombstone of a compacted topic is kept for readers that have not seen it, from the "
        "first compaction on that met it.",
        acts=True,
    ),
    ConfigDefinition(
        name="file.delete.delay.ms",
        type=ConfigType.LONG,
        default="60000",
        least=0,
        broker_name="log.segment.delete.delay.ms",
        documentation="How long a segment's objects stay in the bucket after it was dropped from the log, or its topic "
        "was deleted.",
        acts=True,
    ),
    ConfigDefinition(
        name="flush.messages",
        type=ConfigType.LONG,
        default=str(INT64_MAX),
        least=1,
        broker_name="log.flush.interval.messages",
        documentation="Records between two syncs of the log. KafScale syncs before it acknowledges.",
    ),
    ConfigDefinition(
        name="flush.ms",
        type=ConfigType.LONG,
        default=str(INT64_MAX),
        least=0,
        broker_name="log.flush.interval.ms",
        documentation="Time between two syncs of the log. KafScale syncs before it acknowledges.",
    ),
    ConfigDefinition(
        name="follower.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        item_pattern=THROTTLED_REPLICA,
        documentation="Followers whose replication is throttled. KafScale has none: the store replicates.",
    ),
    ConfigDefinition(
        name="index.interval.bytes",
        type=ConfigType.INT,
        default="4096",
        least=0,
        broker_name="log.index.interval.bytes",
        documentation="Bytes between two entries of a segment's offset index.",
    ),
    ConfigDefinition(
        name="leader.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        item_pattern=THROTTLED_REPLICA,
        documentation="Leaders whose replication is throttled. KafScale has none: the store replicates.",
    ),
    ConfigDefinition(
        name="local.retention.bytes",
        type=ConfigType.LONG,
        default="-2",
        least=-2,
        broker_name="log.local.retention.bytes",
        documentation="Size kept on the broker's disk with tiered storage; -2 is `retention.bytes`.",
    ),
    ConfigDefinition(
        name="local.retention.ms",
        type=ConfigType.LONG,
        default="-2",
        least=-2,
        broker_name="log.local.retention.ms",
        documentation="Time kept on the broker's disk with tiered storage; -2 is `retention.ms`.",
    ),
    ConfigDefinition(
        name="max.compaction.lag.ms",
        type=ConfigType.LONG,
        default=str(INT64_MAX),
        least=1,
        broker_name="log.cleaner.max.compaction.lag.ms",
        documentation="Longest time that a record stays uncompacted in a compacted topic: past it the dirty ratio does "
        "not count.",
        acts=True,
    ),
    ConfigDefinition(
        name="max.message.bytes",
        type=ConfigType.INT,
        default="1048588",
        least=0,
        broker_name="message.max.bytes",
        documentation="Largest record batch, as it was sent; a larger one is refused with MESSAGE_TOO_LARGE.",
        acts=True,
    ),
    ConfigDefinition(
        name="message.timestamp.after.max.ms",
        type=ConfigType.LONG,
        default="3600000",
        least=0,
        broker_name="log.message.timestamp.after.max.ms",
        documentation="How far a record's CreateTime may be ahead of the broker's clock. A batch further off is "
        "refused with INVALID_TIMESTAMP.",
        acts=True,
    ),
    ConfigDefinition(
        name="message.timestamp.before.max.ms",
        type=ConfigType.LONG,
        default=str(INT64_MAX),
        least=0,
        broker_name="log.message.timestamp.before.max.ms",
        documentation="How far a record's CreateTime may be behind the broker's clock. A batch further off is "
        "refused with INVALID_TIMESTAMP.",
        acts=True,
    ),
    ConfigDefinition(
        name="message.timestamp.type",
        type=ConfigType.STRING,
        default="CreateTime",
        allowed=("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
        documentation="Whether a record has the time that its producer gave or that of the broker at append.",
        acts=True,
    ),
    ConfigDefinition(
        name="min.cleanable.dirty.ratio",
        type=ConfigType.DOUBLE,
        default="0.5",
        least=0,
        most=1,
        broker_name="log.cleaner.min.cleanable.ratio",
        documentation="Share of a compacted log that must be uncompacted before it is compacted again.",
        acts=True,
    ),
    ConfigDefinition(
        name="min.compaction.lag.ms",
        type=ConfigType.LONG,
        default="0",
        least=0,
        broker_name="log.cleaner.min.compaction.lag.ms",
        documentation="Shortest time that a record stays uncompacted in a compacted topic.",
        acts=True,
    ),
    ConfigDefinition(
        name="min.insync.replicas",
        type=ConfigType.INT,
        default="1",
        least=1,
        broker_name="min.insync.replicas",
        documentation="Replicas that must have a record before acks=all is answered. In KafScale `--durability` says "
        "when a record is acknowledged.",
    ),
    ConfigDefinition(
        name="preallocate",
        type=ConfigType.BOOLEAN,
        default="false",
        broker_name="log.preallocate",
        documentation="Whether a segment's file is allocated in full when it is created.",
    ),
    ConfigDefinition(
        name="remote.log.copy.disable",
        type=ConfigType.BOOLEAN,
        default="false",
        documentation="Whether tiered data becomes read-only.",
    ),
    ConfigDefinition(
        name="remote.log.delete.on.disable",
        type=ConfigType.BOOLEAN,
        default="false",
        documentation="Whether tiered data is deleted when tiering is turned off.",
    ),
    ConfigDefinition(
        name="remote.storage.enable",
        type=ConfigType.BOOLEAN,
        default="false",
        documentation="Kafka's tiered storage. It can't be turned on: every KafScale topic lives in the object store.",
    ),
    ConfigDefinition(
        name="retention.bytes",
        type=ConfigType.LONG,
        default="-1",
        broker_name="log.retention.bytes",
        documentation="Size of a partition past which its oldest segments are dropped; -1 for no limit. Records that "
        "are not in the bucket yet count, and stay.",
        acts=True,
    ),
    ConfigDefinition(
        name="retention.ms",
        type=ConfigType.LONG,
        default="604800000",
        least=-1,
        broker_name="log.retention.ms",
        documentation="Age past which a segment is dropped, told by the latest timestamp in it; -1 for no limit. Only "
        "segments in the bucket are dropped.",
        acts=True,
    ),
    ConfigDefinition(
        name="segment.bytes",
        type=ConfigType.INT,
        default="1073741824",
        least=1 << 20,
        broker_name="log.segment.bytes",
        documentation="Size of a segment. The broker's `--segment-bytes` holds for every topic.",
    ),
    ConfigDefinition(
        name="segment.index.bytes",
        type=ConfigType.INT,
        default="10485760",
        least=4,
        broker_name="log.index.size.max.bytes",
        documentation="Size of a segment's offset index.",
    ),
    ConfigDefinition(
        name="segment.jitter.ms",
        type=ConfigType.LONG,
        default="0",
        least=0,
        broker_name="log.roll.jitter.ms",
        documentation="Random time by which segments roll earlier, so that they don't all roll at once.",
    ),
    ConfigDefinition(
        name="segment.ms",
        type=ConfigType.LONG,
        default="604800000",
        least=1,
        broker_name="log.roll.ms",
        documentation="Age after which a segment is rolled. The broker's `--flush-interval` holds for every topic.",
    ),
    ConfigDefinition(
        name="unclean.leader.election.enable",
        type=ConfigType.BOOLEAN,
        default="false",
        broker_name="unclean.leader.election.enable",
        documentation="Whether a replica that is behind may lead. KafScale has no such replica.",
    ),
)

TOPIC_CONFIGS: Mapping[str, ConfigDefinition] = {definition.name: definition for definition in _TABLE}

# Name of a topic config -> attribute of LogConfig, for those that the log knows.
_LOG_ATTRIBUTES = {
    name: field.name for field in attrs.fields(LogConfig) if (name := field.name.replace("_", ".")) in TOPIC_CONFIGS
}


@attrs.frozen
class BrokerDefaults:
    """Configs of a topic on which nothing was set: by what brokers got at run time, their options, Kafka's defaults.

    `static` is what the options say. `log` is in force.
    """

    static: LogConfig = attrs.field(factory=LogConfig)
    dynamic: DynamicConfigs = NOTHING_SET
    log: LogConfig = attrs.field(init=False)

    @log.default
    def _in_force(self) -> LogConfig:
        configs = self.dynamic.in_force()
        changes: dict[str, Any] = {
            attribute: definition.parse(configs[definition.broker_name])
            for name, attribute in _LOG_ATTRIBUTES.items()
            if (definition := TOPIC_CONFIGS[name]).broker_name is not None and definition.broker_name in configs
        }
        return attrs.evolve(self.static, **changes)

    @classmethod
    def of(cls, settings: Settings, dynamic: DynamicConfigs = NOTHING_SET) -> BrokerDefaults:
        return cls(
            LogConfig(
                max_message_bytes=settings.limits.max_message_bytes,
                segment_bytes=settings.segment_bytes,
                file_delete_delay_ms=settings.segment_delete_delay_ms,
                producer_id_expiration_ms=settings.limits.producer_id_expiration_ms,
            ),
            dynamic,
        )

    def value(self, definition: ConfigDefinition) -> str:
        """Return what the options say of a config."""
        match definition.name:
            case "max.message.bytes":
                return str(self.static.max_message_bytes)
            case "segment.bytes":
                return str(self.static.segment_bytes)
            case "file.delete.delay.ms":
                return str(self.static.file_delete_delay_ms)
            case _:
                assert definition.default is not None
                return definition.default


@cache
def usual_defaults() -> BrokerDefaults:
    """Return what a topic has where nothing was set on it, nor on the broker by its options."""
    return BrokerDefaults.of(Settings())


def canonical_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's configs with each value as Kafka answers it. Raises KafkaError INVALID_CONFIG."""
    return {name: _definition(name).canonical(text) for name, text in overrides.items()}


def log_config(overrides: Mapping[str, str], defaults: BrokerDefaults) -> LogConfig:
    """The settings of a topic's log. Raises KafkaError INVALID_CONFIG: unknown name, bad value, or two that clash."""
    values = {name: _definition(name).parse(text) for name, text in overrides.items()}
    if values.get("remote.storage.enable"):
        raise KafkaError(
            INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        )
    changes: dict[str, Any] = {
        _LOG_ATTRIBUTES[name]: value for name, value in values.items() if name in _LOG_ATTRIBUTES
    }
    config = attrs.evolve(defaults.log, **changes)
    if config.min_compaction_lag_ms <= config.max_compaction_lag_ms:
        return config
    if {"min.compaction.lag.ms", "max.compaction.lag.ms"} <= overrides.keys():
        raise KafkaError(
            INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})",
        )
    if "min.compaction.lag.ms" in overrides:  # the default gives way: a broker's may change under any topic
        return attrs.evolve(config, max_compaction_lag_ms=config.min_compaction_lag_ms)
    return attrs.evolve(config, min_compaction_lag_ms=config.max_compaction_lag_ms)


def _definition(name: str) -> ConfigDefinition:
    definition = TOPIC_CONFIGS.get(name)
    if definition is None:
        raise KafkaError(INVALID_CONFIG, f"Unknown topic config name: {name}")
    return definition


def reference_page() -> str:
    """`docs/reference/topic-configs.md`."""
    rows = [
        f"| `{d.name}` | {d.type.name.lower()} | {_shown(d.default)} | {valid_values(d)} | "
        f"{'yes' if d.acts else 'no'} | {d.documentation} |"
        for d in _TABLE
    ]
    return "\n".join([_REFERENCE_HEAD, *rows, ""])


_REFERENCE_HEAD = """\
# Topic configs

Every topic config of Kafka 4.1 can be set, is checked as Kafka checks it, and is listed by DescribeConfigs as the
value that it means (`100000` for ` +100000 `). The column *acts* says which of them change what KafScale does today;
the others are kept for the day when they do. Three defaults are the broker's: `max.message.bytes`
(`--max-message-bytes`), `segment.bytes` (`--segment-bytes`) and `file.delete.delay.ms` (`--segment-delete-delay`). All
defaults can be [changed at run time](broker-configs.md).

This page is made from `kafscale/cluster/registries/topic_configs.py`; a test holds it to the code.

| name | type | Kafka's default | values | acts | what it is |
|---|---|---|---|---|---|"""


def _shown(default: str | None) -> str:
    return f"`{default}`" if default else "empty"


def valid_values(definition: ConfigDefinition) -> str:
    """Return which values a config may have, for a reference page; empty if any."""
    if definition.allowed:
        return ", ".join(f"`{value}`" for value in definition.allowed)
    if definition.item_pattern is not None:
        return "`*`, or `PARTITION:BROKER,…`"
    if definition.most != math.inf:
        return f"{definition.least} to {definition.most}"
    return "" if definition.least == -math.inf else f"at least {definition.least}"
