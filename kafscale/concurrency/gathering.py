"""Questions that go together: those that come while an earlier one is under way are asked at once, after it.

Whoever's turn it is asks for all that wait, so nobody needs a nursery, and what goes to one broker is one request at a
time, however many ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import attrs
import trio

from kafscale.errors import KafScaleError

Q = TypeVar("Q")
A = TypeVar("A")


@attrs.define(eq=False, repr=False)
class _Question(Generic[Q, A]):
    question: Q
    answer: A | None = None
    failure: KafScaleError | None = None
    is_over: bool = False  # asked, and answered or not


@attrs.define(eq=False, repr=False)
class Gathering(Generic[Q, A]):
    """Asks by `ask`, which returns an answer to each question in order, for at most `max_count` at once.

    A question may be asked again only by whoever asked it: if `ask` fails, all get its KafScaleError.
    """

    ask: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]
    max_count: int
    _waiting: list[_Question[Q, A]] = attrs.field(factory=list, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def request(self, question: Q, interrupted: KafScaleError) -> A:
        """Ask, and return the answer. Raises KafScaleError, `interrupted` if who asked for all was cancelled."""
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
        return mine.answer  # type: ignore[return-value]  # it is there: no failure

    async def _ask_all(self, interrupted: KafScaleError) -> None:
        taken, self._waiting = self._waiting[: self.max_count], self._waiting[self.max_count :]
        failure = interrupted
        try:
            answers = await self.ask([each.question for each in taken])
            for each, answer in zip(taken, answers, strict=True):
                each.answer, each.is_over = answer, True
        except KafScaleError as exc:
            failure = exc
        finally:
            for each in taken:
                if not each.is_over:
                    each.failure, each.is_over = failure, True
