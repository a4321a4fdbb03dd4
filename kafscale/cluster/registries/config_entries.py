"""Configs as DescribeConfigs and CreateTopics answer them: the value in effect and where it comes from.

A broker has its options under the names that Kafka has for them, the defaults of topic configs, and the configs that
were set at run time (`DYNAMIC_CONFIGS`); all others are read-only. No config holds a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import attrs

from kafscale.cluster.registries.config_definitions import (
    NOTHING_SET,
    ConfigDefinition,
    ConfigSource,
    ConfigType,
    DynamicConfigs,
)
from kafscale.cluster.registries.dynamic_configs import DYNAMIC_CONFIGS
from kafscale.cluster.registries.topic_configs import TOPIC_CONFIGS, BrokerDefaults, usual_defaults
from kafscale.config import Listener, SecurityProtocol, Settings, SslVersion


@attrs.frozen
class ConfigSynonym:
    """A value that is set for a config, under the name that has it."""

    name: str
    value: str | None
    source: ConfigSource


@attrs.frozen(kw_only=True)
class ConfigEntry:
    """A config with its value in effect; `synonyms` are all values that are set, in order of precedence."""

    definition: ConfigDefinition
    value: str | None
    source: ConfigSource
    read_only: bool = False
    synonyms: Sequence[ConfigSynonym] = ()

    @classmethod
    def of(
        cls, definition: ConfigDefinition, synonyms: Sequence[ConfigSynonym], *, read_only: bool = False
    ) -> ConfigEntry:
        """Return a config whose value is the first of the synonyms, or else its default."""
        value, source = definition.default, ConfigSource.DEFAULT_CONFIG
        if synonyms:
            value, source = synonyms[0].value, synonyms[0].source
        return cls(definition=definition, value=value, source=source, read_only=read_only, synonyms=synonyms)


def topic_entries(overrides: Mapping[str, str], defaults: BrokerDefaults) -> list[ConfigEntry]:
    """Return every config of a topic with these overrides, in order of name."""
    entries = []
    for name, definition in TOPIC_CONFIGS.items():
        synonyms = []
        if name in overrides:
            synonyms.append(ConfigSynonym(name, overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
        if definition.broker_name is not None:
            synonyms += _dynamic_synonyms(definition.broker_name, defaults.dynamic)
            synonyms += broker_synonyms(
                definition.broker_name, defaults.value(definition), usual_defaults().value(definition)
            )
        entries.append(ConfigEntry.of(definition, synonyms))
    return entries


def default_entries(dynamic: DynamicConfigs) -> list[ConfigEntry]:
    """Return the configs that are set for all brokers and known to this version, in order of name."""
    for_all = DynamicConfigs(own={}, default=dynamic.default)
    return [
        ConfigEntry.of(DYNAMIC_CONFIGS[name], _dynamic_synonyms(name, for_all))
        for name in sorted(dynamic.default.keys() & DYNAMIC_CONFIGS.keys())
    ]


def broker_entries(
    settings: Settings, advertised: Iterable[Listener], dynamic: DynamicConfigs = NOTHING_SET
) -> list[ConfigEntry]:
    """Return every config of this broker, in order of name. `advertised` has the addresses that clients are told."""
    listeners = _listeners(advertised)
    usual_listeners = None if settings.advertised_listeners else listeners
    values: list[tuple[ConfigDefinition, str | None, str | None]] = [
        (_ADVERTISED_LISTENERS, listeners, usual_listeners)
    ]
    values += [(definition, _text(value(settings)), _text(value(_usual_settings()))) for definition, value in _TABLE]
    defaults = BrokerDefaults.of(settings)
    for topic_config in TOPIC_CONFIGS.values():
        if (name := topic_config.broker_name) is not None:
            values.append((DYNAMIC_CONFIGS[name], defaults.value(topic_config), usual_defaults().value(topic_config)))
    listed = {definition.name for definition, _, _ in values}
    for name in (dynamic.in_force().keys() & DYNAMIC_CONFIGS.keys()) - listed:
        values.append((DYNAMIC_CONFIGS[name], DYNAMIC_CONFIGS[name].default, DYNAMIC_CONFIGS[name].default))
    entries = []
    for definition, value, usual in sorted(values, key=lambda row: row[0].name):
        name = definition.name
        synonyms = [*_dynamic_synonyms(name, dynamic), *broker_synonyms(name, value, usual)]
        entries.append(ConfigEntry.of(definition, synonyms, read_only=name not in DYNAMIC_CONFIGS))
    return entries


def _dynamic_synonyms(name: str, dynamic: DynamicConfigs) -> list[ConfigSynonym]:
    return [ConfigSynonym(name, value, source) for value, source in dynamic.values(name)]


def broker_synonyms(name: str, value: str | None, default: str | None) -> list[ConfigSynonym]:
    """Return a broker's own value if it differs from the default, then the default unless it is null."""
    synonyms = []
    if value != default:
        synonyms.append(ConfigSynonym(name, value, ConfigSource.STATIC_BROKER_CONFIG))
    if default is not None:
        synonyms.append(ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG))
    return synonyms


