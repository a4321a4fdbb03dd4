"""Limit the objects that flushes put into the bucket: per minute, and in relation to the objects of an S3 WAL.

In a minute, `--flush-objects-per-minute`: a bucket of tokens, one for each object. A sixth of the minute's objects may
come at once, so that a dozen partitions that are due together go together; the others come in evenly. So there are
never more than that many in any minute.

Only flushes by age ask. All others spend tokens too, down to a debt of one bucketful, so that the sum is kept where it
can be; a quarter of the rate is left to flushes by age whatever the others take, or old batches would never get out.

Beside the log, `early_after`: who reads the log back asks for each of its objects, so partitions are flushed before
their time where many have been written since, and what that costs is in proportion to what the log costs.

May not import anything of KafScale but metrics.
"""

from __future__ import annotations

import math

import attrs

from kafscale.metrics import Counter, Metrics

OBJECTS_PER_FLUSH = 2  # .kfs and .index
LOG_PUTS_PER_EARLY_PUT = 4
BURST_FRACTION = 1 / 6
LEFT_TO_AGE_FRACTION = 1 / 4
ROUNDING_SECONDS = 1e-6


def early_after(wanted_count: int, dirty_count: int) -> float:
    """Return how many small objects of the log a partition's oldest record may be back before it is flushed early.

    `wanted_count`, or eight for each partition that has something to flush if that is more: each flush is two PUTs, so
    early ones add a quarter to those of the log at most. Infinitely many if 0 are wanted.
    """
    if not wanted_count:
        return math.inf
    return max(wanted_count, LOG_PUTS_PER_EARLY_PUT * OBJECTS_PER_FLUSH * dirty_count)


@attrs.define(eq=False, repr=False)
class FlushPacer:
    """Times are in seconds, by the caller's clock."""

    objects_per_minute: int
    objects_count: Counter = attrs.field(factory=Counter, init=False)
    _burst: float = attrs.field(init=False)
    _per_second: float = attrs.field(init=False)
    _tokens: float = attrs.field(init=False)
    _filled_at: float = attrs.field(default=0.0, init=False)
    _aged_at: float = attrs.field(default=-math.inf, init=False)  # the last flush by age

    def __attrs_post_init__(self) -> None:
        self._burst = self._tokens = max(OBJECTS_PER_FLUSH, self.objects_per_minute * BURST_FRACTION)
        self._per_second = (self.objects_per_minute - self._burst) / 60

    def register(self, metrics: Metrics) -> None:
        """Register the metrics."""
        help = "Objects that flushes have begun to write."
        metrics.adopt_counter("kafscale_flush_objects_total", help, self.objects_count)

    def ready_at(self, now: float, promised_count: int) -> float:
        """Return when one more flush by age may begin; infinite while too many promised ones have not begun."""
        self._fill(now)
        wanted = (promised_count + 1) * OBJECTS_PER_FLUSH
        at = now + max(0.0, wanted - self._tokens) / self._per_second if wanted <= self._burst else math.inf
        if not promised_count:
            at = min(at, self._aged_at + OBJECTS_PER_FLUSH / (self._per_second * LEFT_TO_AGE_FRACTION))
        return max(now, at)

    def is_ready(self, now: float, promised_count: int) -> bool:
        """Tell whether one more flush by age may begin now."""
        return self.ready_at(now, promised_count) <= now + ROUNDING_SECONDS

    def began(self, now: float, *, by_age: bool) -> None:
        """Note that a flush has begun."""
        self._fill(now)
        self._tokens = max(-self._burst, self._tokens - OBJECTS_PER_FLUSH)
        self.objects_count.value += OBJECTS_PER_FLUSH
        if by_age:
            self._aged_at = now

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
