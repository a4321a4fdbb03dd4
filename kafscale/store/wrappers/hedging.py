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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import attrs
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.concurrency.signals import Signal
from kafscale.errors import PreconditionFailed, StoreError, StoreUnavailable
from kafscale.store.base import ForwardingStore
from kafscale.store.wrappers.limiter import StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.retrying import etag_if_equal

RECENT_COUNT = 512  # uploads of one size class that are remembered
LEAST_COUNT = 64  # before this many are known, none is hedged
LEAST_DELAY_SECONDS = 0.05  # about what S3 takes for a small upload; a store that is faster needs no hedges

Outcome = str | Exception  # the ETag, or what was raised
Place = AbstractContextManager[None]


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
        race = _Race(lambda: self.store.put_if_absent(key, parts))
        await race.run(delay_seconds, self._free_token)
        if race.is_won_by_second:
            self._metrics.hedges.of("won").value += 1
        outcome = race.verdict()
        if isinstance(outcome, PreconditionFailed) and race.is_hedged:
            # Neither attempt is under way any more, so this is within the one token that we hold.
            try:
                outcome = await etag_if_equal(self.store, key, parts) or outcome
            except StoreError as exc:
                raise StoreUnavailable(f"{key}: one of two attempts was refused, and then: {exc}") from exc
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _free_token(self) -> Place | None:
        token = self._limiter.try_acquire(WorkClass.ACKNOWLEDGE)
        self._metrics.hedges.of("no_place" if token is None else "started").value += 1
        return token


@attrs.define(eq=False, repr=False)
class _Race:
    """One write, attempted once or twice; `run` returns when no attempt is under way."""

    write: Callable[[], Awaitable[str]]
    is_hedged: bool = False
    first: Outcome | None = None
    second: Outcome | None = None
    _ended: Signal = attrs.field(factory=Signal)

    @property
    def is_won_by_second(self) -> bool:
        return isinstance(self.second, str)

    async def run(self, delay_seconds: float, free_token: Callable[[], Place | None]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._attempt, nullcontext(), False)
            with trio.move_on_after(delay_seconds):
                await self._ended.wait()
            if self.first is None and (token := free_token()) is not None:
                self.is_hedged = True
                nursery.start_soon(self._attempt, token, True)
            while not self._is_decided():
                await self._ended.wait()
            nursery.cancel_scope.cancel()

    def verdict(self) -> Outcome:
        """Return the most definite outcome: success, refusal, unknown, other errors."""
        ended = [outcome for outcome in (self.first, self.second) if outcome is not None]
        for kind in (str, PreconditionFailed, StoreUnavailable, Exception):
            for outcome in ended:
                if isinstance(outcome, kind):
                    return outcome
        raise AssertionError("nothing has ended")

    def _is_decided(self) -> bool:
        if isinstance(self.first, str | PreconditionFailed) or isinstance(self.second, str | PreconditionFailed):
            return True
        return self.first is not None and (self.second is not None or not self.is_hedged)

    async def _attempt(self, place: Place, is_second: bool) -> None:
        outcome: Outcome
        try:
            with place:
                outcome = await self.write()
        except Exception as exc:  # of any kind: it is raised again, by the task that asked for the write
            outcome = exc
        if is_second:
            self.second = outcome
        else:
            self.first = outcome
        self._ended.wake()
