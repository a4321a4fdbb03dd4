"""CPU time of a piece of work, on the event loop and in worker threads, without its waits.

    meter = Meter()
    result = await metered(meter, handle(request))
    meter.seconds

A generator resumes the work in its task and reads the clock before and after. Work in a thread counts if
`run_in_thread` runs it.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import Any, TypeVar, cast

import attrs
import trio

T = TypeVar("T")

_current: ContextVar[Meter | None] = ContextVar("meter", default=None)  # of this task and its threads


@attrs.define(eq=False, repr=False)
class Meter:
    seconds: float = 0.0

    def run(self, function: Callable[..., T], *args: Any) -> T:
        began = perf_counter()
        try:
            return function(*args)
        finally:
            self.seconds += perf_counter() - began

    def take(self) -> float:
        """Return the time counted since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


async def metered(meter: Meter, work: Awaitable[T]) -> T:
    token = _current.set(meter)
    try:
        return cast(T, await _step_by_step(meter, work))
    finally:
        _current.reset(token)


@types.coroutine
def _step_by_step(meter: Meter, work: Awaitable[T]) -> Generator[Any, Any, T]:
    steps = work.__await__()
    resume: Callable[[], Any] = partial(next, steps)
    while True:
        try:
            trap = meter.run(resume)
        except StopIteration as done:
            return cast(T, done.value)
        try:
            value = yield trap
        except BaseException as exc:  # thrown into the work
            resume = partial(steps.throw, exc)
        else:
            resume = partial(steps.send, value)


async def run_in_thread(function: Callable[..., T], *args: object, limiter: trio.CapacityLimiter | None = None) -> T:
    """Run a function like `trio.to_thread.run_sync`; its time counts for the meter of this task."""
    meter = _current.get()
    if meter is None:
        return await trio.to_thread.run_sync(function, *args, limiter=limiter)
    return await trio.to_thread.run_sync(meter.run, function, *args, limiter=limiter)
