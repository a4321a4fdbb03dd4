"""A trio event loop in its own thread, for callers in plain threads, asyncio and trio.

`trio.from_thread` refuses callers in another trio loop, since it blocks that one; here the calls take milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import attrs
import trio

from kafscale.errors import BrokerUnavailable, KafScaleError

__tracebackhide__ = True  # pytest shows the line of the test instead

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class TrioThread:
    """An event loop to `start`, `call` and `stop`. An exception of a background task ends it, and `stop` raises it."""

    name: str
    nursery: trio.Nursery = attrs.field(init=False)  # for background tasks, from within the loop
    _token: trio.lowlevel.TrioToken = attrs.field(init=False)
    _thread: threading.Thread = attrs.field(init=False)
    _waiting: set[Future[Any]] = attrs.field(factory=set, init=False)
    _failure: BaseException | None = attrs.field(default=None, init=False)

    def start(self) -> None:
        """Start the thread; return when `call` can be used."""
        ready: Future[None] = Future()
        self._waiting.add(ready)
        # A daemon, so that an interrupted test run ends.
        self._thread = threading.Thread(target=self._run, args=(ready,), name=self.name, daemon=True)
        self._thread.start()
        ready.result()

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function in the loop and return its result. Raises BrokerUnavailable if the loop has ended.

        An expected error comes without the traceback of the loop, so that it shows the caller's line.
        """
        future: Future[T] = Future()
        self._waiting.add(future)
        try:
            self._token.run_sync_soon(self._begin, future, function, args)
        except trio.RunFinishedError:
            raise self._ended() from self._failure
        finally:
            if not self._thread.is_alive():
                self._abandon_waiting()
        try:
            return future.result()
        except KafScaleError as exc:
            raise exc.with_traceback(None) from None

    def stop(self) -> None:
        """Cancel everything and wait for the thread's end. Raises the exception that ended it before, if any."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.nursery.cancel_scope.cancel)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self, ready: Future[None]) -> None:
        try:
            trio.run(self._main, ready)
        except BaseException as exc:
            self._failure = exc
        finally:
            self._abandon_waiting()

    async def _main(self, ready: Future[None]) -> None:
        async with trio.open_nursery() as self.nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._settle(ready, None)
            await trio.sleep_forever()

    def _begin(self, future: Future[Any], function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        try:
            self.nursery.start_soon(self._perform, future, function, args)
        except RuntimeError:  # the nursery is closed already
            self._settle(future, self._ended())

    async def _perform(
        self, future: Future[Any], function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]
    ) -> None:
        try:
            outcome: Any = await function(*args)
        except Exception as exc:
            outcome = exc
        except BaseException:
            self._settle(future, self._ended())
            raise
        self._settle(future, outcome)

    def _settle(self, future: Future[Any], outcome: Any) -> None:
        self._waiting.discard(future)
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _abandon_waiting(self) -> None:
        """End the calls that came too late."""
        for future in list(self._waiting):
            if not future.done():
                self._settle(future, self._ended())

    def _ended(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"the thread '{self.name}' has ended")
