"""Long work on the event loop, cut into turns between which others run.

Turns are counted in steps, not measured, so that a simulation repeats them. May not import anything of KafScale.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from typing import TypeVar

import attrs
import trio

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

STEPS_PER_TURN = 256  # of some microseconds each, so that a turn is about a millisecond


@attrs.define(eq=False, repr=False)
class Turns:
    """The turns of one piece of work. One that is short does not give way at all."""

    steps: int = STEPS_PER_TURN
    _left: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._left = self.steps

    async def step(self) -> None:
        """Give way to other tasks if a turn's worth of steps has been done. To be called before each step."""
        if not self._left:
            self._left = self.steps
            await trio.lowlevel.checkpoint()
        self._left -= 1


async def in_turns(items: Iterable[T], *, steps: int = STEPS_PER_TURN) -> AsyncIterator[T]:
    """The items, giving way to others after every so many."""
    turns = Turns(steps)
    for item in items:
        await turns.step()
        yield item


async def distinct(items: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """The first item of each key, in order: what a request says several times is answered once."""
    found: dict[Hashable, T] = {}
    async for item in in_turns(items):
        found.setdefault(key(item), item)
    return list(found.values())


async def distinct_partitions(
    topics: Iterable[tuple[K, Iterable[T]]], index: Callable[[T], int], *, turns: Turns | None = None
) -> dict[K, dict[int, T]]:
    """Topics and their partitions, each once, in order: what is said first of a partition holds.

    `turns` are those of the work that this is a part of.
    """
    turns = turns or Turns()
    found: dict[K, dict[int, T]] = {}
    for topic, partitions in topics:
        await turns.step()
        of_topic = found.setdefault(topic, {})
        for partition in partitions:
            await turns.step()
            of_topic.setdefault(index(partition), partition)
    return found
