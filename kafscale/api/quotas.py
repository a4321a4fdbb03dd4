"""Byte rates of clients, as Kafka's quotas: a client above its rate is told for how long to hold back, in a reply that
comes at once, and its connection is not read from for that time (KIP-219).

The rate is Kafka's: what was counted in the last 11 windows of a second, over the time since the first of them began,
and over 10 s at least. So a client that was silent may send ten seconds' worth at once. How long it is to hold back is
the time in which its rate comes down to the quota.

One thing differs. For a fetch, Kafka counts what it has read, and if that is too much throws it away and answers with
nothing. Here it is sent, and the client holds back afterwards: the rate is the same, and no read of the bucket is
wasted.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import attrs
import trio

from kafscale.config import Settings
from kafscale.metrics import Histogram, Metrics

WINDOW_SECONDS = 1.0  # Kafka: quota.window.size.seconds
WINDOWS_COUNT = 11  # Kafka: quota.window.num
CLIENTS_MAX_COUNT = (
    10_000  # whose rates are kept; who was silent for longest is forgotten first. Kafka: an hour of them
)
CLIENT_ID_MAX_LENGTH = 256  # of what tells clients apart
THROTTLE_MAX_MS = 2**31 - 1
THROTTLE_BUCKETS_SECONDS = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


@attrs.define(eq=False)
class _Window:
    began_at: float
    last_at: float
    size_bytes: int = 0


@attrs.define(eq=False)
class ByteRate:
    """The bytes of the last windows. Times are those of one clock, in seconds, and do not go back."""

    _windows: deque[_Window] = attrs.field(factory=deque, init=False)

    def add(self, size_bytes: int, now: float) -> None:
        windows = self._windows
        if not windows or now - windows[-1].began_at >= WINDOW_SECONDS:
            windows.append(_Window(now, now))
        windows[-1].size_bytes += size_bytes
        windows[-1].last_at = now
        while now - windows[0].last_at >= WINDOWS_COUNT * WINDOW_SECONDS or len(windows) > WINDOWS_COUNT + 1:
            windows.popleft()

    def excess_seconds(self, bytes_per_second: int, now: float) -> float:
        """After an `add`: the time without any more in which the rate comes down to that; negative if it is below."""
        elapsed = now - self._windows[0].began_at
        missing_windows = max(0, WINDOWS_COUNT - 1 - int(elapsed / WINDOW_SECONDS))
        measured_seconds = elapsed + missing_windows * WINDOW_SECONDS
        return sum(window.size_bytes for window in self._windows) / bytes_per_second - measured_seconds


@attrs.define(eq=False, kw_only=True)
class ByteRateQuota:
    """What each client id may do, over all of its connections together."""

    bytes_per_second: int
    throttled_seconds: Histogram
    _rates: OrderedDict[str, ByteRate] = attrs.field(factory=OrderedDict, init=False)

    @property
    def burst_bytes(self) -> int:
        """What a client may do at once that was silent before."""
        return int(self.bytes_per_second * (WINDOWS_COUNT - 1) * WINDOW_SECONDS)

    def throttle_ms(self, client_id: str, size_bytes: int) -> int:
        """Count what a client has sent or got. Returns for how long it is to hold back now."""
        rates, key = self._rates, client_id[:CLIENT_ID_MAX_LENGTH]
        rate = rates.get(key)
        if rate is None:
            rate = rates[key] = ByteRate()
            if len(rates) > CLIENTS_MAX_COUNT:
                rates.popitem(last=False)
        else:
            rates.move_to_end(key)
        now = trio.current_time()
        rate.add(size_bytes, now)
        throttle_ms = round(rate.excess_seconds(self.bytes_per_second, now) * 1000)
        if throttle_ms <= 0:
            return 0
        self.throttled_seconds.observe(throttle_ms / 1000)
        return min(throttle_ms, THROTTLE_MAX_MS)


@attrs.frozen(kw_only=True, eq=False)
class Quotas:
    """The quotas of a broker; None where there is none."""

    producer: ByteRateQuota | None = None
    consumer: ByteRateQuota | None = None

    @classmethod
    def of(cls, settings: Settings, metrics: Metrics) -> Quotas:
        """Those that the settings ask for."""
        if not settings.producer_byte_rate and not settings.consumer_byte_rate:
            return cls()
        throttled = metrics.histogram(
            "kafscale_throttle_seconds",
            "How long clients above their quota were told to hold back.",
            "quota",
            bounds=THROTTLE_BUCKETS_SECONDS,
        )

        def quota(name: str, bytes_per_second: int) -> ByteRateQuota | None:
            if not bytes_per_second:
                return None
            return ByteRateQuota(bytes_per_second=bytes_per_second, throttled_seconds=throttled.of(name))

        return cls(
            producer=quota("producer", settings.producer_byte_rate),
            consumer=quota("consumer", settings.consumer_byte_rate),
        )
