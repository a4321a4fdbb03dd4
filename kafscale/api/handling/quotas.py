"""Quotas of clients. A client above its quota gets its reply at once, with the time for which it must hold back.

Its connection is not read from for that time (KIP-219). `Rate` is Kafka's: the amount of the last 11 windows of a
second, over at least 10 s, so a silent client may do ten seconds' worth at once. `TokenBucket` holds eleven (KIP-599).
Kafka discards the records of a Fetch above the quota. Here they are sent, and the client holds back afterwards: the
rate is the same, and no read of the bucket is wasted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

import attrs
import trio

from kafscale.api.handling.calls import Call
from kafscale.cluster.registries.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    Limit,
)
from kafscale.config import Settings
from kafscale.errors import KafkaError
from kafscale.lru import LruCache
from kafscale.metrics import Histogram, HistogramFamily, Metrics
from kafscale.wire.error_codes import THROTTLING_QUOTA_EXCEEDED

WINDOW_SECONDS: Final = 1.0  # Kafka: quota.window.size.seconds and controller.quota.window.size.seconds
WINDOWS_COUNT: Final = 11  # Kafka: quota.window.num and controller.quota.window.num
BURST_SECONDS: Final = (WINDOWS_COUNT - 1) * WINDOW_SECONDS  # of a rate
REMEMBERED_MAX_COUNT = 10_000  # clients; the longest silent is forgotten first. Kafka: an hour, without a limit

Key = TypeVar("Key")
Measure = TypeVar("Measure")


@attrs.define(eq=False, repr=False)
class _Window:
    began_at: float
    last_at: float
    amount: float = 0


@attrs.define(eq=False, repr=False)
class Rate:
    _windows: deque[_Window] = attrs.field(factory=deque, init=False)

    def add(self, amount: float, now: float) -> None:
        windows = self._windows
        if not windows or now - windows[-1].began_at >= WINDOW_SECONDS:
            windows.append(_Window(now, now))
        windows[-1].amount += amount
        windows[-1].last_at = now
        while now - windows[0].last_at >= WINDOWS_COUNT * WINDOW_SECONDS or len(windows) > WINDOWS_COUNT + 1:
            windows.popleft()

    def excess_seconds(self, per_second: float, now: float) -> float:
        """Return the seconds until the rate is down to a limit; negative if it is below. Call `add` before."""
        elapsed = now - self._windows[0].began_at
        missing_windows = max(0, WINDOWS_COUNT - 1 - int(elapsed / WINDOW_SECONDS))
        measured_seconds = elapsed + missing_windows * WINDOW_SECONDS
        return sum(window.amount for window in self._windows) / per_second - measured_seconds


@attrs.define(eq=False, repr=False)
class TokenBucket:
    _tokens: float | None = attrs.field(default=None, init=False)
    _filled_at: float = attrs.field(default=0.0, init=False)

    def missing_seconds(self, per_second: float, now: float) -> float:
        return max(0.0, -self._fill(per_second, now) / per_second)

    def take(self, count: float, per_second: float, now: float) -> None:
        self._tokens = self._fill(per_second, now) - count

    def _fill(self, per_second: float, now: float) -> float:
        most = WINDOWS_COUNT * WINDOW_SECONDS * per_second
        tokens = most if self._tokens is None else self._tokens + (now - self._filled_at) * per_second
        self._tokens, self._filled_at = min(most, tokens), now
        return self._tokens


@attrs.define(eq=False, repr=False)
class Remembered(Generic[Key, Measure]):
    """A measure for each key, made when it is first asked for. Keeps at most REMEMBERED_MAX_COUNT."""

    make: Callable[[], Measure]
    _measures: LruCache[Key, Measure] = attrs.field(factory=lambda: LruCache(REMEMBERED_MAX_COUNT), init=False)

    def __len__(self) -> int:
        return len(self._measures)

    def of(self, key: Key) -> Measure:
        measure = self._measures.get(key)
        if measure is None:
            measure = self.make()
            self._measures.put(key, measure)
        return measure


NAME_MAX_LENGTH = 256  # of users and client ids in memory
THROTTLE_MAX_MS: Final = 2**31 - 1
REQUEST_THROTTLE_MAX_MS: Final = 1000  # Kafka: a window
THROTTLE_BUCKETS_SECONDS = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)

EXCEEDED: Final = "The throttling quota has been exceeded."
LABELS: Final[Mapping[str, str]] = {  # of the metric
    PRODUCER_BYTE_RATE: "producer",
    CONSUMER_BYTE_RATE: "consumer",
    REQUEST_PERCENTAGE: "request",
    CONTROLLER_MUTATION_RATE: "controller_mutation",
}

FindLimit = Callable[[Call], Limit | None]


Sharers = tuple[str | None, str | None]  # user and client id of the clients that share a quota: None is any name


def _sharers(limit: Limit) -> Sharers:
    user, client_id = limit.user, limit.client_id
    return user and user[:NAME_MAX_LENGTH], client_id and client_id[:NAME_MAX_LENGTH]


@attrs.define(eq=False, kw_only=True, repr=False)
class RateQuota:
    """Limit of a rate, over all connections of the clients that share it. `limit` finds the limit of a client."""

    limit: FindLimit
    throttled_seconds: Histogram
    throttle_max_ms: int = THROTTLE_MAX_MS
    _rates: Remembered[Sharers, Rate] = attrs.field(factory=lambda: Remembered(Rate), init=False)

    def applies_to(self, call: Call) -> bool:
        return self.limit(call) is not None

    def burst(self, call: Call) -> float:
        """Return the amount that a silent client may do at once."""
        limit = self.limit(call)
        return math.inf if limit is None else limit.value * BURST_SECONDS

    def count(self, call: Call, amount: float) -> None:
        """Count what a client has done; its next request will be held back for it."""
        limit = self.limit(call)
        if limit is not None:
            self._rates.of(_sharers(limit)).add(amount, trio.current_time())

    def throttle_ms(self, call: Call, amount: float) -> int:
        """Count what a client has done; return how long it must hold back now."""
        limit = self.limit(call)
        if limit is None:
            return 0
        now = trio.current_time()
        rate = self._rates.of(_sharers(limit))
        rate.add(amount, now)
        throttle_ms = _milliseconds(rate.excess_seconds(limit.value, now), self.throttle_max_ms)
        if throttle_ms <= 0:
            return 0
        self.throttled_seconds.observe(throttle_ms / 1000)
        return throttle_ms


@attrs.define(eq=False, kw_only=True, repr=False)
class MutationCharges:
    """Charges of one request, topic by topic; a topic that is planned anew is not charged again.

    A strict request, whose version knows the error, changes nothing more once the bucket is empty. Any other one does,
    and its client holds back afterwards. Without a quota there is no bucket.
    """

    bucket: TokenBucket | None = None
    per_second: float = math.inf
    is_strict: bool = False
    throttled_seconds: Histogram | None = None
    _refusals: dict[str, KafkaError | None] = attrs.field(factory=dict, init=False)  # by topic
    _held_back_until: float = attrs.field(default=0.0, init=False)

    def charge(self, topic: str, partitions_count: int) -> None:
        """Charge partitions. Raises KafkaError THROTTLING_QUOTA_EXCEEDED if they are too many now."""
        if topic not in self._refusals:
            self._refusals[topic] = self._take(partitions_count)
        refusal = self._refusals[topic]
        if refusal is not None:
            raise refusal

    def _take(self, count: int) -> KafkaError | None:
        now = trio.current_time()
        if self.bucket is None:
            return None
        if not self.is_strict:
            self.bucket.take(count, self.per_second, now)
        missing_seconds = self.bucket.missing_seconds(self.per_second, now)
        if missing_seconds > 0:
            self._held_back_until = now + missing_seconds
            return KafkaError(THROTTLING_QUOTA_EXCEEDED, EXCEEDED) if self.is_strict else None
        if self.is_strict:
            self.bucket.take(count, self.per_second, now)
        return None

    def throttle_ms(self) -> int:
        throttle_ms = _milliseconds(self._held_back_until - trio.current_time(), THROTTLE_MAX_MS)
        if throttle_ms <= 0 or self.throttled_seconds is None:
            return 0
        self.throttled_seconds.observe(throttle_ms / 1000)
        return throttle_ms


@attrs.define(eq=False, kw_only=True, repr=False)
class Quotas:
    """The quotas of a broker, each None while no client has one. Those of the settings are defaults of client ids."""

    settings: Settings
    client_quotas: ClientQuotas
    metrics: Metrics
    producer: RateQuota | None = attrs.field(default=None, init=False)  # bytes
    consumer: RateQuota | None = attrs.field(default=None, init=False)  # bytes
    request: RateQuota | None = attrs.field(default=None, init=False)  # hundredths of seconds
    _mutation_limit: FindLimit | None = attrs.field(default=None, init=False)
    _mutations: Remembered[Sharers, TokenBucket] = attrs.field(factory=lambda: Remembered(TokenBucket), init=False)
    throttled_seconds: HistogramFamily = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.throttled_seconds = self.metrics.histogram(
            "kafscale_throttle_seconds",
            "Throttle times told to clients above their quota.",
            "quota",
            bounds=THROTTLE_BUCKETS_SECONDS,
        )
        self.client_quotas.follow(self._update)
        self._update()

    def charges(self, call: Call, *, strict_since: int) -> MutationCharges:
        """Return a request's charges (KIP-599). Versions from `strict_since` on know the error of an exceeded quota."""
        limit = None if self._mutation_limit is None else self._mutation_limit(call)
        if limit is None:
            return MutationCharges()
        return MutationCharges(
            bucket=self._mutations.of(_sharers(limit)),
            per_second=limit.value,
            is_strict=call.version >= strict_since,
            throttled_seconds=self._throttled(CONTROLLER_MUTATION_RATE),
        )

    def _update(self) -> None:
        """Use new quotas. Counted amounts stay, so that a lower quota acts at once."""
        self.producer = self._rates(self.producer, PRODUCER_BYTE_RATE, setting=self.settings.producer_byte_rate)
        self.consumer = self._rates(self.consumer, CONSUMER_BYTE_RATE, setting=self.settings.consumer_byte_rate)
        self.request = self._rates(self.request, REQUEST_PERCENTAGE, throttle_max_ms=REQUEST_THROTTLE_MAX_MS)
        has_mutations = self.client_quotas.has(CONTROLLER_MUTATION_RATE)
        self._mutation_limit = self._limit(CONTROLLER_MUTATION_RATE, setting=0) if has_mutations else None
        if not has_mutations:
            self._mutations = Remembered(TokenBucket)

    def _rates(
        self, present: RateQuota | None, key: str, *, setting: int = 0, throttle_max_ms: int = THROTTLE_MAX_MS
    ) -> RateQuota | None:
        if not setting and not self.client_quotas.has(key):
            return None
        return present or RateQuota(
            limit=self._limit(key, setting=setting),
            throttled_seconds=self._throttled(key),
            throttle_max_ms=throttle_max_ms,
        )

    def _throttled(self, key: str) -> Histogram:
        return self.throttled_seconds.of(LABELS[key])

    def _limit(self, key: str, *, setting: int) -> FindLimit:
        def limit(call: Call) -> Limit | None:
            found = self.client_quotas.limit(key, call.peer.principal.name, call.client_id)
            if found is None and setting:
                return Limit(value=setting, client_id=call.client_id)
            return found

        return limit


def _milliseconds(seconds: float, max_ms: int) -> int:
    """Return seconds as milliseconds, at most `max_ms`: a quota near zero gives an endless time."""
    return round(min(seconds * 1000, max_ms))
