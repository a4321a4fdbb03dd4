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

import math
from collections import OrderedDict, deque
from collections.abc import Callable

import attrs
import trio

from kafscale.cluster.client_quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, ClientQuotas
from kafscale.config import Settings
from kafscale.metrics import Histogram, HistogramFamily, Metrics

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

    def excess_seconds(self, bytes_per_second: float, now: float) -> float:
        """Return how long nothing more may come until the rate is down to that; negative if it is below.

        To be called after `add`.
        """
        elapsed = now - self._windows[0].began_at
        missing_windows = max(0, WINDOWS_COUNT - 1 - int(elapsed / WINDOW_SECONDS))
        measured_seconds = elapsed + missing_windows * WINDOW_SECONDS
        return sum(window.size_bytes for window in self._windows) / bytes_per_second - measured_seconds


@attrs.define(eq=False, kw_only=True)
class ByteRateQuota:
    """What each client id may do, over all of its connections together. `limit` is its bytes per second, if any."""

    limit: Callable[[str], float | None]
    throttled_seconds: Histogram
    _rates: OrderedDict[str, ByteRate] = attrs.field(factory=OrderedDict, init=False)

    def burst_bytes(self, client_id: str) -> float:
        """Return what a client may do at once that was silent before."""
        bytes_per_second = self.limit(client_id)
        return math.inf if bytes_per_second is None else bytes_per_second * (WINDOWS_COUNT - 1) * WINDOW_SECONDS

    def throttle_ms(self, client_id: str, size_bytes: int) -> int:
        """Count what a client has sent or got. Returns for how long it is to hold back now."""
        bytes_per_second = self.limit(client_id)
        if bytes_per_second is None:
            return 0
        now = trio.current_time()
        rate = self._rate(client_id[:CLIENT_ID_MAX_LENGTH])
        rate.add(size_bytes, now)
        throttle_ms = round(rate.excess_seconds(bytes_per_second, now) * 1000)
        if throttle_ms <= 0:
            return 0
        self.throttled_seconds.observe(throttle_ms / 1000)
        return min(throttle_ms, THROTTLE_MAX_MS)

    def _rate(self, key: str) -> ByteRate:
        rates = self._rates
        rate = rates.get(key)
        if rate is None:
            rate = rates[key] = ByteRate()
            if len(rates) > CLIENTS_MAX_COUNT:
                rates.popitem(last=False)
        else:
            rates.move_to_end(key)
        return rate


@attrs.define(eq=False, kw_only=True)
class Quotas:
    """The quotas of a broker: `producer` and `consumer` are None while no client has one, so that none is looked for.

    A client id's rate goes before the default of client ids, and that before what the settings say.
    """

    settings: Settings
    client_quotas: ClientQuotas
    metrics: Metrics
    producer: ByteRateQuota | None = attrs.field(default=None, init=False)
    consumer: ByteRateQuota | None = attrs.field(default=None, init=False)

    _throttled_seconds: HistogramFamily = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._throttled_seconds = self.metrics.histogram(
            "kafscale_throttle_seconds",
            "How long clients above their quota were told to hold back.",
            "quota",
            bounds=THROTTLE_BUCKETS_SECONDS,
        )
        self.client_quotas.follow(self._update)
        self._update()

    def _update(self) -> None:
        """Take over new rates. What was counted stays, so that a lower rate acts at once."""
        settings = self.settings
        self.producer = self._quota(self.producer, "producer", PRODUCER_BYTE_RATE, settings.producer_byte_rate)
        self.consumer = self._quota(self.consumer, "consumer", CONSUMER_BYTE_RATE, settings.consumer_byte_rate)

    def _quota(self, present: ByteRateQuota | None, name: str, key: str, setting: int) -> ByteRateQuota | None:
        if not setting and not self.client_quotas.has(key):
            return None
        if present is not None:
            return present

        def limit(client_id: str) -> float | None:
            own = self.client_quotas.limit(key, client_id)
            return (setting or None) if own is None else own

        return ByteRateQuota(limit=limit, throttled_seconds=self._throttled_seconds.of(name))
