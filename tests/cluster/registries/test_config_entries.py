"""This broker's settings under Kafka's names."""

from __future__ import annotations

from pathlib import Path

from kafscale.cluster.registries.config_entries import broker_entries
from kafscale.config import (
    CoordinatorSettings,
    Limits,
    Listener,
    ListenerProtocol,
    SaslMechanism,
    SaslSettings,
    SecurityProtocol,
    Settings,
    SslClientAuth,
    SslSettings,
    SslVersion,
)


def values_of(settings: Settings, *advertised: Listener) -> dict[str, str | None]:
    return {entry.definition.name: entry.value for entry in broker_entries(settings, advertised)}


def test_listeners_are_formatted_as_in_kafka() -> None:
    settings = Settings(
        listeners=(Listener("IN", "127.0.0.1", 9092), Listener("OUT", "::1", 9093)),
    )
    values = values_of(settings, Listener("OUT", "broker.example", 19093))
    assert values["listeners"] == "IN://127.0.0.1:9092,OUT://[::1]:9093"
    assert values["advertised.listeners"] == "OUT://broker.example:19093"


def test_settings_are_reported_in_the_units_of_kafka() -> None:
    values = values_of(
        Settings(
            compaction_check_interval_seconds=1.5,
            retention_check_interval_seconds=2.5,
            log_cleaner_dedupe_buffer_bytes=1 << 20,
            coordinator=CoordinatorSettings(offsets_retention_ms=120_000),
            limits=Limits(queued_max_request_bytes=2 << 20, connection_idle_timeout_seconds=3.0),
        )
    )
    assert values["log.cleaner.backoff.ms"] == "1500"
    assert values["log.retention.check.interval.ms"] == "2500"
    assert values["log.cleaner.dedupe.buffer.size"] == str(1 << 20)
    assert values["offsets.retention.minutes"] == "2"
    assert values["queued.max.request.bytes"] == str(2 << 20)
    assert values["connections.max.idle.ms"] == "3000"


def test_retention_and_roll_times_agree_in_hours_and_milliseconds() -> None:
    values = values_of(Settings())
    for name in ("log.retention", "log.roll"):
        assert int(values[f"{name}.hours"] or 0) * 3_600_000 == int(values[f"{name}.ms"] or 0) == 7 * 24 * 3_600_000


def test_listener_security_is_reported_without_secrets(tmp_path: Path) -> None:
    password_file = tmp_path / "password"
    settings = Settings(
        listeners=(Listener("SASL_SSL", "127.0.0.1", 9092), Listener("OUT", "127.0.0.1", 9093)),
        listener_security_protocols=(ListenerProtocol("OUT", SecurityProtocol.SSL),),
        ssl=SslSettings(
            ssl_certificate_file=Path("broker.pem"),
            ssl_key_password_file=password_file,
            ssl_client_ca_file=Path("ca.pem"),
            ssl_client_auth=SslClientAuth.REQUIRED,
            ssl_min_version=SslVersion.TLS_1_3,
            ssl_ciphers="A:B",
        ),
        sasl=SaslSettings(
            sasl_mechanisms=(SaslMechanism.PLAIN, SaslMechanism.SCRAM_SHA_256), secret_key_file=tmp_path / "secret"
        ),
    )
    values = values_of(settings)
    told = {name: value for name, value in values.items() if name.startswith(("ssl.", "listener.security"))}
    assert told == {
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,OUT:SSL",
        "ssl.cipher.suites": "A,B",
        "ssl.client.auth": "required",
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.keystore.location": "broker.pem",
        "ssl.keystore.type": "PEM",
        "ssl.principal.mapping.rules": "DEFAULT",
        "ssl.truststore.location": "ca.pem",
        "ssl.truststore.type": "PEM",
    }
    assert values["sasl.enabled.mechanisms"] == "PLAIN,SCRAM-SHA-256"
    assert not any(str(tmp_path) in (value or "") for name, value in values.items() if name != "log.dirs")


def test_unset_optional_configs_are_null() -> None:
    values = values_of(Settings())
    assert values["ssl.keystore.location"] is None
    assert values["sasl.oauthbearer.expected.audience"] is None
    assert values["listener.security.protocol.map"] == (
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
    )
