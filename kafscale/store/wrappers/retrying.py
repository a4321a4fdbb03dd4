"""Retries with jittered backoff and a deadline, and resolution of conditional writes whose reply was lost.

This wrapper is outermost, so that backoff holds no token of the limiter. A backoff ends early when a silent store
answers any request (`kafscale.store.wrappers.reach`).

A conditional write without an answer may have taken effect; the next attempt then meets its own object and is refused.
Such a refusal is resolved by reading the object back: with our bytes it is ours. A claim, which must differ from
another writer's equal bytes, contains something unique. An unconditional put whose reply was lost may take effect after
the next one: write keys once, or conditionally.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

import attrs
import trio

from kafscale.backoff import Backoff
from kafscale.buffers import Buffer, cut, size_of
from kafscale.errors import (
    AccessDenied,
    Conflict,
    NotFound,
    PreconditionFailed,
    SlowDown,
    StoreError,
    StoreUnavailable,
)
from kafscale.store.base import ForwardingStore, ObjectInfo, ObjectStore
from kafscale.store.wrappers.metered import StoreMetrics, outcome_of
from kafscale.store.wrappers.reach import Reach

BACKOFF = Backoff(0.05, 5.0)  # AWS's SDKs: 0.05 in standard mode, 0.1 in botocore's, up to 20
PATIENCE_SECONDS = 1.0  # from the return of a silent store on, for replies to earlier requests

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """Waits a random part of each pause of `backoff` between attempts.

    No attempt starts later than `deadline_seconds` after the operation began; the store's timeouts bound each attempt.
    """

    backoff: Backoff = BACKOFF
    deadline_seconds: float = 60.0  # AWS's SDKs: 3 attempts, about 5 s; a MinIO that restarts needs more

    def delay_seconds(self, retries_count: int, random: Random) -> float:
        return random.uniform(0, self.backoff.seconds(retries_count))


@attrs.define(eq=False, repr=False)
class RetryingStore(ForwardingStore):
    """An `ObjectStore` that tries again after SlowDown, StoreUnavailable and Conflict; other errors are answers.

    Raises the error of the last attempt; an undecided conditional write raises StoreUnavailable.
    """

    _policy: RetryPolicy
    _random: Random
    _metrics: StoreMetrics
    _reach: Reach = attrs.field(factory=Reach)

    def perform(self, operation: str, call: Callable[..., Awaitable[T]], *args: Any) -> Coroutine[Any, Any, T]:
        return self.retried(operation, partial(call, *args))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        attempt = partial(self.store.put_if_absent, key, parts)
        return await self.decided("put_if_absent", key, parts, attempt)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        attempt = partial(self.store.put_if_match, key, parts, etag)
        return await self.decided("put_if_match", key, parts, attempt)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        pages = self.store.list(prefix, start_after=start_after)

        async def next_page() -> Sequence[ObjectInfo] | None:
            nonlocal pages
            try:
                return await anext(pages, None)
            except StoreError:
                # A generator that has raised is at its end: begin another one behind the last row.
                pages = self.store.list(prefix, start_after=start_after)
                raise

        try:
            while page := await self.retried("list", next_page):
                start_after = page[-1].key
                yield page
        finally:
            await pages.aclose()

    async def retried(self, operation: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`; `operation` is its name in the metrics."""
        deadline = trio.current_time() + self._policy.deadline_seconds
        retries_count = 0
        while True:
            try:
                # Longer each time, so that what takes long at a slow store ends nevertheless.
                with self._reach.attempt(PATIENCE_SECONDS * 2.0**retries_count):
                    return await attempt()
            except (SlowDown, StoreUnavailable, Conflict) as exc:
                delay_seconds = self._policy.delay_seconds(retries_count, self._random)
                if trio.current_time() + delay_seconds > deadline:
                    raise
                self._metrics.retries.of(operation, outcome_of(exc)).value += 1
            retries_count += 1
            await self._reach.pause(delay_seconds)

    async def decided(
        self, operation: str, key: str, parts: Sequence[Buffer], attempt: Callable[[], Awaitable[str]]
    ) -> str:
        """Retry a conditional write, and resolve a refusal after a lost reply by reading back.

        Raises StoreUnavailable if it stays undecided.
        """
        reply_lost = False

        async def attempt_or_read_back() -> str:
            nonlocal reply_lost
            try:
                return await attempt()
            except (StoreUnavailable, trio.Cancelled):  # cancelled by `Reach.attempt`, too
                reply_lost = True
                raise
            except (PreconditionFailed, NotFound):  # what an upload that is completed is, too
                etag = await self._etag_if_ours(key, parts) if reply_lost else None
                if etag is None:
                    raise
                return etag

        try:
            return await self.retried(operation, attempt_or_read_back)
        except (SlowDown, Conflict, AccessDenied) as exc:
            if reply_lost:
                raise StoreUnavailable(f"{key}: an earlier attempt got no reply, and then: {exc}") from exc
            raise

    async def _etag_if_ours(self, key: str, parts: Sequence[Buffer]) -> str | None:
        etag = await etag_if_equal(self.store, key, parts)
        self._metrics.lost_replies.of("not_ours" if etag is None else "ours").value += 1
        return etag


READ_BACK_BYTES = 4 * 1024 * 1024  # compared between two awaits: about 1 ms
COMPARED_BYTES = 64 * 1024


async def etag_if_equal(store: ObjectStore, key: str, parts: Sequence[Buffer]) -> str | None:
    """Return the ETag of the object if it holds exactly these parts, else None. Raises StoreError."""
    try:
        found = await store.head(key)
        if found.size_bytes != size_of(parts):
            return None
        for number, expected in enumerate(cut(parts, READ_BACK_BYTES)):
            piece = await store.get_range(key, number * READ_BACK_BYTES, READ_BACK_BYTES)
            if piece.etag != found.etag or not _are_equal(expected, memoryview(piece.data)):
                return None
    except NotFound:
        return None  # deleted meanwhile: whosever it was, it is no longer there
    return found.etag


def _are_equal(expected: Sequence[Buffer], data: memoryview) -> bool:
    """Compare data with its expected parts.

    Equal CRC-32Cs would not do, as the data has CRC-32Cs of its own. Pieces are copied, as comparing memoryviews takes
    30 times as long.
    """
    position = 0
    for parts in cut(expected, COMPARED_BYTES):
        joined = b"".join(parts)
        if joined != bytes(data[position : position + len(joined)]):
            return False
        position += len(joined)
    return position == len(data)
