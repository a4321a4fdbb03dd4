from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.cluster.registries.config_definitions import ConfigDefinition, ConfigSource, ConfigType
from kafscale.cluster.registries.config_entries import broker_entries, topic_entries
from kafscale.cluster.registries.topic_configs import TOPIC_CONFIGS, BrokerDefaults, log_config
from kafscale.config import Limits, Settings
from kafscale.errors import KafkaError
from kafscale.log.partition.log_config import LogConfig
from kafscale.wire.error_codes import INVALID_CONFIG

DEFAULTS = BrokerDefaults()


def refusal(**overrides: str) -> str:
    with pytest.raises(KafkaError) as caught:
        log_config({name.replace("_", "."): value for name, value in overrides.items()}, DEFAULTS)
    assert caught.value.code == INVALID_CONFIG
    assert caught.value.message is not None
    return caught.value.message


def test_every_default_is_valid() -> None:
    for definition in TOPIC_CONFIGS.values():
        definition.parse(definition.default)


def test_log_config_defaults_match_the_topic_config_table() -> None:
    config = LogConfig()
    for field in attrs.fields(LogConfig):
        if (definition := TOPIC_CONFIGS.get(field.name.replace("_", "."))) is not None:
            assert getattr(config, field.name) == definition.parse(definition.default), field.name
    assert log_config({}, DEFAULTS) == config


def test_every_effective_topic_config_has_a_log_config_field() -> None:
    attributes = {field.name.replace("_", ".") for field in attrs.fields(LogConfig)}
    assert {name for name, definition in TOPIC_CONFIGS.items() if definition.acts} <= attributes


def test_the_table_is_in_order_and_has_all_of_kafkas_topic_configs() -> None:
    assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)
    assert len(TOPIC_CONFIGS) == 33


def test_overrides_become_typed_values() -> None:
    overrides = {
        "cleanup.policy": " compact , delete ",
        "retention.ms": "-1",
        "min.cleanable.dirty.ratio": "0.25",
        "message.timestamp.type": "LogAppendTime",
        "preallocate": "TRUE",
        "max.message.bytes": "+10",
    }
    config = log_config(overrides, DEFAULTS)
    assert config == LogConfig(
        cleanup_policy=("compact", "delete"),
        retention_ms=-1,
        min_cleanable_dirty_ratio=0.25,
        message_timestamp_type="LogAppendTime",
        max_message_bytes=10,
    )
    assert (config.compact, config.delete, config.log_append_time) == (True, True, True)


def test_the_brokers_settings_are_the_defaults_of_topics() -> None:
    settings = Settings(segment_bytes=1 << 20, limits=Limits(max_message_bytes=5000, producer_id_expiration_ms=60_000))
    defaults = BrokerDefaults.of(settings)
    config = log_config({}, defaults)
    assert (config.segment_bytes, config.max_message_bytes, config.producer_id_expiration_ms) == (1 << 20, 5000, 60_000)
    assert log_config({"max.message.bytes": "7"}, defaults).max_message_bytes == 7
    sources = {entry.definition.name: entry.source for entry in topic_entries({}, defaults)}
    assert sources["max.message.bytes"] is ConfigSource.STATIC_BROKER_CONFIG
    assert sources["retention.ms"] is ConfigSource.DEFAULT_CONFIG


def test_a_default_that_differs_from_kafkas_is_a_default_unless_an_option_was_set() -> None:
    """It was told as STATIC_BROKER_CONFIG, as if an operator had set it; tools that compare clusters said so, too."""
    own = str(Settings().segment_bytes)
    assert own != TOPIC_CONFIGS["segment.bytes"].default
    entries = {each.definition.name: each for each in topic_entries({}, BrokerDefaults.of(Settings()))}
    entry = entries["segment.bytes"]
    assert (entry.value, entry.source) == (own, ConfigSource.DEFAULT_CONFIG)
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        ("log.segment.bytes", own, ConfigSource.DEFAULT_CONFIG)
    ]
    unset = broker_entries(Settings(), ())
    others = {each.definition.name: each.source for each in unset if each.source is not ConfigSource.DEFAULT_CONFIG}
    assert others == {"min.insync.replicas": ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG}  # as Kafka 4.1 tells it


