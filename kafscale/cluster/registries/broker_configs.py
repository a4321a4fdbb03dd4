"""This broker's settings under the names that Kafka's broker configs have, so that Kafka's tools can show them.

Most are read-only: KafScale's settings are set where it is started. `DYNAMIC_CONFIGS` can be set at run time. Listed
are Kafka's names that mean something here, what was set at run time, and the defaults of the topic configs. None has a
secret: of those, the settings have files only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from kafscale.cluster.registries.config_entries import ConfigEntry, broker_synonyms, with_dynamic
from kafscale.cluster.registries.dynamic_configs import DYNAMIC_CONFIGS
from kafscale.cluster.registries.topic_configs import TOPIC_CONFIGS, BrokerDefaults, usual_defaults
from kafscale.config import Listener, SecurityProtocol, Settings, SslVersion


@attrs.frozen
class _BrokerConfig:
    """A broker config of Kafka, its default there, and where its value is in our settings."""

    name: str
    type: ConfigType
    default: str | None
    value: Callable[[Settings], object]
    documentation: str

    def entry(self, settings: Settings) -> ConfigEntry:
        definition = ConfigDefinition(
            name=self.name, type=self.type, default=self.default, documentation=self.documentation
        )
        return _read_only(definition, _text(self.value(settings)), usual=_text(self.value(_usual_settings())))


@cache
def _usual_settings() -> Settings:
    """Return the settings of a broker that was started without options."""
    return Settings()


def _text(value: object) -> str | None:
    """Write a value as Kafka does; None is null there."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


_INT, _LONG, _STRING, _BOOLEAN = ConfigType.INT, ConfigType.LONG, ConfigType.STRING, ConfigType.BOOLEAN
_LIST = ConfigType.LIST
_NO_LIMIT = str(2**31 - 1)
_DEFAULT_PROTOCOL_MAP = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"


def _listeners(listeners: Iterable[Listener]) -> str:
    """Return listeners as Kafka writes them: NAME://HOST:PORT, separated by commas."""
    return ",".join(f"{listener.name}://{listener.address}" for listener in listeners)


def _protocol_map(settings: Settings) -> str:
    """Return Kafka's default where each listener's name is its protocol, else how each listener is secured."""
    if all(listener.name in SecurityProtocol.__members__ for listener in settings.listeners):
        return _DEFAULT_PROTOCOL_MAP
    return ",".join(f"{listener.name}:{settings.protocol_of(listener)}" for listener in settings.listeners)


def _enabled_protocols(settings: Settings) -> tuple[SslVersion, ...]:
    versions = tuple(SslVersion)
    return versions[versions.index(settings.ssl.ssl_min_version) :]


def _store_type(file: Path | None) -> str:
    return "JKS" if file is None else "PEM"


