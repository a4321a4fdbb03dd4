"""The limit on concurrent operations at the object store, and their order.

`StoreLimiter` counts tokens in one `trio.CapacityLimiter`. No task waits in that: each class of work has a queue in
front of it, and a free token goes to the class that `_next_line` chooses.

- The most important waiting class is served first: flushes, then fetches, then background work.
- No class starves: a waiting class that may have a token sees at most `patience_count` go to others, plus one for each
  more important class whose turn it is too.
- Background work and prefetch never hold more than their share of the allowed tokens, but always at least one.
- Prefetch and hedges don't wait: `try_acquire` gives them a token that no waiting task may use, or none.
- SlowDown lowers the allowed number below the limit (`Allowance`).

A holder of a token must not wait for another one, so a limit of 1 works. State changes are synchronous.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import attrs
import trio

from kafscale.errors import SlowDown, StoreError, StoreUnavailable
from kafscale.metrics import Counter, Sample
from kafscale.store.base import ForwardingStore, ObjectPart, ObjectStore
from kafscale.store.wrappers.metered import StoreMetrics

T = TypeVar("T")


class WorkClass(enum.Enum):
    """Classes of work at the store, most important first."""

    ACKNOWLEDGE = "acknowledge"  # flushes: a produce, or the memory and disk that produces need, wait for them
    FETCH = "fetch"  # a consumer waits, or a broker that starts
    BACKGROUND = "background"  # merge, retention, checkpoint, repair
    PREFETCH = "prefetch"  # no task waits for it, so it does not wait either


@attrs.frozen(kw_only=True)
class ClassPolicy:
    """The largest `share` of the allowed tokens, and the tokens that may go to others while the class waits."""

    share: float = 1.0
    patience_count: int = 0


POLICIES: Mapping[WorkClass, ClassPolicy] = {
    # The first has no patience of its own to lose: only a less important class whose turn it is comes before it.
    WorkClass.ACKNOWLEDGE: ClassPolicy(patience_count=2),
    WorkClass.FETCH: ClassPolicy(patience_count=4),  # so at least a fifth of all tokens, while fetches wait
    WorkClass.BACKGROUND: ClassPolicy(share=0.25, patience_count=16),
    WorkClass.PREFETCH: ClassPolicy(share=0.25),
}


@attrs.define(eq=False, repr=False)
class StoreToken:
    """A place at the store for one operation, given back at the end of its `with` block.

    It is its own borrower, so a task may have several operations. The block's error tells the limiter the store's
    answer.
    """

    work_class: WorkClass
    _limiter: StoreLimiter
    cuts_before_count: int = attrs.field(default=0, init=False)  # of the allowance, when the token was granted

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._limiter.give_back(self, error)


@attrs.frozen(kw_only=True)
class LimiterStatistics:
    """Operations at the store and waiting ones by class; the allowed number and the limit, or `math.inf`."""

    in_use: Mapping[WorkClass, int]
    waiting: Mapping[WorkClass, int]
    allowed_count: float
    limit: float

    @property
    def in_use_count(self) -> int:
        return sum(self.in_use.values())

    @property
    def waiting_count(self) -> int:
        return sum(self.waiting.values())


@attrs.define(eq=False, repr=False)
class _ClassQueue:
    """The operations of one class: the number at the store, and the waiting ones in order of arrival."""

    policy: ClassPolicy
    in_use_count: int = 0
    waiting: dict[StoreToken, trio.lowlevel.Task] = attrs.field(factory=dict)
    passed_over_count: int = 0  # tokens that others got since the first in line could have had one

    def may_take(self, allowed_count: float) -> bool:
        return self.in_use_count + 1 <= max(1.0, self.policy.share * allowed_count)

    def leave(self, token: StoreToken) -> None:
        """Remove a cancelled wait; those behind it keep the turn of the queue."""
        del self.waiting[token]
        if not self.waiting:
            self.passed_over_count = 0


@attrs.define(eq=False, repr=False)
class StoreLimiter:
    """A limit on concurrent operations; `concurrency` 0 means no limit.

    is_adaptive: whether SlowDown lowers the allowed number.
    """

    concurrency: int
    _metrics: StoreMetrics
    is_adaptive: bool = True
    allowance: Allowance = attrs.field(init=False)
    _capacity: trio.CapacityLimiter = attrs.field(init=False)
    _lines: dict[WorkClass, _ClassQueue] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.allowance = Allowance(self.concurrency or math.inf, self.is_adaptive)
        self._capacity = trio.CapacityLimiter(self.concurrency or math.inf)
        self._lines = {work_class: _ClassQueue(POLICIES[work_class]) for work_class in WorkClass}
        _register(self, self._metrics)

    async def acquire(self, work_class: WorkClass) -> StoreToken:
        """Wait for a place, behind earlier tasks of this class."""
        await trio.lowlevel.checkpoint_if_cancelled()
        started = trio.current_time()
        # Who waits may not have what is free: else it would have been given to them.
        token = self.try_acquire(work_class) or await self._wait(work_class)
        self._metrics.wait_seconds.of(work_class.value).observe(trio.current_time() - started)
        return token

    def try_acquire(self, work_class: WorkClass) -> StoreToken | None:
        """Return a token that no waiting task may have; None if none is free, or the share is used up."""
        line = self._lines[work_class]
        if self._capacity.available_tokens < 1 or not line.may_take(self.allowance.count):
            return None
        token = StoreToken(work_class, self)
        self._grant(line, token)
        return token

    def give_back(self, token: StoreToken, error: BaseException | None) -> None:
        """End an operation; its outcome adapts the allowance."""
        in_use_count = self._capacity.borrowed_tokens
        self._capacity.release_on_behalf_of(token)
        self._lines[token.work_class].in_use_count -= 1
        if isinstance(error, SlowDown):
            self.allowance.slowed_down(cuts_before_count=token.cuts_before_count, in_use_count=in_use_count)
        elif error is None or (isinstance(error, StoreError) and not isinstance(error, StoreUnavailable)):
            self.allowance.answered()
        self._capacity.total_tokens = self.allowance.count
        self._serve()

    def statistics(self) -> LimiterStatistics:
        return LimiterStatistics(
            in_use={work_class: line.in_use_count for work_class, line in self._lines.items()},
            waiting={work_class: len(line.waiting) for work_class, line in self._lines.items()},
            allowed_count=self.allowance.count,
            limit=self.allowance.limit,
        )

    async def _wait(self, work_class: WorkClass) -> StoreToken:
        line, token = self._lines[work_class], StoreToken(work_class, self)

        def leave(_: object) -> trio.lowlevel.Abort:
            # At the moment of the cancel, so that no token is granted to a task that will not take it.
            line.leave(token)
            return trio.lowlevel.Abort.SUCCEEDED

        line.waiting[token] = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(leave)
        return token

    def _serve(self) -> None:
        while self._capacity.available_tokens >= 1 and (line := self._next_line()) is not None:
            for other in self._lines.values():
                if other is not line and other.waiting and other.may_take(self.allowance.count):
                    other.passed_over_count += 1
            token = next(iter(line.waiting))
            self._grant(line, token)
            line.passed_over_count = 0
            trio.lowlevel.reschedule(line.waiting.pop(token))

    def _next_line(self) -> _ClassQueue | None:
        """Return the most important queue whose turn it is, else the most important one that may have a token."""
        waiting = [line for line in self._lines.values() if line.waiting and line.may_take(self.allowance.count)]
        return next(
            (line for line in waiting if line.passed_over_count >= line.policy.patience_count),
            waiting[0] if waiting else None,
        )

    def _grant(self, line: _ClassQueue, token: StoreToken) -> None:
        self._capacity.acquire_on_behalf_of_nowait(token)
        token.cuts_before_count = self.allowance.cuts_count
        line.in_use_count += 1


def _register(limiter: StoreLimiter, metrics: StoreMetrics) -> None:
    def by_class(read: str) -> Iterable[Sample]:
        counts: Mapping[WorkClass, int] = getattr(limiter.statistics(), read)
        return [((work_class.value,), count) for work_class, count in counts.items()]

    def allowed_count() -> float:
        return 0 if math.isinf(limiter.allowance.count) else limiter.allowance.count

    registry = metrics.registry
    registry.callback(
        "kafscale_store_in_use", "Operations at the store now, by class.", "class", samples=lambda: by_class("in_use")
    )
    registry.callback(
        "kafscale_store_waiting",
        "Operations that wait for a place at the store, by class.",
        "class",
        samples=lambda: by_class("waiting"),
    )
    # Prometheus knows +Inf, but a limit that is off reads best as the option that turned it off.
    registry.gauge(
        "kafscale_store_limit",
        "Operations allowed at once by --s3-concurrency; 0 means no limit.",
        lambda: limiter.concurrency,
    )
    registry.gauge(
        "kafscale_store_allowed", "Operations allowed at once after SlowDown answers; 0 means no limit.", allowed_count
    )


CUT_FACTOR = 0.7  # TCP Reno: 0.5, CUBIC and AWS's adaptive retries: 0.7


@attrs.define
class Allowance:
    """The number of operations that may be under way: the limit, or fewer after SlowDown.

    Additive increase, multiplicative decrease, as in TCP (RFC 5681): a SlowDown cuts it to a part of the operations
    under way, and each answer raises it by one over itself. All operations under way at a cut may be refused for the
    same reason, so only one that began after the last cut can cause the next. Without a limit (`math.inf`) nothing is
    cut.
    """

    limit: float
    is_adaptive: bool = True
    cuts_count: int = attrs.field(default=0, init=False)
    _allowed: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._allowed = self.limit

    @property
    def count(self) -> float:
        """Operations allowed at once: a whole number, or `math.inf`."""
        return self._allowed if math.isinf(self._allowed) else math.floor(self._allowed)

    def slowed_down(self, *, cuts_before_count: int, in_use_count: int) -> None:
        """Cut the allowance after a refusal; the counts are of cuts when it began, and of operations now."""
        if cuts_before_count < self.cuts_count or not self.is_adaptive or math.isinf(self.limit):
            return
        self._allowed = max(1.0, min(self._allowed, in_use_count) * CUT_FACTOR)
        self.cuts_count += 1

    def answered(self) -> None:
        """Raise the allowance after an answer, also an error."""
        if self._allowed < self.limit:
            self._allowed = min(self.limit, self._allowed + 1.0 / self._allowed)


@attrs.define(eq=False, repr=False)
class LimitedStore(ForwardingStore):
    """An `ObjectStore` whose operations each hold a token of a class of work."""

    _limiter: StoreLimiter
    _work_class: WorkClass = WorkClass.ACKNOWLEDGE

    async def perform(self, operation: str, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        with await self._limiter.acquire(self._work_class):
            return await call(*args)


@attrs.define(eq=False, repr=False)
class PrefetchStore:
    """Reads that are skipped unless a token is free at once, and not retried. Without a limiter none is skipped."""

    _store: ObjectStore
    limiter: StoreLimiter | None = None
    skipped_count: Counter = attrs.field(factory=Counter)

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart | None:
        """Return a range like `ObjectStore.get_range`, or None at once if no token is free."""
        return await self._read(lambda: self._store.get_range(key, start, length_bytes))

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart | None:
        """Return a tail like `ObjectStore.get_tail`, or None at once if no token is free."""
        return await self._read(lambda: self._store.get_tail(key, length_bytes))

    async def _read(self, read: Callable[[], Awaitable[ObjectPart]]) -> ObjectPart | None:
        if self.limiter is None:
            return await read()
        token = self.limiter.try_acquire(WorkClass.PREFETCH)
        if token is None:
            self.skipped_count.value += 1
            return None
        with token:
            return await read()
