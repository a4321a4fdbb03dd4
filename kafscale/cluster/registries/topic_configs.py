"""All topic configs of Kafka 4.1. Those without an effect in KafScale are checked, kept and listed, too.

A topic stores only the configs set on it, as text (`overrides`). All others come from the broker.
"""

from __future__ import annotations

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

_INT, _LONG, _DOUBLE, _BOOLEAN = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.BOOLEAN
_STRING, _LIST = ConfigType.STRING, ConfigType.LIST
_NO_LIMIT = str(INT64_MAX)
_Config = ConfigDefinition
# fmt: off
_TABLE = (
    _Config("cleanup.policy", _LIST, "delete",
        broker_name="log.cleanup.policy", allowed=("compact", "delete"), acts=True,
        documentation="What happens to old records: `delete` drops them by age and size, `compact` keeps the latest "
        "of each key. A record without a key is refused if the list has `compact`."),
    _Config("compression.gzip.level", _INT, "-1",
        broker_name="compression.gzip.level", allowed=("-1", *map(str, range(1, 10))),
        documentation="Level for `compression.type` gzip."),
    _Config("compression.lz4.level", _INT, "9", broker_name="compression.lz4.level", least=1, most=17,
        documentation="Level for `compression.type` lz4."),
    _Config("compression.type", _STRING, "producer",
        broker_name="compression.type", allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        documentation="Codec that batches are stored with; `producer` keeps them as they were sent, which is what "
        "KafScale always does."),
    _Config("compression.zstd.level", _INT, "3", broker_name="compression.zstd.level", least=-131072, most=22,
        documentation="Level for `compression.type` zstd."),
    _Config("delete.retention.ms", _LONG, "86400000", broker_name="log.cleaner.delete.retention.ms", least=0, acts=True,
        documentation="How long a tombstone of a compacted topic is kept for readers that have not seen it, from the "
        "first compaction on that met it."),
    _Config("file.delete.delay.ms", _LONG, "60000", broker_name="log.segment.delete.delay.ms", least=0, acts=True,
        documentation="How long a segment's objects stay in the bucket after it was dropped from the log, or its "
        "topic was deleted."),
    _Config("flush.messages", _LONG, _NO_LIMIT, broker_name="log.flush.interval.messages", least=1,
        documentation="Records between two syncs of the log. KafScale syncs before it acknowledges."),
    _Config("flush.ms", _LONG, _NO_LIMIT, broker_name="log.flush.interval.ms", least=0,
        documentation="Time between two syncs of the log. KafScale syncs before it acknowledges."),
    _Config("follower.replication.throttled.replicas", _LIST, "", item_pattern=THROTTLED_REPLICA,
        documentation="Followers whose replication is throttled. KafScale has none: the store replicates."),
    _Config("index.interval.bytes", _INT, "4096", broker_name="log.index.interval.bytes", least=0,
        documentation="Bytes between two entries of a segment's offset index."),
    _Config("leader.replication.throttled.replicas", _LIST, "", item_pattern=THROTTLED_REPLICA,
        documentation="Leaders whose replication is throttled. KafScale has none: the store replicates."),
    _Config("local.retention.bytes", _LONG, "-2", broker_name="log.local.retention.bytes", least=-2,
        documentation="Size kept on the broker's disk with tiered storage; -2 is `retention.bytes`."),
    _Config("local.retention.ms", _LONG, "-2", broker_name="log.local.retention.ms", least=-2,
        documentation="Time kept on the broker's disk with tiered storage; -2 is `retention.ms`."),
    _Config("max.compaction.lag.ms", _LONG, _NO_LIMIT,
        broker_name="log.cleaner.max.compaction.lag.ms", least=1, acts=True,
        documentation="Longest time that a record stays uncompacted in a compacted topic: past it the dirty ratio "
        "does not count."),
    _Config("max.message.bytes", _INT, "1048588", broker_name="message.max.bytes", least=0, acts=True,
        documentation="Largest record batch, as it was sent; a larger one is refused with MESSAGE_TOO_LARGE."),
    _Config("message.timestamp.after.max.ms", _LONG, "3600000",
        broker_name="log.message.timestamp.after.max.ms", least=0, acts=True,
        documentation="How far a record's CreateTime may be ahead of the broker's clock. A batch further off is "
        "refused with INVALID_TIMESTAMP."),
    _Config("message.timestamp.before.max.ms", _LONG, _NO_LIMIT,
        broker_name="log.message.timestamp.before.max.ms", least=0, acts=True,
        documentation="How far a record's CreateTime may be behind the broker's clock. A batch further off is "
        "refused with INVALID_TIMESTAMP."),
    _Config("message.timestamp.type", _STRING, "CreateTime",
        broker_name="log.message.timestamp.type", allowed=("CreateTime", "LogAppendTime"), acts=True,
        documentation="Whether a record has the time that its producer gave or that of the broker at append."),
    _Config("min.cleanable.dirty.ratio", _DOUBLE, "0.5",
        broker_name="log.cleaner.min.cleanable.ratio", least=0, most=1, acts=True,
        documentation="Share of a compacted log that must be uncompacted before it is compacted again."),
    _Config("min.compaction.lag.ms", _LONG, "0", broker_name="log.cleaner.min.compaction.lag.ms", least=0, acts=True,
        documentation="Shortest time that a record stays uncompacted in a compacted topic."),
    _Config("min.insync.replicas", _INT, "1", broker_name="min.insync.replicas", least=1,
        documentation="Replicas that must have a record before acks=all is answered. In KafScale `--durability` says "
        "when a record is acknowledged."),
    _Config("preallocate", _BOOLEAN, "false", broker_name="log.preallocate",
        documentation="Whether a segment's file is allocated in full when it is created."),
    _Config("remote.log.copy.disable", _BOOLEAN, "false",
        documentation="Whether tiered data becomes read-only."),
    _Config("remote.log.delete.on.disable", _BOOLEAN, "false",
        documentation="Whether tiered data is deleted when tiering is turned off."),
    _Config("remote.storage.enable", _BOOLEAN, "false",
        documentation="Kafka's tiered storage. It can't be turned on: every KafScale topic lives in the object store."),
    _Config("retention.bytes", _LONG, "-1", broker_name="log.retention.bytes", acts=True,
        documentation="Size of a partition past which its oldest segments are dropped; -1 for no limit. Records that "
        "are not in the bucket yet count, and stay."),
    _Config("retention.ms", _LONG, "604800000", broker_name="log.retention.ms", least=-1, acts=True,
        documentation="Age past which a segment is dropped, told by the latest timestamp in it; -1 for no limit. "
        "Only segments in the bucket are dropped."),
    _Config("segment.bytes", _INT, "1073741824", broker_name="log.segment.bytes", least=1 << 20,
        documentation="Size of a segment. The broker's `--segment-bytes` holds for every topic."),
    _Config("segment.index.bytes", _INT, "10485760", broker_name="log.index.size.max.bytes", least=4,
        documentation="Size of a segment's offset index."),
    _Config("segment.jitter.ms", _LONG, "0", broker_name="log.roll.jitter.ms", least=0,
        documentation="Random time by which segments roll earlier, so that they don't all roll at once."),
    _Config("segment.ms", _LONG, "604800000", broker_name="log.roll.ms", least=1,
        documentation="Age after which a segment is rolled. The broker's `--flush-interval` holds for every topic."),
    _Config("unclean.leader.election.enable", _BOOLEAN, "false", broker_name="unclean.leader.election.enable",
        documentation="Whether a replica that is behind may lead. KafScale has no such replica."),
)
# fmt: on

TOPIC_CONFIGS: Mapping[str, ConfigDefinition] = {definition.name: definition for definition in _TABLE}

# Name of a topic config -> attribute of LogConfig, for those that the log knows.
_LOG_ATTRIBUTES = {
    name: field.name for field in attrs.fields(LogConfig) if (name := field.name.replace("_", ".")) in TOPIC_CONFIGS
}


@attrs.frozen
class BrokerDefaults:
    """Configs of a topic without overrides: those set on brokers at run time, then options, then Kafka's defaults.

    `static` has the options and Kafka's defaults, `log` the configs in force.
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
        """Return a config's value by the options, or Kafka's default."""
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
    """Return the defaults of a broker that was started without options."""
    return BrokerDefaults.of(Settings())


def canonical_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return overrides with each value as Kafka writes it. Raises KafkaError INVALID_CONFIG."""
    return {name: _definition(name).canonical(text) for name, text in overrides.items()}


def log_config(overrides: Mapping[str, str], defaults: BrokerDefaults) -> LogConfig:
    """Return the settings of a topic's log. Raises KafkaError INVALID_CONFIG for an unknown or invalid config."""
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