_TABLE = (
    _BrokerConfig(
        "auto.create.topics.enable",
        _BOOLEAN,
        "true",
        lambda s: s.auto_create_topics,
        "Whether a topic is created when a client asks for it.",
    ),
    _BrokerConfig("broker.id", _INT, "-1", lambda s: s.broker_id, "Id of this broker."),
    _BrokerConfig(
        "broker.rack", _STRING, None, lambda s: s.rack, "Rack or availability zone that this broker runs in."
    ),
    _BrokerConfig(
        "connection.failed.authentication.delay.ms",
        _INT,
        "100",
        lambda s: s.sasl.connection_failed_authentication_delay_ms,
        "How long the answer to a login that has failed is held back.",
    ),
    _BrokerConfig(
        "connections.max.idle.ms",
        _LONG,
        "600000",
        lambda s: round(s.limits.connection_idle_timeout_seconds * 1000),
        "A connection that is idle for longer is closed.",
    ),
    _BrokerConfig(
        "connections.max.reauth.ms",
        _LONG,
        "0",
        lambda s: s.sasl.connections_max_reauth_ms,
        "How long a client goes on before it has to authenticate anew; 0 is without an end.",
    ),
    _BrokerConfig(
        "default.replication.factor", _INT, "1", lambda s: 1, "Replication factor of a topic created without one."
    ),
    _BrokerConfig("delete.topic.enable", _BOOLEAN, "true", lambda s: True, "Whether topics can be deleted."),
    _BrokerConfig("fetch.max.bytes", _INT, "57671680", lambda s: s.limits.fetch_max_bytes, "Most of one fetch."),
    _BrokerConfig(
        "group.consumer.assignors",
        _LIST,
        "uniform,range",
        lambda s: s.coordinator.group_consumer_assignors,
        "Assignors of consumer groups of Kafka 4's protocol; the first is the default.",
    ),
    _BrokerConfig(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        "5000",
        lambda s: s.coordinator.group_consumer_heartbeat_interval_ms,
        "How often members of such groups send heartbeats.",
    ),
    _BrokerConfig(
        "group.consumer.max.heartbeat.interval.ms",
        _INT,
        "15000",
        lambda s: s.coordinator.group_consumer_max_heartbeat_interval_ms,
        "Longest heartbeat interval of such a group.",
    ),
    _BrokerConfig(
        "group.consumer.max.session.timeout.ms",
        _INT,
        "60000",
        lambda s: s.coordinator.group_consumer_max_session_timeout_ms,
        "Longest session timeout of such a group.",
    ),
    _BrokerConfig(
        "group.consumer.max.size",
        _INT,
        _NO_LIMIT,
        lambda s: s.limits.group_consumer_max_size_count,
        "Members of one such group.",
    ),
    _BrokerConfig(
        "group.consumer.migration.policy",
        _STRING,
        "bidirectional",
        lambda s: s.coordinator.group_consumer_migration_policy,
        "Whether groups with members may change their protocol.",
    ),
    _BrokerConfig(
        "group.consumer.min.heartbeat.interval.ms",
        _INT,
        "5000",
        lambda s: s.coordinator.group_consumer_min_heartbeat_interval_ms,
        "Shortest heartbeat interval of such a group.",
    ),
    _BrokerConfig(
        "group.consumer.min.session.timeout.ms",
        _INT,
        "45000",
        lambda s: s.coordinator.group_consumer_min_session_timeout_ms,
        "Shortest session timeout of such a group.",
    ),
    _BrokerConfig(
        "group.consumer.regex.refresh.interval.ms",
        _INT,
        "600000",
        lambda s: s.coordinator.group_consumer_regex_refresh_interval_ms,
        "How often topics are looked for by regular expressions.",
    ),
    _BrokerConfig(
        "group.consumer.session.timeout.ms",
        _INT,
        "45000",
        lambda s: s.coordinator.group_consumer_session_timeout_ms,
        "Session timeout of members of such groups.",
    ),
    _BrokerConfig(
        "group.initial.rebalance.delay.ms",
        _INT,
        "3000",
        lambda s: s.coordinator.group_initial_rebalance_delay_ms,
        "How long a new consumer group waits for more members.",
    ),
    _BrokerConfig(
        "group.max.session.timeout.ms",
        _INT,
        "1800000",
        lambda s: s.coordinator.group_max_session_timeout_ms,
        "Longest session timeout of a group member.",
    ),
    _BrokerConfig(
        "group.max.size", _INT, _NO_LIMIT, lambda s: s.limits.max_group_members_count, "Members of one group."
    ),
    _BrokerConfig(
        "group.min.session.timeout.ms",
        _INT,
        "6000",
        lambda s: s.coordinator.group_min_session_timeout_ms,
        "Shortest session timeout of a group member.",
    ),
    _BrokerConfig(
        "listener.security.protocol.map", _STRING, _DEFAULT_PROTOCOL_MAP, _protocol_map, "How each listener is secured."
    ),
    _BrokerConfig(
        "listeners",
        _STRING,
        "PLAINTEXT://:9092",
        lambda s: _listeners(s.listeners),
        "Addresses that clients are accepted on.",
    ),
    _BrokerConfig(
        "log.cleaner.backoff.ms",
        _LONG,
        "15000",
        lambda s: round(s.compaction_check_interval_seconds * 1000),
        "How often to look for partitions that are dirty enough to be compacted.",
    ),
    _BrokerConfig(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        "134217728",
        lambda s: s.log_cleaner_dedupe_buffer_bytes,
        "Memory for the keys that one compaction looks at.",
    ),
    _BrokerConfig("log.cleaner.enable", _BOOLEAN, "true", lambda s: True, "Whether compacted topics are compacted."),
    _BrokerConfig("log.dirs", _STRING, "/tmp/kafka-logs", lambda s: s.store, "Where segments live."),
    _BrokerConfig(
        "log.retention.check.interval.ms",
        _LONG,
        "300000",
        lambda s: round(s.retention_check_interval_seconds * 1000),
        "How often to look for segments to drop.",
    ),
    _BrokerConfig(
        "log.retention.hours",
        _INT,
        "168",
        lambda s: BrokerDefaults.of(s).log.retention_ms // 3_600_000,
        "How long records are kept, in hours: log.retention.ms says it in milliseconds.",
    ),
    _BrokerConfig(
        "log.roll.hours",
        _INT,
        "168",
        lambda s: BrokerDefaults.of(s).log.segment_ms // 3_600_000,
        "Age at which a segment ends, in hours: log.roll.ms says it in milliseconds.",
    ),
    _BrokerConfig(
        "max.connections", _INT, _NO_LIMIT, lambda s: s.limits.max_connections_count, "Connections open at once."
    ),
    _BrokerConfig(
        "max.connections.per.ip",
        _INT,
        _NO_LIMIT,
        lambda s: s.limits.max_connections_per_ip_count,
        "Connections open at once from one IP address.",
    ),
    _BrokerConfig(
        "max.connections.per.ip.overrides",
        _STRING,
        "",
        lambda s: ",".join(map(str, s.limits.max_connections_per_ip_overrides)),
        "IP addresses that may have another number of connections.",
    ),
    _BrokerConfig(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        "1000",
        lambda s: s.limits.max_fetch_sessions_count,
        "Fetch sessions kept.",
    ),
    _BrokerConfig("node.id", _INT, "-1", lambda s: s.broker_id, "Id of this broker."),
    _BrokerConfig(
        "num.partitions",
        _INT,
        "1",
        lambda s: s.default_partitions_count,
        "Partitions of a topic created without a number.",
    ),
    _BrokerConfig(
        "offset.metadata.max.bytes",
        _INT,
        "4096",
        lambda s: s.limits.offset_metadata_max_bytes,
        "Largest metadata string of a committed offset.",
    ),
    _BrokerConfig(
        "offsets.retention.minutes",
        _INT,
        "10080",
        lambda s: s.coordinator.offsets_retention_ms // 60_000,
        "Committed offsets of a group without members are forgotten after this long.",
    ),
    _BrokerConfig(
        "offsets.topic.num.partitions",
        _INT,
        "50",
        lambda s: s.offsets_topic_partitions_count,
        "Partitions of __consumer_offsets when it is created.",
    ),
    _BrokerConfig(
        "producer.id.expiration.ms",
        _INT,
        "86400000",
        lambda s: s.limits.producer_id_expiration_ms,
        "An idle idempotent producer is forgotten after this long.",
    ),
    _BrokerConfig(
        "queued.max.request.bytes",
        _LONG,
        "-1",
        lambda s: s.limits.queued_max_request_bytes,
        "Bytes of requests that wait for their turn.",
    ),
    _BrokerConfig(
        "sasl.enabled.mechanisms",
        _LIST,
        "GSSAPI",
        lambda s: s.sasl.sasl_mechanisms,
        "How clients of listeners with SASL may authenticate.",
    ),
    _BrokerConfig(
        "sasl.oauthbearer.clock.skew.seconds",
        _INT,
        "30",
        lambda s: round(s.sasl.sasl_oauthbearer_clock_skew_seconds),
        "Tolerated difference between the clocks of the broker and of the token's issuer.",
    ),
    _BrokerConfig(
        "sasl.oauthbearer.expected.audience",
        _LIST,
        None,
        lambda s: s.sasl.sasl_oauthbearer_expected_audience or None,
        "Audiences of which a token must have one.",
    ),
    _BrokerConfig(
        "sasl.oauthbearer.expected.issuer",
        _STRING,
        None,
        lambda s: s.sasl.sasl_oauthbearer_expected_issuer,
        "Issuer that a token must have.",
    ),
    _BrokerConfig(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        _LONG,
        "3600000",
        lambda s: s.sasl.sasl_oauthbearer_jwks_endpoint_refresh_ms,
        "How often the keys that sign tokens are read again.",
    ),
    _BrokerConfig(
        "sasl.oauthbearer.jwks.endpoint.url",
        _STRING,
        None,
        lambda s: s.sasl.sasl_oauthbearer_jwks_endpoint_url,
        "Where the keys are that sign tokens.",
    ),
    _BrokerConfig(
        "sasl.oauthbearer.scope.claim.name",
        _STRING,
        "scope",
        lambda s: s.sasl.sasl_oauthbearer_scope_claim_name,
        "Claim of a token that has its scopes.",
    ),
    _BrokerConfig(
        "sasl.oauthbearer.sub.claim.name",
        _STRING,
        "sub",
        lambda s: s.sasl.sasl_oauthbearer_sub_claim_name,
        "Claim of a token that names the user.",
    ),
    _BrokerConfig(
        "sasl.server.max.receive.size",
        _INT,
        "524288",
        lambda s: s.sasl.sasl_server_max_receive_bytes,
        "Largest request of a client that has not authenticated.",
    ),
    _BrokerConfig(
        "socket.request.max.bytes",
        _INT,
        "104857600",
        lambda s: s.limits.max_frame_bytes,
        "Largest request that is read.",
    ),
    _BrokerConfig(
        "ssl.cipher.suites",
        _LIST,
        "",
        lambda s: (s.ssl.ssl_ciphers or "").replace(":", ","),
        "Ciphers for TLSv1.2, by OpenSSL's names.",
    ),
    _BrokerConfig(
        "ssl.client.auth",
        _STRING,
        "none",
        lambda s: s.ssl.ssl_client_auth,
        "Whether clients of SSL listeners show a certificate.",
    ),
    _BrokerConfig("ssl.enabled.protocols", _LIST, "TLSv1.2,TLSv1.3", _enabled_protocols, "Versions of TLS."),
    _BrokerConfig(
        "ssl.keystore.location",
        _STRING,
        None,
        lambda s: s.ssl.ssl_certificate_file,
        "File of the certificate of listeners with TLS.",
    ),
    _BrokerConfig(
        "ssl.keystore.type", _STRING, "JKS", lambda s: _store_type(s.ssl.ssl_certificate_file), "Format of that file."
    ),
    _BrokerConfig(
        "ssl.principal.mapping.rules",
        _STRING,
        "DEFAULT",
        lambda s: s.ssl.ssl_principal_mapping_rules,
        "How the subject of a client's certificate becomes its name.",
    ),
    _BrokerConfig(
        "ssl.truststore.location",
        _STRING,
        None,
        lambda s: s.ssl.ssl_client_ca_file,
        "File of the authorities whose client certificates are trusted.",
    ),
    _BrokerConfig(
        "ssl.truststore.type", _STRING, "JKS", lambda s: _store_type(s.ssl.ssl_client_ca_file), "Format of that file."
    ),
    _BrokerConfig(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _INT,
        "10000",
        lambda s: s.transaction_cleanup_interval_ms,
        "How often to look for transactions that have timed out.",
    ),
    _BrokerConfig(
        "transaction.max.timeout.ms",
        _INT,
        "900000",
        lambda s: s.transaction_max_timeout_ms,
        "Longest timeout of a transaction.",
    ),
    _BrokerConfig(
        "transaction.state.log.num.partitions",
        _INT,
        "50",
        lambda s: s.transaction_state_partitions_count,
        "Partitions of __transaction_state when it is created.",
    ),
    _BrokerConfig(
        "transactional.id.expiration.ms",
        _INT,
        "604800000",
        lambda s: s.transactional_id_expiration_ms,
        "A transactional id is forgotten this long after its last use.",
    ),
)


