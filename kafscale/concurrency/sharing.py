"""Work that several tasks want at once, done once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import attrs
import trio

from kafscale.errors import KafScaleError

Q = TypeVar("Q")
A = TypeVar("A")


@attrs.define(eq=False, repr=False)
class Flight:
    """A load that later tasks wait for. All get its error; after a cancellation the first of them begins anew."""

    _landed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _error: Exception | None = attrs.field(default=None, init=False)

    def land(self, error: BaseException | None = None) -> None:
        """End the load, with its error if it failed; a cancellation does not count."""
        if isinstance(error, Exception):
            self._error = error
        self._landed.set()

    async def wait(self) -> None:
        """Wait until the load is over; then look again for its result. Raises its error."""
        await self._landed.wait()
        if self._error is not None:
            raise self._error


@attrs.define(eq=False, repr=False)
class _Question(Generic[Q, A]):
    question: Q
    answer: A | None = None
    failure: KafScaleError | None = None
    is_over: bool = False  # asked, and answered or not


@attrs.define(eq=False, repr=False)
class Gathering(Generic[Q, A]):
    """Questions to one peer: those that come during a request go together in the next one.

    `ask` returns an answer to each of at most `max_count` questions, in order; its KafScaleError goes to all of them.
    The task whose turn it is asks for all waiting ones, so there is no background task.
    """

    ask: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]
    max_count: int
    _waiting: list[_Question[Q, A]] = attrs.field(factory=list, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def request(self, question: Q, interrupted: KafScaleError) -> A:
        """Return the answer to a question. Raises KafScaleError; `interrupted` if the asking task was cancelled."""
        mine: _Question[Q, A] = _Question(question)
        self._waiting.append(mine)
        try:
            while not mine.is_over:
                async with self._turn:
                    if not mine.is_over:
                        await self._ask_all(interrupted)
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
        if mine.failure is not None:
            raise mine.failure
        return mine.answer  # type: ignore[return-value]  # it was answered: no failure

    async def _ask_all(self, interrupted: KafScaleError) -> None:
        taken, self._waiting = self._waiting[: self.max_count], self._waiting[self.max_count :]
        failure = interrupted
        try:
            answers = await self.ask([waiting.question for waiting in taken])
            for waiting, answer in zip(taken, answers, strict=True):
                waiting.answer, waiting.is_over = answer, True
        except KafScaleError as exc:
            failure = exc
        finally:
            for waiting in taken:
                if not waiting.is_over:
                    waiting.failure, waiting.is_over = failure, True
