"""Helpers for nurseries whose errors come out as one error instead of a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import trio

from kafscale.errors import StoreError

T = TypeVar("T")


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise one error in place of the group that the nursery in the block raises.

    Any other error comes before a StoreError, which may pass when tried again. A cancellation at the same moment is
    dropped.
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
    """Run a task alongside the block, and cancel it at the end."""
    with ungrouped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            yield
            nursery.cancel_scope.cancel()


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, tasks_count: int) -> None:
    """Do the work for every item, at most `tasks_count` at once."""
    waiting = iter(items)

    async def take() -> None:
        for item in waiting:
            await work(item)

    with ungrouped():
        async with trio.open_nursery() as nursery:
            for _ in range(tasks_count):
                nursery.start_soon(take)


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from leaves(exc)
        else:
            yield exc
