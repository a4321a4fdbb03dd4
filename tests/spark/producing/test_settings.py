"""Settings of the producer: their names, defaults and errors."""

from __future__ import annotations

import pytest

from kafscale.errors import ConfigError
from kafscale.spark.producing.settings import BATCH_BYTES, TIMEOUT_MS, ProducerSettings
from kafscale.wire import compression

ALWAYS = {"bootstrap.servers": "127.0.0.1:9092"}


def test_defaults():
    found = ProducerSettings.of(ALWAYS)
    assert (found.batch_bytes, found.codec) == (BATCH_BYTES, compression.NONE)
    assert found.timeout_seconds == TIMEOUT_MS / 1000
    assert [str(address) for address in found.bootstrap] == ["127.0.0.1:9092"]


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
        ({"linger.ms": "100", "acks": "1", "client.id": "mine"}, "batch_bytes", BATCH_BYTES),
        ({"partitioner": "murmur2_random", "enable.idempotence": "false"}, "batch_bytes", BATCH_BYTES),
    ],
)
def test_kafka_settings_map_to_producer_settings(given, name, value):
    assert getattr(ProducerSettings.of({**ALWAYS, **given}), name) == value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"partitioner": "consistent"}, "partitioner: 'consistent' is not known; allowed: murmur2_random"),
        ({"compression.type": "none at all"}, "compression.type: 'none at all' is not known; allowed: none, gzip"),
        ({"compression.level": "3"}, "compression.level: the writer does not know this setting; allowed: batch.size"),
        ({"batch.size": "many"}, "batch.size: 'many' is not a positive number"),
        ({"delivery.timeout.ms": "0"}, "delivery.timeout.ms: '0' is not a positive number"),
        ({"no.such.setting": "1"}, "no.such.setting: the writer does not know this setting"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism: 'GSSAPI' is not known"),
        ({"ssl.provider": "legacy"}, "ssl.provider: is not known here"),
        ({"bootstrap.servers": "host:port:1"}, "bootstrap.servers: "),
    ],
)
def test_settings_that_are_refused(given, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        ProducerSettings.of({**ALWAYS, **given})