def test_a_broker_default_below_the_topic_config_minimum_is_accepted() -> None:
    """Settings have bounds of their own; those of the topic config are for what clients send."""
    assert log_config({}, BrokerDefaults(LogConfig(segment_bytes=1024))).segment_bytes == 1024


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("retention.ms", "x", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", str(2**63), "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("segment.bytes", str(2**31), "Not a number of type INT"),
        ("compression.lz4.level", "18", "Value must be no more than 17"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
    ],
)
def test_bad_values_are_refused_in_kafkas_words(name: str, value: str, reason: str) -> None:
    assert refusal(**{name: value}) == f"Invalid value {value} for configuration {name}: {reason}"


def test_an_item_that_is_not_allowed_is_named_without_the_others() -> None:
    expected = "Invalid value shred for configuration cleanup.policy: String must be one of: compact, delete"
    assert refusal(cleanup_policy="delete, shred") == expected


@pytest.mark.parametrize(
    ("name", "typed", "answered"),
    [
        ("retention.ms", "\t100000 ", "100000"),
        ("retention.ms", "+500000", "500000"),
        ("retention.ms", "0" * 30 + "5", "5"),
        ("retention.ms", "٣", "3"),
        ("retention.ms", "-1", "-1"),
        ("cleanup.policy", " compact ,\tdelete ", "compact,delete"),
        ("cleanup.policy", "compact,compact", "compact,compact"),
        ("cleanup.policy", " ", ""),
        ("compression.type", " gzip ", "gzip"),
        ("compression.gzip.level", "+5", "5"),
        ("preallocate", " tRuE", "true"),
        ("min.cleanable.dirty.ratio", "5e-1", "0.5"),
        ("min.cleanable.dirty.ratio", ".5", "0.5"),
        ("min.cleanable.dirty.ratio", "0.5d", "0.5"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("min.cleanable.dirty.ratio", "1.", "1.0"),
        ("min.cleanable.dirty.ratio", "-0", "-0.0"),
        ("min.cleanable.dirty.ratio", "0.001", "0.001"),
        ("min.cleanable.dirty.ratio", "1e-5", "1.0E-5"),
        ("min.cleanable.dirty.ratio", "0.000125", "1.25E-4"),
        ("min.cleanable.dirty.ratio", "1e-500", "0.0"),
        ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
    ],
)
def test_the_canonical_text_matches_kafka_4_1(name: str, typed: str, answered: str) -> None:
    definition = TOPIC_CONFIGS[name]
    assert definition.canonical(typed) == answered
    assert definition.canonical(answered) == answered
    assert definition.parse(answered) == definition.parse(typed)


def test_every_default_is_canonical() -> None:
    assert [each.name for each in TOPIC_CONFIGS.values() if each.canonical(str(each.default)) != each.default] == []


def test_values_that_clash() -> None:
    message = refusal(min_compaction_lag_ms="10", max_compaction_lag_ms="9")
    assert message == "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (9)"


def test_unknown_names_and_tiered_storage_are_refused() -> None:
    assert refusal(no_such_config="1") == "Unknown topic config name: no.such.config"
    assert "Tiered Storage" in refusal(remote_storage_enable="true")
    log_config({"remote.storage.enable": "false"}, DEFAULTS)


@pytest.mark.parametrize(
    ("value", "good"), [("*", True), ("0:1,12:3", True), ("", True), ("0:1,*x", False), ("a", False)]
)
def test_throttled_replicas(value: str, good: bool) -> None:
    definition = TOPIC_CONFIGS["leader.replication.throttled.replicas"]
    if good:
        definition.parse(value)
    else:
        with pytest.raises(KafkaError):
            definition.parse(value)


def test_gzip_has_no_level_zero() -> None:
    assert TOPIC_CONFIGS["compression.gzip.level"].parse("9") == 9
    with pytest.raises(KafkaError):
        TOPIC_CONFIGS["compression.gzip.level"].parse("0")


@given(st.sampled_from(list(TOPIC_CONFIGS.values())), st.text(max_size=30) | st.integers().map(str))
def test_any_text_is_a_value_within_bounds_or_refused(definition: ConfigDefinition, text: str) -> None:
    try:
        value = definition.parse(text)
    except KafkaError:
        return
    if definition.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
        assert definition.least <= value <= definition.most
