"""An object store that fails on demand, around any other one.

A fault is a rule: the operations that it meets, and its action. Rules apply in the order of their creation: those
before the effect, then the effect, then those after it.

    store = FaultyStore(MemoryStore())
    store.fail(On("put*", "*.kfs", times=3), SlowDown)      # three uploads are refused
    gate = store.hold(On("put*", "*.index"))                # uploads hang until gate.open()
    store.page_max_count = 2                                # listings of many pages, from the state at the first

Waits are trio's, so that latency takes no time with an autojump clock.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from typing import Any, TypeVar

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import Conflict, SlowDown, StoreError, StoreUnavailable
from kafscale.store.base import LIST_PAGE_MAX_COUNT, ForwardingStore, ObjectInfo, ObjectPart

T = TypeVar("T")


@attrs.frozen
class StoreCall:
    """An operation, and its keys: several for a delete; a listing's is its prefix, and each page is an operation."""

    operation: str
    keys: tuple[str, ...]


@attrs.frozen
class On:
    """The operations that a rule meets: `fnmatch` patterns of the operation and any of its keys.

    `skip` operations pass first; `times` are met, None for all; each with `probability`.
    """

    operation: str = "*"
    key: str = "*"
    skip: int = attrs.field(default=0, kw_only=True)
    times: int | None = attrs.field(default=None, kw_only=True)
    probability: float = attrs.field(default=1.0, kw_only=True)

    def matches(self, call: StoreCall) -> bool:
        if self.operation != "*" and not fnmatchcase(call.operation, self.operation):
            return False
        return bool(call.keys) if self.key == "*" else any(fnmatchcase(key, self.key) for key in call.keys)


@attrs.define(eq=False, repr=False)
class Rule:
    """An action on the operations that `on` describes; `met_count` counts them."""

    on: On
    act: Callable[[StoreCall], Awaitable[None]]
    after_effect: bool = False
    truncates: bool = False
    met_count: int = attrs.field(default=0, init=False)
    _skipped_count: int = attrs.field(default=0, init=False)

    def meets(self, call: StoreCall, random: Random) -> bool:
        """Tell whether the rule meets this operation, and count it."""
        if self.met_count == self.on.times or not self.on.matches(call):
            return False
        if self._skipped_count < self.on.skip:
            self._skipped_count += 1
            return False
        if self.on.probability < 1.0 and random.random() >= self.on.probability:
            return False
        self.met_count += 1
        return True


@attrs.define(eq=False, repr=False)
class StoreGate:
    arrived_count: int = attrs.field(default=0, init=False)
    _opened: trio.Event = attrs.field(factory=trio.Event, init=False)
    _arrival: Signal = attrs.field(factory=Signal, init=False)

    def open(self) -> None:
        self._opened.set()

    async def wait_arrived(self, count: int = 1) -> None:
        """Wait until `count` operations have come to the gate."""
        while self.arrived_count < count:
            await self._arrival.wait()

    async def wait_opened(self) -> None:
        self.arrived_count += 1
        self._arrival.wake()
        await self._opened.wait()


