"""Functions that use a nursery, which is not their caller's affair: one error comes out instead of a group of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import trio

from kafscale.errors import StoreError

T = TypeVar("T")


@contextmanager
def ungrouped() -> Iterator[None]:
    """Around a nursery: raise the most telling of what its tasks raised.

    A StoreError is something to try again, so any other error goes before it. A cancellation that came at the same
    moment is dropped: the error ends what was cancelled, too.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        errors = [exc for exc in leaves(group) if not isinstance(exc, trio.Cancelled)]
        if not errors:
            raise
        raise min(errors, key=lambda exc: isinstance(exc, StoreError)) from group


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run a task beside the block, which ends with it."""
    with ungrouped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            yield
            nursery.cancel_scope.cancel()


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, tasks_count: int) -> None:
    """Do the work for every item, for at most `tasks_count` of them at once."""
    waiting = iter(items)

    async def take() -> None:
        for item in waiting:
            await work(item)

    with ungrouped():
        async with trio.open_nursery() as nursery:
            for _ in range(tasks_count):
                nursery.start_soon(take)


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Give what is in a group and in the groups in it."""
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from leaves(exc)
        else:
            yield exc
