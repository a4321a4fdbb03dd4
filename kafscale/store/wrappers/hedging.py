"""Hedged uploads: a second attempt at one that takes unusually long (Dean and Barroso, "The Tail at Scale", 2013).

Only `put_if_absent` is hedged: it is conditional, so at most one attempt takes effect, and flushes consist of it. The
second attempt starts when the first has taken longer than a high percentile of recent uploads of about the size, and
only with a token that is free at once: this wrapper is inside `LimitedStore`, holds its token, and never waits for
another. The first success wins, and the other attempt is cancelled.

A refused attempt (412) may have met the other one's object, so after two attempts a refusal is resolved by reading
back, as in `RetryingStore`. An undecided one is raised as StoreUnavailable.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import attrs
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.concurrency.signals import Signal
from kafscale.errors import PreconditionFailed, StoreError, StoreUnavailable
from kafscale.store.base import ForwardingStore
from kafscale.store.wrappers.limiter import StoreLimiter, StoreToken, WorkClass
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.retrying import etag_if_equal

RECENT_COUNT = 512  # uploads of one size class that are remembered
LEAST_COUNT = 64  # before this many are known, none is hedged
LEAST_DELAY_SECONDS = 0.05  # about what S3 takes for a small upload; a store that is faster needs no hedges


@attrs.define
class RecentSeconds:
    """The durations of the last uploads of about one size."""

    _recent: deque[float] = attrs.field(factory=deque, init=False)
    _sorted: list[float] = attrs.field(factory=list, init=False)

    def add(self, seconds: float) -> None:
        if len(self._recent) == RECENT_COUNT:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(seconds)
        insort(self._sorted, seconds)

    def percentile(self, percent: int) -> float:
        """Return the duration that `percent` of them stayed below; infinite while too few are known."""
        if len(self._sorted) < LEAST_COUNT:
            return math.inf
        return self._sorted[len(self._sorted) * percent // 100]


@attrs.define(eq=False, repr=False)
class HedgingStore(ForwardingStore):
    """An `ObjectStore` whose slow `put_if_absent` gets a second attempt. `percent` is below 100."""

    _limiter: StoreLimiter
    _metrics: StoreMetrics
    _percent: int
    _recent: dict[int, RecentSeconds] = attrs.field(factory=dict, init=False)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        # Sizes within a factor of four are about one size.
        recent = self._recent.setdefault(size_of(parts).bit_length() // 2, RecentSeconds())
        delay_seconds = max(LEAST_DELAY_SECONDS, recent.percentile(self._percent))
        started = trio.current_time()
        if math.isinf(delay_seconds):
            etag = await self.store.put_if_absent(key, parts)
        else:
            etag = await self._hedged(key, parts, delay_seconds)
        recent.add(trio.current_time() - started)
        return etag

    async def _hedged(self, key: str, parts: Sequence[Buffer], delay_seconds: float) -> str:
        outcomes: dict[int, str | Exception] = {}  # of the first attempt and the second: the ETag, or what was raised
        attempts_count, ended = 1, Signal()

        async def attempt(number: int, place: AbstractContextManager[None]) -> None:
            try:
                with place:
                    outcomes[number] = await self.store.put_if_absent(key, parts)
            except Exception as exc:  # of any kind: it is raised again below
                outcomes[number] = exc
            ended.wake()

        def is_decided() -> bool:
            has_answer = any(isinstance(outcome, str | PreconditionFailed) for outcome in outcomes.values())
            return has_answer or len(outcomes) == attempts_count

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt, 1, nullcontext())
            with trio.move_on_after(delay_seconds):
                await ended.wait()
            if not outcomes and (token := self._free_token()) is not None:
                attempts_count = 2
                nursery.start_soon(attempt, 2, token)
            while not is_decided():
                await ended.wait()
            nursery.cancel_scope.cancel()
        if isinstance(outcomes.get(2), str):
            self._metrics.hedges.of("won").value += 1
        kinds = (str, PreconditionFailed, StoreUnavailable, Exception)  # the most definite ones first
        outcome = next(found for kind in kinds for found in outcomes.values() if isinstance(found, kind))
        if isinstance(outcome, PreconditionFailed) and attempts_count == 2:
            # Neither attempt is under way any more, so this is within the one token that we hold.
            try:
                outcome = await etag_if_equal(self.store, key, parts) or outcome
            except StoreError as exc:
                raise StoreUnavailable(f"{key}: one of two attempts was refused, and then: {exc}") from exc
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _free_token(self) -> StoreToken | None:
        token = self._limiter.try_acquire(WorkClass.ACKNOWLEDGE)
        self._metrics.hedges.of("no_place" if token is None else "started").value += 1
        return token
