"""Which settings the producer by columns knows, and with which librdkafka has to produce."""

from __future__ import annotations

import pytest

from kafscale.spark.producing.settings import BATCH_BYTES, TIMEOUT_MS, ProducerSettings
from kafscale.wire import compression

ALWAYS = {"bootstrap.servers": "127.0.0.1:9092", "partitioner": "murmur2_random", "enable.idempotence": "true"}


def test_defaults():
    found = ProducerSettings.of(ALWAYS)
    assert (found.batch_bytes, found.codec) == (BATCH_BYTES, compression.NONE)
    assert found.timeout_seconds == TIMEOUT_MS / 1000
    assert [str(each) for each in found.bootstrap] == ["127.0.0.1:9092"]


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"batch.size": "65536"}, "batch_bytes", 65536),
        ({"message.max.bytes": "5000"}, "batch_bytes", 5000),
        ({"batch.size": "9000000"}, "batch_bytes", 1_000_000),
        ({"batch.size": "9000000", "max.request.size": "2000000"}, "batch_bytes", 2_000_000),
        ({"compression.type": "zstd"}, "codec", compression.ZSTD),
        ({"compression.codec": "LZ4 "}, "codec", compression.LZ4),
        ({"message.timeout.ms": "3000"}, "timeout_seconds", 3.0),
        ({"delivery.timeout.ms": "4000"}, "timeout_seconds", 4.0),
        ({"request.timeout.ms": "5000"}, "request_timeout_ms", 5000),
        ({"linger.ms": "100", "acks": "-1"}, "batch_bytes", BATCH_BYTES),
    ],
)
def test_settings_that_are_known(given, name, value):
    assert getattr(ProducerSettings.of({**ALWAYS, **given}), name) == value


@pytest.mark.parametrize(
    "given",
    [
        {"acks": "1"},
        {"enable.idempotence": "false"},
        {"partitioner": "consistent"},
        {"compression.type": "none at all"},
        {"compression.level": "3"},
        {"batch.size": "many"},
        {"batch.size": "0"},
        {"client.id": "mine"},
        {"no.such.setting": "1"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
        {"ssl.provider": "legacy"},
        {"bootstrap.servers": "host:port:1"},
    ],
)
def test_with_other_settings_librdkafka_produces(given):
    assert ProducerSettings.of({**ALWAYS, **given}) is None
