"""One error instead of a group of them: that a function used a nursery is not its caller's affair."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from kafscale.errors import StoreError


@contextmanager
def ungrouped() -> Iterator[None]:
    """Around a nursery: raise the most telling of what its tasks raised.

    A StoreError is something to try again, so any other error goes before it. A cancellation that came at the same
    moment is dropped: the error ends what was cancelled, too.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        errors = [exc for exc in _leaves(group) if not isinstance(exc, trio.Cancelled)]
        if not errors:
            raise
        raise min(errors, key=lambda exc: isinstance(exc, StoreError)) from group


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from _leaves(exc)
        else:
            yield exc