@attrs.define(eq=False, repr=False)
class FaultyStore(ForwardingStore):
    """An `ObjectStore` with faults. `calls` has all attempted operations, in order."""

    random: Random = attrs.field(factory=lambda: Random(0))
    page_max_count: int = LIST_PAGE_MAX_COUNT
    rules: list[Rule] = attrs.field(factory=list, init=False)
    calls: list[StoreCall] = attrs.field(factory=list, init=False)

    def rule(self, on: On, act: Callable[[StoreCall], Awaitable[None]], *, after_effect: bool = False) -> Rule:
        """Await `act` for these operations, before or after their effect; they raise its exceptions."""
        self.rules.append(Rule(on, act, after_effect))
        return self.rules[-1]

    def fail(self, on: On, error: type[StoreError] = StoreUnavailable) -> Rule:
        return self.rule(on, partial(_fail, error))

    def lose_reply(self, on: On, error: type[StoreError] = StoreUnavailable) -> Rule:
        return self.rule(on, partial(_fail, error), after_effect=True)

    def delay(self, on: On, seconds: float, *, jitter_seconds: float = 0.0, after_effect: bool = False) -> Rule:
        """Wait `seconds`, and a random part of `jitter_seconds`."""

        async def act(call: StoreCall) -> None:
            await trio.sleep(seconds + self.random.uniform(0, jitter_seconds))

        return self.rule(on, act, after_effect=after_effect)

    def truncate(self, on: On) -> Rule:
        """Answer with a random prefix of the requested bytes."""
        self.rules.append(Rule(on, _pass, truncates=True))
        return self.rules[-1]

    def hold(self, on: On, *, after_effect: bool = False) -> StoreGate:
        """Hold operations until the gate is opened; after the effect it holds replies."""
        gate = StoreGate()

        async def act(call: StoreCall) -> None:
            await gate.wait_opened()

        self.rule(on, act, after_effect=after_effect)
        return gate

    def unreliable(self, probability: float, *, delay_seconds: float = 0.1) -> None:
        """Add every kind of failure, each with a share of `probability`, and random delays."""
        everything = On()
        share = attrs.evolve(everything, probability=probability / 4)
        self.delay(everything, 0.0, jitter_seconds=delay_seconds)
        self.fail(share, StoreUnavailable)
        self.fail(share, SlowDown)
        self.fail(attrs.evolve(share, operation="put_if_*"), Conflict)
        self.delay(everything, 0.0, jitter_seconds=delay_seconds, after_effect=True)
        self.lose_reply(share)

    def end(self, rule: Rule) -> None:
        if rule in self.rules:
            self.rules.remove(rule)

    def heal(self) -> None:
        """Remove all rules. Gates hold their operations until they are opened."""
        self.rules.clear()

    def count(self, operation: str = "*", key: str = "*") -> int:
        return sum(map(On(operation, key).matches, self.calls))

    async def perform(self, operation: str, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Perform an operation under the rules; its first argument is a key or, of a delete, the keys."""
        keys = args[0] if operation == "delete" else args[:1]
        return await self._perform(StoreCall(operation, tuple(keys)), partial(call, *args))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        call = StoreCall("list", (prefix,))
        async with aclosing(self.store.list(prefix, start_after=start_after)) as pages:
            while page := await self._perform(call, partial(anext, pages, None)):
                yield page[: self.page_max_count]
                for start in range(self.page_max_count, len(page), self.page_max_count):
                    yield await self._perform(call, partial(_slice, page, start, self.page_max_count))

    async def _perform(self, call: StoreCall, effect: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(call)
        await self._apply(call, after_effect=False)
        try:
            result = await effect()
        except StoreError:  # a refusal is a reply too
            await self._apply(call, after_effect=True)
            raise
        await self._apply(call, after_effect=True)
        return self._truncated(call, result) if isinstance(result, ObjectPart) else result

    def _truncated(self, call: StoreCall, part: ObjectPart) -> Any:
        if any(rule.truncates and rule.meets(call, self.random) for rule in self.rules) and part.data:
            return attrs.evolve(part, data=memoryview(part.data)[: self.random.randrange(len(part.data))])
        return part

    async def _apply(self, call: StoreCall, *, after_effect: bool) -> None:
        for rule in tuple(self.rules):
            if rule.after_effect == after_effect and not rule.truncates and rule.meets(call, self.random):
                await rule.act(call)


async def _fail(error: type[StoreError], call: StoreCall) -> None:
    await trio.lowlevel.checkpoint()
    raise error(f"injected into {call.operation} of {' '.join(call.keys)}")


async def _pass(call: StoreCall) -> None:
    await trio.lowlevel.checkpoint()


async def _slice(page: Sequence[ObjectInfo], start: int, count: int) -> Sequence[ObjectInfo]:
    await trio.lowlevel.checkpoint()
    return page[start : start + count]
