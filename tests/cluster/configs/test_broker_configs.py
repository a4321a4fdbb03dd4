"""This broker's settings under Kafka's names."""

from __future__ import annotations

from kafscale.cluster.configs.broker_configs import broker_entries
from kafscale.config import Limits, Listener, Settings


def values_of(settings: Settings, *advertised: Listener) -> dict[str, str]:
    return {entry.definition.name: entry.value for entry in broker_entries(settings, advertised)}


def test_listeners_are_written_as_kafka_writes_them() -> None:
    settings = Settings(
        listeners=(Listener("IN", "127.0.0.1", 9092), Listener("OUT", "::1", 9093)),
    )
    values = values_of(settings, Listener("OUT", "broker.example", 19093))
    assert values["listeners"] == "IN://127.0.0.1:9092,OUT://[::1]:9093"
    assert values["advertised.listeners"] == "OUT://broker.example:19093"


def test_what_is_set_is_told_in_kafkas_units() -> None:
    values = values_of(
        Settings(
            compaction_check_interval_seconds=1.5,
            retention_check_interval_seconds=2.5,
            log_cleaner_dedupe_buffer_bytes=1 << 20,
            offsets_retention_ms=120_000,
            limits=Limits(queued_max_request_bytes=2 << 20, connection_idle_timeout_seconds=3.0),
        )
    )
    assert values["log.cleaner.backoff.ms"] == "1500"
    assert values["log.retention.check.interval.ms"] == "2500"
    assert values["log.cleaner.dedupe.buffer.size"] == str(1 << 20)
    assert values["offsets.retention.minutes"] == "2"
    assert values["queued.max.request.bytes"] == str(2 << 20)
    assert values["connections.max.idle.ms"] == "3000"


def test_times_are_told_alike_in_hours_and_in_milliseconds() -> None:
    values = values_of(Settings())
    for name in ("log.retention", "log.roll"):
        assert int(values[f"{name}.hours"]) * 3_600_000 == int(values[f"{name}.ms"]) == 7 * 24 * 3_600_000
