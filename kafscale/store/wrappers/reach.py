"""Tells whether a store answers: how long it has been silent, when it answered last, and when it is back.

A store is silent from the first unanswered attempt, while all others since then fail or hang. Any other outcome, such
as NotFound, is an answer. After SILENT_SECONDS a probe asks once a second: requests that hang on a dead connection
would notice its return late.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import SlowDown, StoreError, StoreUnavailable
from kafscale.metrics import Metrics

SILENT_SECONDS = 1.0  # a 503 now and then is not worth a line in the log
LOST_SECONDS = 2.5  # a store that lives answers a probe before: then what was sent before may never be answered
WARNED_SECONDS = 3.0  # without a reply, as where packets vanish: a slow line needs some time for a large object
LOOK_SECONDS = 1.0
PROBE_TIMEOUT_SECONDS = 2.0
PROBES_MAX_COUNT = 2  # at once: one that can't be cancelled, as in a thread, must not be followed by many
LATE_SECONDS = 2.0  # between two looks; what is more is time in which this process did not run

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class Reach:
    """The answers of one store to all callers; `run` it where others depend on `silent_seconds`.

    `name` names the store in the log. `probe` asks it for something small, without retries; it may raise StoreError.
    """

    name: str = "the object store"
    probe: Callable[[], Awaitable[object]] | None = None
    _silent_since: float | None = attrs.field(default=None, init=False)
    answered_at: float = attrs.field(default=-math.inf, init=False)
    _under_way_count: int = attrs.field(default=0, init=False)
    _failures_count: int = attrs.field(default=0, init=False)
    _failure: StoreError | None = attrs.field(default=None, init=False)
    _is_announced: bool = attrs.field(default=False, init=False)
    _probes_count: int = attrs.field(default=0, init=False)
    _looked_at: float | None = attrs.field(default=None, init=False)
    _returned: Signal = attrs.field(factory=Signal, init=False)
    _patience_seconds: dict[trio.CancelScope, float] = attrs.field(factory=dict, init=False)  # of attempts under way

    @property
    def silent_seconds(self) -> float:
        """Return how long the store has answered nothing although it was asked; 0 if it answers."""
        if self._silent_since is None:
            return 0.0
        now = trio.current_time()
        if self._looked_at is not None:
            now = min(now, self._looked_at + LATE_SECONDS)
        return max(0.0, now - self._silent_since)

    def register(self, metrics: Metrics) -> None:
        help = "Time without any answer of the store; 0 while it answers."
        metrics.gauge("kafscale_store_silent_seconds", help, lambda: self.silent_seconds)

    @contextmanager
    def attempt(self, patience_seconds: float = math.inf) -> Iterator[None]:
        """Note the outcome of one request, which the block makes.

        After a silence of LOST_SECONDS its connection may be gone: the block is cancelled `patience_seconds` after the
        end of one, and raises StoreUnavailable.
        """
        with trio.CancelScope() as scope:
            self._patience_seconds[scope] = patience_seconds
            try:
                with self._noted():
                    yield
            finally:
                del self._patience_seconds[scope]
        if scope.cancelled_caught:
            raise StoreUnavailable(f"{self.name} answers again, but not what was sent before it was silent")

    @contextmanager
    def _noted(self) -> Iterator[None]:
        if self._silent_since is None:
            self._silent_since = trio.current_time()
        self._under_way_count += 1
        error: BaseException | None = None
        try:
            yield
        except BaseException as exc:
            error = exc
            raise
        finally:
            self._under_way_count -= 1
            if isinstance(error, SlowDown | StoreUnavailable):
                self._failed(error)
            elif error is None or isinstance(error, StoreError):
                self._answered()

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt, at most until a silent store answers again."""
        with trio.move_on_after(seconds):
            await self._returned.wait()

    async def run(self) -> None:
        """Probe the store while it is silent, and warn of that, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._look()
                    if self.silent_seconds >= SILENT_SECONDS and self._probes_count < PROBES_MAX_COUNT:
                        nursery.start_soon(self._probe)
                    if self.silent_seconds >= WARNED_SECONDS:
                        self._warn(str(self._failure or "nothing comes back"))
                    await trio.sleep(LOOK_SECONDS)
        finally:
            self._looked_at = None

    def _look(self) -> None:
        """Subtract time in which this process did not run, and so could not receive any answer."""
        now = trio.current_time()
        late_seconds = 0.0 if self._looked_at is None else now - self._looked_at - LATE_SECONDS
        if late_seconds > 0 and self._silent_since is not None:
            self._silent_since = min(now, self._silent_since + late_seconds)
        self._looked_at = now

    async def _probe(self) -> None:
        if self.probe is None:
            return
        self._probes_count += 1
        try:
            with trio.move_on_after(PROBE_TIMEOUT_SECONDS), suppress(StoreError), self.attempt():
                await self.probe()
        finally:
            self._probes_count -= 1

    def _failed(self, failure: StoreError) -> None:
        self._failures_count += 1
        self._failure = failure
        if self.silent_seconds >= SILENT_SECONDS:
            self._warn(str(failure))

    def _warn(self, why: str) -> None:
        if not self._is_announced:
            self._is_announced = True
            logger.warning(
                "%s has not answered for %.1f s, and is asked again and again: %s; look whether it runs, and at the "
                "network between it and this machine",
                self.name,
                self.silent_seconds,
                why,
            )

    def _answered(self) -> None:
        now, seconds = trio.current_time(), self.silent_seconds
        self.answered_at = now
        if self._is_announced:
            count = self._failures_count
            logger.warning("%s is back after %.1f s and %d failures", self.name, seconds, count)
        self._silent_since = now if self._under_way_count else None
        self._failures_count, self._failure, self._is_announced = 0, None, False
        if seconds >= SILENT_SECONDS:
            self._returned.wake()
        if seconds >= LOST_SECONDS:
            for scope, patience_seconds in self._patience_seconds.items():
                scope.deadline = min(scope.deadline, now + patience_seconds)