def broker_entries(
    settings: Settings, advertised: Iterable[Listener], dynamic: DynamicConfigs = NOTHING_SET
) -> list[ConfigEntry]:
    """Return every config of this broker, in order of name. `advertised` is what clients of each listener are told."""
    definition = ConfigDefinition(
        name="advertised.listeners", type=_STRING, default="", documentation="What clients are told to connect to."
    )
    own = _listeners(advertised)
    entries = [_read_only(definition, own, usual=None if settings.advertised_listeners else own)]
    entries += [config.entry(settings) for config in _TABLE] + _topic_defaults(settings)
    names = {entry.definition.name for entry in entries}
    for name in dynamic.in_force().keys() - names:
        if (known := DYNAMIC_CONFIGS.get(name)) is not None:
            synonyms = broker_synonyms(name, known.default, known.default)
            entries.append(
                ConfigEntry(
                    definition=known, value=known.default, source=ConfigSource.DEFAULT_CONFIG, synonyms=synonyms
                )
            )
    return sorted((with_dynamic(entry, dynamic) for entry in entries), key=lambda entry: entry.definition.name)


def _topic_defaults(settings: Settings) -> list[ConfigEntry]:
    """Return what topics have by default, under the broker's names for it."""
    defaults = BrokerDefaults.of(settings)
    return [
        _read_only(
            attrs.evolve(definition, name=definition.broker_name),
            defaults.value(definition),
            usual=usual_defaults().value(definition),
        )
        for definition in TOPIC_CONFIGS.values()
        if definition.broker_name is not None
    ]


def _read_only(definition: ConfigDefinition, value: str | None, *, usual: str | None) -> ConfigEntry:
    synonyms = broker_synonyms(definition.name, value, usual)
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    return ConfigEntry(definition=definition, value=value, source=source, read_only=True, synonyms=synonyms)
