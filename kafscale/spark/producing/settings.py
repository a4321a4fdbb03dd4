"""The settings of a producer that this one knows, by the names of Java's and of librdkafka's clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from kafscale.config import Address
from kafscale.errors import ConfigError
from kafscale.login.security import PREFIXES, ClientSecurity, client_security
from kafscale.spark.brokers.cluster import parse_bootstrap
from kafscale.wire import compression

BATCH_BYTES = 128 << 10  # Kafka: batch.size, 16 KiB, librdkafka 1 MB; a column's readers like many batches at once
MESSAGE_MAX_BYTES = 1_000_000  # librdkafka: message.max.bytes
TIMEOUT_MS = 300_000  # librdkafka: message.timeout.ms
REQUEST_TIMEOUT_MS = 30_000

_BOOTSTRAP = "bootstrap.servers"
_BATCH = ("batch.size",)
_MESSAGE_MAX = ("message.max.bytes", "max.request.size")
_TIMEOUT = ("message.timeout.ms", "delivery.timeout.ms")
_REQUEST_TIMEOUT = ("request.timeout.ms",)
_CODEC = ("compression.type", "compression.codec")
_CODECS = {name: codec for codec, name in compression.NAMES.items()}
# What must be as it is by default, in any of these forms.
_AS_THEY_ARE: Mapping[str, Sequence[str]] = {
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
    "partitioner": ("murmur2_random",),
}
_WITHOUT_EFFECT = ("linger.ms", "queue.buffering.max.ms")  # nothing waits for more: all that there is, is sent
_KNOWN = {_BOOTSTRAP, *_BATCH, *_MESSAGE_MAX, *_TIMEOUT, *_REQUEST_TIMEOUT, *_CODEC, *_AS_THEY_ARE, *_WITHOUT_EFFECT}


@attrs.frozen(kw_only=True)
class ProducerSettings:
    """Settings of a producer by columns."""

    bootstrap: Sequence[Address]
    security: ClientSecurity = attrs.field(repr=False)
    batch_bytes: int
    codec: int
    timeout_seconds: float
    request_timeout_ms: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ProducerSettings | None:
        """Read settings; None if they ask for what this producer has not, so that librdkafka has to produce."""
        values = {name: value.strip() for name, value in given.items()}
        if any(name not in _KNOWN and not name.startswith(PREFIXES) for name in values):
            return None
        if any(values.get(name, as_it_is[0]).lower() not in as_it_is for name, as_it_is in _AS_THEY_ARE.items()):
            return None
        codec = _CODECS.get(_first(values, _CODEC, "none").lower())
        if codec is None:
            return None
        try:
            return cls(
                bootstrap=parse_bootstrap(values.get(_BOOTSTRAP, "")),
                security=client_security({name: value for name, value in values.items() if name.startswith(PREFIXES)}),
                batch_bytes=min(_number(values, _BATCH, BATCH_BYTES), _number(values, _MESSAGE_MAX, MESSAGE_MAX_BYTES)),
                codec=codec,
                timeout_seconds=_number(values, _TIMEOUT, TIMEOUT_MS) / 1000,
                request_timeout_ms=_number(values, _REQUEST_TIMEOUT, REQUEST_TIMEOUT_MS),
            )
        except (ConfigError, ValueError):
            return None


def _first(values: Mapping[str, str], names: Sequence[str], default: str) -> str:
    return next((values[name] for name in names if name in values), default)


def _number(values: Mapping[str, str], names: Sequence[str], default: int) -> int:
    """Raises ValueError."""
    number = int(_first(values, names, str(default)))
    if number < 1:
        raise ValueError(f"{names[0]} is {number}")
    return number
