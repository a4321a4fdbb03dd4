"""The settings of the producer, by the names of Java's and of librdkafka's clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from kafscale.config import Address
from kafscale.errors import ConfigError
from kafscale.login.security import PREFIXES, ClientSecurity, client_security
from kafscale.spark.brokers.cluster import Cluster, parse_bootstrap
from kafscale.wire import compression

BATCH_BYTES = 128 << 10  # Kafka: batch.size, 16 KiB, librdkafka 1 MB; a column's readers like many batches at once
MESSAGE_MAX_BYTES = 1_000_000  # librdkafka: message.max.bytes
TIMEOUT_MS = 300_000  # librdkafka: message.timeout.ms
REQUEST_TIMEOUT_MS = 30_000

TRANSACTION_TIMEOUT = "transaction.timeout.ms"  # read by `WriteOptions`
_BOOTSTRAP = "bootstrap.servers"
_BATCH = ("batch.size",)
_MESSAGE_MAX = ("message.max.bytes", "max.request.size")
_TIMEOUT = ("message.timeout.ms", "delivery.timeout.ms")
_REQUEST_TIMEOUT = ("request.timeout.ms",)
_CODEC = ("compression.type", "compression.codec")
_PARTITIONER = "partitioner"
_JAVAS_PARTITIONER = "murmur2_random"  # by librdkafka's name
_CODECS = {name: codec for codec, name in compression.NAMES.items()}
# This producer is always idempotent, waits for all replicas, retries until the timeout, and sends rows at once.
_WITHOUT_EFFECT = (
    *("acks", "request.required.acks", "enable.idempotence", "retries", "message.send.max.retries"),
    *("max.in.flight", "max.in.flight.requests.per.connection", "linger.ms", "queue.buffering.max.ms"),
    *("queue.buffering.max.messages", "queue.buffering.max.kbytes", "batch.num.messages", "buffer.memory"),
    *("max.block.ms", "client.id", "retry.backoff.ms", "retry.backoff.max.ms", "reconnect.backoff.ms"),
    *("reconnect.backoff.max.ms", "metadata.max.age.ms", "connections.max.idle.ms", "socket.timeout.ms"),
    *("socket.keepalive.enable", "send.buffer.bytes", "receive.buffer.bytes"),
)
_WITH_EFFECT = (
    *(_BOOTSTRAP, *_BATCH, *_MESSAGE_MAX, *_TIMEOUT, *_REQUEST_TIMEOUT, *_CODEC),
    *(_PARTITIONER, TRANSACTION_TIMEOUT),
)


@attrs.frozen(kw_only=True)
class ProducerSettings:
    """The settings of `ColumnProducer`."""

    bootstrap: Sequence[Address]
    security: ClientSecurity = attrs.field(repr=False)
    batch_bytes: int
    codec: int
    timeout_seconds: float
    request_timeout_ms: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ProducerSettings:
        """Read the settings, and the files that they name. Raises ConfigError."""
        values = {name: value.strip() for name, value in given.items()}
        for name in values:
            if not name.startswith(PREFIXES) and name not in (*_WITH_EFFECT, *_WITHOUT_EFFECT):
                raise ConfigError(
                    f"{name}: the writer does not know this setting; allowed: {', '.join(sorted(_WITH_EFFECT))}, those "
                    f"of TLS and SASL, and without effect {', '.join(sorted(_WITHOUT_EFFECT))}"
                )
        codec = _first(values, _CODEC, "none").lower()
        for name, value, allowed in (
            (_PARTITIONER, values.get(_PARTITIONER, _JAVAS_PARTITIONER), (_JAVAS_PARTITIONER,)),
            (_CODEC[0], codec, tuple(_CODECS)),
        ):
            if value not in allowed:
                raise ConfigError(f"{name}: '{value}' is not known; allowed: {', '.join(allowed)}")
        return cls(
            bootstrap=parse_bootstrap(values.get(_BOOTSTRAP, "")),
            security=client_security({name: value for name, value in values.items() if name.startswith(PREFIXES)}),
            batch_bytes=min(_number(values, _BATCH, BATCH_BYTES), _number(values, _MESSAGE_MAX, MESSAGE_MAX_BYTES)),
            codec=_CODECS[codec],
            timeout_seconds=_number(values, _TIMEOUT, TIMEOUT_MS) / 1000,
            request_timeout_ms=_number(values, _REQUEST_TIMEOUT, REQUEST_TIMEOUT_MS),
        )

    def cluster(self) -> Cluster:
        """Return the brokers, to be closed."""
        return Cluster(bootstrap=self.bootstrap, security=self.security)


def _first(values: Mapping[str, str], names: Sequence[str], default: str) -> str:
    return next((values[name] for name in names if name in values), default)


def _number(values: Mapping[str, str], names: Sequence[str], default: int) -> int:
    text = _first(values, names, str(default))
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{next(name for name in names if name in values)}: '{text}' is not a positive number")
    return int(text)
