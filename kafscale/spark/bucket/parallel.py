"""Getting many small objects at once, some by each turn of a thread: a turn by itself costs as much as a small object.

A turn takes few objects where there are few in all, so that as many are under way as may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

import attrs

from kafscale.errors import DamagedObject, NotFound

TURN_MAX_COUNT: Final = 16

K = TypeVar("K")
T = TypeVar("T")


@attrs.frozen(eq=False, repr=False)
class Turned(Generic[T]):
    """What becomes of one of the objects."""

    turn: Future[Sequence[T | Exception]]
    index: int

    def result(self) -> T:
        """Wait for it. Raises what getting it has raised, or what has ended its turn before."""
        found = self.turn.result()[self.index]
        if isinstance(found, Exception):
            raise found
        return found


def get_many(get: Callable[[K], T], keys: Sequence[K], *, at_once_count: int) -> Sequence[Turned[T]]:
    """Begin to get all, in order, and return what will become of each."""
    if not keys:
        return []
    turn_count = min(TURN_MAX_COUNT, math.ceil(len(keys) / at_once_count))
    turns = [keys[first : first + turn_count] for first in range(0, len(keys), turn_count)]
    threads = ThreadPoolExecutor(min(at_once_count, len(turns)))
    futures = [threads.submit(_take_turn, get, turn) for turn in turns]
    threads.shutdown(wait=False)
    return [Turned(future, index) for future, turn in zip(futures, turns, strict=True) for index in range(len(turn))]


def _take_turn(get: Callable[[K], T], keys: Sequence[K]) -> Sequence[T | Exception]:
    found: list[T | Exception] = []
    for key in keys:
        try:
            found.append(get(key))
        except (NotFound, DamagedObject) as exc:
            found.append(exc)
        except Exception as exc:  # of the store, which has been tried for long: the others are not tried for as long
            return [*found, *[exc] * (len(keys) - len(found))]
    return found
