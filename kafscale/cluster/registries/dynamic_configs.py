"""Broker configs that can be set at run time, as in Kafka 4.1: on one broker, or as the default of all brokers.

Kafka's configs of listeners, TLS and SASL are refused: storing one without obeying it would leave a broker less secure
than its operator believes.

Keys of the metadata store: `broker-configs/<broker id>` and `broker-configs/default`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import attrs

from kafscale.cluster.metadata.base import PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.registries.base import EntryRegistry
from kafscale.cluster.registries.config_definitions import (
    CLUSTER_DEFAULTS,
    INT32_MAX,
    INT64_MAX,
    MIN_INSYNC_REPLICAS,
    NOTHING_SET,
    ConfigDefinition,
    ConfigType,
    DynamicConfigs,
    split_list,
)
from kafscale.cluster.registries.topic_configs import TOPIC_CONFIGS
from kafscale.config import IpConnections, Settings
from kafscale.errors import ConfigError, KafkaError
from kafscale.wire.error_codes import INVALID_CONFIG, INVALID_REQUEST

_DOUBLE_MAX = "1.7976931348623157E308"

logger = logging.getLogger(__name__)


def _config(
    name: str, type: ConfigType, default: str, documentation: str, *, least: float = 1, acts: bool = False
) -> ConfigDefinition:
    return ConfigDefinition(name=name, type=type, default=default, documentation=documentation, least=least, acts=acts)


_INT, _LONG, _DOUBLE = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
_ANY_INT, _ANY_LONG = str(INT32_MAX), str(INT64_MAX)
_THREADS = "Threads of Kafka's brokers. KafScale has one event loop."
_TIERED = "Kafka's tiered storage. Every KafScale topic lives in the object store."
_THROTTLED = "Bytes a second for replication. KafScale has none: the store replicates."
_TABLE = (
    _config("background.threads", _INT, "10", _THREADS),
    _config("follower.replication.throttled.rate", _LONG, _ANY_LONG, _THROTTLED, least=0),
    _config("leader.replication.throttled.rate", _LONG, _ANY_LONG, _THROTTLED, least=0),
    _config("log.cleaner.backoff.ms", _LONG, "15000", "How often to look for dirty partitions.", least=0, acts=True),
    _config("log.cleaner.dedupe.buffer.size", _LONG, "134217728", "Memory for keys of a compaction.", acts=True),
    _config("log.cleaner.io.buffer.load.factor", _DOUBLE, "0.9", "How full that memory may be.", least=0),
    _config("log.cleaner.io.buffer.size", _INT, "524288", "Memory for what a compaction reads.", least=0),
    _config("log.cleaner.io.max.bytes.per.second", _DOUBLE, _DOUBLE_MAX, "How fast a compaction reads.", least=0),
    _config("log.cleaner.threads", _INT, "1", _THREADS, least=0),
    _config("max.connection.creation.rate", _INT, _ANY_INT, "New connections a second.", least=0),
    _config("max.connections", _INT, _ANY_INT, "Connections open at once.", least=0, acts=True),
    _config("max.connections.per.ip", _INT, _ANY_INT, "Those of one IP address.", least=0, acts=True),
    ConfigDefinition(
        name="max.connections.per.ip.overrides",
        type=ConfigType.STRING,
        default="",
        documentation="IP addresses that may have another number of connections, as IP:NUMBER,...",
        acts=True,
    ),
    ConfigDefinition(
        name="metric.reporters",
        type=ConfigType.LIST,
        default="org.apache.kafka.common.metrics.JmxReporter",
        documentation="Classes of Kafka's brokers that report metrics. KafScale has /metrics.",
    ),
    _config("num.io.threads", _INT, "8", _THREADS),
    _config("num.network.threads", _INT, "3", _THREADS),
    _config("num.recovery.threads.per.data.dir", _INT, "2", _THREADS),
    _config("num.replica.fetchers", _INT, "1", _THREADS, least=0),
    _config("producer.id.expiration.ms", _INT, "86400000", "How long an idle producer is known.", acts=True),
    _config("remote.fetch.max.wait.ms", _INT, "500", _TIERED),
    _config("remote.list.offsets.request.timeout.ms", _LONG, "30000", _TIERED),
    _config("remote.log.index.file.cache.total.size.bytes", _LONG, "1073741824", _TIERED),
    _config("remote.log.manager.copier.thread.pool.size", _INT, "10", _TIERED),
    _config("remote.log.manager.copy.max.bytes.per.second", _LONG, _ANY_LONG, _TIERED),
    _config("remote.log.manager.expiration.thread.pool.size", _INT, "10", _TIERED),
    _config("remote.log.manager.fetch.max.bytes.per.second", _LONG, _ANY_LONG, _TIERED),
    _config("remote.log.reader.threads", _INT, "10", _TIERED),
    _config("replica.alter.log.dirs.io.max.bytes.per.second", _LONG, _ANY_LONG, _THROTTLED, least=0),
    ConfigDefinition(
        name="transaction.partition.verification.enable",
        type=ConfigType.BOOLEAN,
        default="true",
        documentation="Whether a partition must be enrolled before a transaction writes to it. Here it always must.",
    ),
)
_TOPIC_DEFAULTS = (
    attrs.evolve(definition, name=definition.broker_name)
    for definition in TOPIC_CONFIGS.values()
    if definition.broker_name is not None
)

DYNAMIC_CONFIGS: Mapping[str, ConfigDefinition] = {
    definition.name: definition for definition in (*_TABLE, *_TOPIC_DEFAULTS)
}


def _with_limits(settings: Settings, **changes: Any) -> Settings:
    return attrs.evolve(settings, limits=attrs.evolve(settings.limits, **changes))


# Each returns settings with one config set. Raises ConfigError if the result would be invalid.
_SETTERS: Mapping[str, Callable[[Settings, Any], Settings]] = {
    "log.cleaner.backoff.ms": lambda s, value: attrs.evolve(s, compaction_check_interval_seconds=value / 1000),
    "log.cleaner.dedupe.buffer.size": lambda s, value: attrs.evolve(s, log_cleaner_dedupe_buffer_bytes=value),
    "max.connections": lambda s, value: _with_limits(s, max_connections_count=value),
    # Before those of one address, without which it may not be zero.
    "max.connections.per.ip.overrides": lambda s, value: _with_limits(
        s, max_connections_per_ip_overrides=tuple(map(IpConnections.parse, split_list(value)))
    ),
    "max.connections.per.ip": lambda s, value: _with_limits(s, max_connections_per_ip_count=value),
    "producer.id.expiration.ms": lambda s, value: _with_limits(s, producer_id_expiration_ms=value),
}


def settings_with(settings: Settings, configs: Mapping[str, str]) -> Settings:
    """Return settings with configs set. Skips, with a log line, each config that conflicts with the options."""
    for name in _SETTERS:
        if name in configs:
            try:
                settings = _set(settings, name, configs[name])
            except (ConfigError, ValueError) as exc:
                logger.warning("the broker config %s=%s is not in effect: %s", name, configs[name], exc)
    return settings


def checked_dynamic(
    settings: Settings, new: Mapping[str, str], old: Mapping[str, str], *, of_one_broker: bool
) -> dict[str, str]:
    """Return new configs as Kafka writes them. Raises KafkaError for one that is refused or conflicts."""
    kept = {name: text for name, text in new.items() if old.get(name) == text}
    changed = {name: text for name, text in new.items() if name not in kept}
    refused = [name for name in changed if name not in DYNAMIC_CONFIGS]
    if refused:
        raise KafkaError(INVALID_REQUEST, f"Cannot update these configs dynamically: Set({', '.join(refused)})")
    if of_one_broker and MIN_INSYNC_REPLICAS in changed:
        raise KafkaError(INVALID_CONFIG, "Broker-level min.insync.replicas cannot be altered while ELR is enabled.")
    try:
        changed = {name: DYNAMIC_CONFIGS[name].canonical(text) for name, text in changed.items()}
    except KafkaError as exc:
        raise KafkaError(INVALID_REQUEST, exc.message) from exc
    settings = settings_with(settings, readable_dynamic(kept))
    for name in filter(changed.__contains__, _SETTERS):
        try:
            settings = _set(settings, name, changed[name])
        except (ConfigError, ValueError) as exc:
            message = f"Invalid value {changed[name]} for configuration {name}: {exc}"
            raise KafkaError(INVALID_REQUEST, message) from exc
    return {**new, **changed}


def readable_dynamic(configs: Mapping[str, str]) -> dict[str, str]:
    """Return stored configs without those that only a later version of KafScale knows."""
    found: dict[str, str] = {}
    for name, text in configs.items():
        try:
            found[name] = DYNAMIC_CONFIGS[name].canonical(text)
        except (KeyError, KafkaError):
            logger.warning("the broker config %s=%s is not in effect: only a later version knows it", name, text)
    return found


def _set(settings: Settings, name: str, text: str) -> Settings:
    return _SETTERS[name](settings, DYNAMIC_CONFIGS[name].parse(text))


ALL_BROKERS: Final = None
_PREFIX = "broker-configs/"
_DEFAULT_KEY = f"{_PREFIX}default"

Configs = Mapping[str, str]


@attrs.define(eq=False, repr=False)
class BrokerConfigs(EntryRegistry):
    """All broker configs set at run time. Calls its listeners when this broker's configs have changed.

    `options` are the settings from the start, `settings` those in force.
    """

    PREFIXES: ClassVar = (_PREFIX,)

    options: Settings
    dynamic: DynamicConfigs = attrs.field(default=NOTHING_SET, init=False)  # of this broker
    settings: Settings = attrs.field(init=False)
    _by_key: dict[str, Configs] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.settings = self.options
        super().__attrs_post_init__()

    def follow(self, listener: Callable[[], None]) -> None:
        """Call the listener, which must not raise, now and after each change."""
        super().follow(listener)
        listener()

    def _put(self, key: str, value: bytes) -> None:
        if (configs := self._follower.read(key, value, partial(decode, dict[str, str]))) is not None:
            self._by_key[key] = configs

    def _delete(self, key: str) -> None:
        self._by_key.pop(key, None)

    def _notify(self) -> None:
        own = readable_dynamic(self._by_key.get(_key(self.options.broker_id), {}))
        default = readable_dynamic(self._by_key.get(_DEFAULT_KEY, {}))
        dynamic = DynamicConfigs(own=own, default={**CLUSTER_DEFAULTS, **default})
        if dynamic != self.dynamic:
            self.dynamic, self.settings = dynamic, settings_with(self.options, dynamic.in_force())
            super()._notify()

    async def alter(
        self, broker_id: int | None, overrides: Callable[[Configs], Configs], *, validate_only: bool = False
    ) -> None:
        """Replace the configs of a broker or of ALL_BROKERS. Raises KafkaError and the store's errors."""
        key = _DEFAULT_KEY if broker_id is ALL_BROKERS else _key(broker_id)

        async def plan(revision: int) -> Transaction | None:
            old = self._by_key.get(key, {})
            new = checked_dynamic(self.options, overrides(old), old, of_one_broker=broker_id is not ALL_BROKERS)
            if validate_only or new == old:
                return None
            return Transaction(
                puts={key: encode(new)} if new else {},
                deletes=[] if new else [key],
                planned_from=PlannedFrom(revision=revision, keys=(key,)),
            )

        await self._commit(plan)


def _key(broker_id: int) -> str:
    return f"{_PREFIX}{broker_id}"