@cache
def _usual_settings() -> Settings:
    return Settings()


def _text(value: object) -> str | None:
    """Write a value as Kafka does; None is null there."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _setting(
    name: str, type: ConfigType, default: str | None, value: Callable[[Settings], object], documentation: str
) -> tuple[ConfigDefinition, Callable[[Settings], object]]:
    return ConfigDefinition(name, type, default, documentation=documentation), value


_INT, _LONG, _STRING, _BOOLEAN = ConfigType.INT, ConfigType.LONG, ConfigType.STRING, ConfigType.BOOLEAN
_LIST = ConfigType.LIST
_NO_LIMIT = str(2**31 - 1)
_ADVERTISED_LISTENERS = ConfigDefinition(
    "advertised.listeners", _STRING, "", documentation="What clients are told to connect to."
)
_DEFAULT_PROTOCOL_MAP = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"


def _listeners(listeners: Iterable[Listener]) -> str:
    return ",".join(f"{listener.name}://{listener.address}" for listener in listeners)


def _protocol_map(settings: Settings) -> str:
    if all(listener.name in SecurityProtocol.__members__ for listener in settings.listeners):
        return _DEFAULT_PROTOCOL_MAP
    return ",".join(f"{listener.name}:{settings.protocol_of(listener)}" for listener in settings.listeners)


def _enabled_protocols(settings: Settings) -> tuple[SslVersion, ...]:
    versions = tuple(SslVersion)
    return versions[versions.index(settings.ssl.ssl_min_version) :]


def _store_type(file: Path | None) -> str:
    return "JKS" if file is None else "PEM"


# fmt: off
_TABLE = (
    _setting("auto.create.topics.enable", _BOOLEAN, "true", lambda s: s.auto_create_topics,
        "Whether a topic is created when a client asks for it."),
    _setting("broker.id", _INT, "-1", lambda s: s.broker_id, "Id of this broker."),
    _setting("broker.rack", _STRING, None, lambda s: s.rack, "Rack or availability zone that this broker runs in."),
    _setting("connection.failed.authentication.delay.ms", _INT, "100",
        lambda s: s.sasl.connection_failed_authentication_delay_ms,
        "How long the answer to a login that has failed is held back."),
    _setting("connections.max.idle.ms", _LONG, "600000",
        lambda s: round(s.limits.connection_idle_timeout_seconds * 1000),
        "A connection that is idle for longer is closed."),
    _setting("connections.max.reauth.ms", _LONG, "0", lambda s: s.sasl.connections_max_reauth_ms,
        "How long a client goes on before it has to authenticate anew; 0 is without an end."),
    _setting("default.replication.factor", _INT, "1", lambda s: 1,
        "Replication factor of a topic created without one."),
    _setting("delete.topic.enable", _BOOLEAN, "true", lambda s: True, "Whether topics can be deleted."),
    _setting("fetch.max.bytes", _INT, "57671680", lambda s: s.limits.fetch_max_bytes, "Most of one fetch."),
    _setting("group.consumer.assignors", _LIST, "uniform,range", lambda s: s.coordinator.group_consumer_assignors,
        "Assignors of consumer groups of Kafka 4's protocol; the first is the default."),
    _setting("group.consumer.heartbeat.interval.ms", _INT, "5000",
        lambda s: s.coordinator.group_consumer_heartbeat_interval_ms,
        "How often members of such groups send heartbeats."),
    _setting("group.consumer.max.heartbeat.interval.ms", _INT, "15000",
        lambda s: s.coordinator.group_consumer_max_heartbeat_interval_ms,
        "Longest heartbeat interval of such a group."),
    _setting("group.consumer.max.session.timeout.ms", _INT, "60000",
        lambda s: s.coordinator.group_consumer_max_session_timeout_ms, "Longest session timeout of such a group."),
    _setting("group.consumer.max.size", _INT, _NO_LIMIT, lambda s: s.limits.group_consumer_max_size_count,
        "Members of one such group."),
    _setting("group.consumer.migration.policy", _STRING, "bidirectional",
        lambda s: s.coordinator.group_consumer_migration_policy,
        "Whether groups with members may change their protocol."),
    _setting("group.consumer.min.heartbeat.interval.ms", _INT, "5000",
        lambda s: s.coordinator.group_consumer_min_heartbeat_interval_ms,
        "Shortest heartbeat interval of such a group."),
    _setting("group.consumer.min.session.timeout.ms", _INT, "45000",
        lambda s: s.coordinator.group_consumer_min_session_timeout_ms, "Shortest session timeout of such a group."),
    _setting("group.consumer.regex.refresh.interval.ms", _INT, "600000",
        lambda s: s.coordinator.group_consumer_regex_refresh_interval_ms,
        "How often topics are looked for by regular expressions."),
    _setting("group.consumer.session.timeout.ms", _INT, "45000",
        lambda s: s.coordinator.group_consumer_session_timeout_ms, "Session timeout of members of such groups."),
    _setting("group.initial.rebalance.delay.ms", _INT, "3000", lambda s: s.coordinator.group_initial_rebalance_delay_ms,
        "How long a new consumer group waits for more members."),
    _setting("group.max.session.timeout.ms", _INT, "1800000", lambda s: s.coordinator.group_max_session_timeout_ms,
        "Longest session timeout of a group member."),
    _setting("group.max.size", _INT, _NO_LIMIT, lambda s: s.limits.max_group_members_count, "Members of one group."),
    _setting("group.min.session.timeout.ms", _INT, "6000", lambda s: s.coordinator.group_min_session_timeout_ms,
        "Shortest session timeout of a group member."),
    _setting("listener.security.protocol.map", _STRING, _DEFAULT_PROTOCOL_MAP, _protocol_map,
        "How each listener is secured."),
    _setting("listeners", _STRING, "PLAINTEXT://:9092", lambda s: _listeners(s.listeners),
        "Addresses that clients are accepted on."),
    _setting("log.cleaner.backoff.ms", _LONG, "15000", lambda s: round(s.compaction_check_interval_seconds * 1000),
        "How often to look for partitions that are dirty enough to be compacted."),
    _setting("log.cleaner.dedupe.buffer.size", _LONG, "134217728", lambda s: s.log_cleaner_dedupe_buffer_bytes,
        "Memory for the keys that one compaction looks at."),
    _setting("log.cleaner.enable", _BOOLEAN, "true", lambda s: True, "Whether compacted topics are compacted."),
    _setting("log.dirs", _STRING, "/tmp/kafka-logs", lambda s: s.store, "Where segments live."),
    _setting("log.retention.check.interval.ms", _LONG, "300000",
        lambda s: round(s.retention_check_interval_seconds * 1000), "How often to look for segments to drop."),
    _setting("log.retention.hours", _INT, "168", lambda s: BrokerDefaults.of(s).log.retention_ms // 3_600_000,
        "How long records are kept, in hours: log.retention.ms says it in milliseconds."),
    _setting("log.roll.hours", _INT, "168", lambda s: BrokerDefaults.of(s).log.segment_ms // 3_600_000,
        "Age at which a segment ends, in hours: log.roll.ms says it in milliseconds."),
    _setting("max.connections", _INT, _NO_LIMIT, lambda s: s.limits.max_connections_count, "Connections open at once."),
    _setting("max.connections.per.ip", _INT, _NO_LIMIT, lambda s: s.limits.max_connections_per_ip_count,
        "Connections open at once from one IP address."),
    _setting("max.connections.per.ip.overrides", _STRING, "",
        lambda s: ",".join(map(str, s.limits.max_connections_per_ip_overrides)),
        "IP addresses that may have another number of connections."),
    _setting("max.incremental.fetch.session.cache.slots", _INT, "1000", lambda s: s.limits.max_fetch_sessions_count,
        "Fetch sessions kept."),
    _setting("node.id", _INT, "-1", lambda s: s.broker_id, "Id of this broker."),
    _setting("num.partitions", _INT, "1", lambda s: s.default_partitions_count,
        "Partitions of a topic created without a number."),
    _setting("offset.metadata.max.bytes", _INT, "4096", lambda s: s.limits.offset_metadata_max_bytes,
        "Largest metadata string of a committed offset."),
    _setting("offsets.retention.minutes", _INT, "10080", lambda s: s.coordinator.offsets_retention_ms // 60_000,
        "Committed offsets of a group without members are forgotten after this long."),
    _setting("offsets.topic.num.partitions", _INT, "50", lambda s: s.offsets_topic_partitions_count,
        "Partitions of __consumer_offsets when it is created."),
    _setting("producer.id.expiration.ms", _INT, "86400000", lambda s: s.limits.producer_id_expiration_ms,
        "An idle idempotent producer is forgotten after this long."),
    _setting("queued.max.request.bytes", _LONG, "-1", lambda s: s.limits.queued_max_request_bytes,
        "Bytes of requests that wait for their turn."),
    _setting("sasl.enabled.mechanisms", _LIST, "GSSAPI", lambda s: s.sasl.sasl_mechanisms,
        "How clients of listeners with SASL may authenticate."),
    _setting("sasl.oauthbearer.clock.skew.seconds", _INT, "30",
        lambda s: round(s.sasl.sasl_oauthbearer_clock_skew_seconds),
        "Tolerated difference between the clocks of the broker and of the token's issuer."),
    _setting("sasl.oauthbearer.expected.audience", _LIST, None,
        lambda s: s.sasl.sasl_oauthbearer_expected_audience or None, "Audiences of which a token must have one."),
    _setting("sasl.oauthbearer.expected.issuer", _STRING, None, lambda s: s.sasl.sasl_oauthbearer_expected_issuer,
        "Issuer that a token must have."),
    _setting("sasl.oauthbearer.jwks.endpoint.refresh.ms", _LONG, "3600000",
        lambda s: s.sasl.sasl_oauthbearer_jwks_endpoint_refresh_ms,
        "How often the keys that sign tokens are read again."),
    _setting("sasl.oauthbearer.jwks.endpoint.url", _STRING, None, lambda s: s.sasl.sasl_oauthbearer_jwks_endpoint_url,
        "Where the keys are that sign tokens."),
    _setting("sasl.oauthbearer.scope.claim.name", _STRING, "scope", lambda s: s.sasl.sasl_oauthbearer_scope_claim_name,
        "Claim of a token that has its scopes."),
    _setting("sasl.oauthbearer.sub.claim.name", _STRING, "sub", lambda s: s.sasl.sasl_oauthbearer_sub_claim_name,
        "Claim of a token that names the user."),
    _setting("sasl.server.max.receive.size", _INT, "524288", lambda s: s.sasl.sasl_server_max_receive_bytes,
        "Largest request of a client that has not authenticated."),
    _setting("socket.request.max.bytes", _INT, "104857600", lambda s: s.limits.max_frame_bytes,
        "Largest request that is read."),
    _setting("ssl.cipher.suites", _LIST, "", lambda s: (s.ssl.ssl_ciphers or "").replace(":", ","),
        "Ciphers for TLSv1.2, by OpenSSL's names."),
    _setting("ssl.client.auth", _STRING, "none", lambda s: s.ssl.ssl_client_auth,
        "Whether clients of SSL listeners show a certificate."),
    _setting("ssl.enabled.protocols", _LIST, "TLSv1.2,TLSv1.3", _enabled_protocols, "Versions of TLS."),
    _setting("ssl.keystore.location", _STRING, None, lambda s: s.ssl.ssl_certificate_file,
        "File of the certificate of listeners with TLS."),
    _setting("ssl.keystore.type", _STRING, "JKS", lambda s: _store_type(s.ssl.ssl_certificate_file),
        "Format of that file."),
    _setting("ssl.principal.mapping.rules", _STRING, "DEFAULT", lambda s: s.ssl.ssl_principal_mapping_rules,
        "How the subject of a client's certificate becomes its name."),
    _setting("ssl.truststore.location", _STRING, None, lambda s: s.ssl.ssl_client_ca_file,
        "File of the authorities whose client certificates are trusted."),
    _setting("ssl.truststore.type", _STRING, "JKS", lambda s: _store_type(s.ssl.ssl_client_ca_file),
        "Format of that file."),
    _setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, "10000",
        lambda s: s.transaction_cleanup_interval_ms, "How often to look for transactions that have timed out."),
    _setting("transaction.max.timeout.ms", _INT, "900000", lambda s: s.transaction_max_timeout_ms,
        "Longest timeout of a transaction."),
    _setting("transaction.state.log.num.partitions", _INT, "50", lambda s: s.transaction_state_partitions_count,
        "Partitions of __transaction_state when it is created."),
    _setting("transactional.id.expiration.ms", _INT, "604800000", lambda s: s.transactional_id_expiration_ms,
        "A transactional id is forgotten this long after its last use."),
)
# fmt: on
