"""What can go wrong with a `BackgroundBroker`, as plain calls: its network, its answers, and its object store.

    faults.drop_connections()                                # now
    with faults.refuse_connections(): ...                    # for a while
    faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=3)
    faults.lose_reply("Produce")                             # the record is stored, and nobody is told
    with faults.delay("Fetch", 0.5) as slow: ...
    assert slow.met_count

A fault begins with the call and lasts until its `times` are used up, its block or `end`, or `heal`, whichever is first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import attrs
import trio

from kafscale.api.table import APIS
from kafscale.testing.faulty_dispatcher import EVERY_API, RequestFault
from kafscale.testing.faulty_store import FaultyStore, On, Rule
from kafscale.testing.tcp_proxy import TcpProxy
from kafscale.testing.trio_thread import TrioThread
from kafscale.wire import error_codes

T = TypeVar("T")
_CODES = {name: code for code, name in error_codes.NAMES.items()}


@attrs.define(eq=False, repr=False)
class Fault:
    """One that lasts; a context manager that ends it."""

    _end: Callable[[], None]
    _counts: Callable[[], int] = lambda: 0

    @property
    def met_count(self) -> int:
        """Return how many requests, or operations of the store, it has met; 0 for a fault of the network."""
        return self._counts()

    def end(self) -> None:
        """End it; nothing if it has ended."""
        self._end()

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


@attrs.define(eq=False, repr=False)
class BrokerFaults:
    """The knobs of one broker; they stay as they are over its restarts."""

    _thread: TrioThread
    _proxy: TcpProxy
    _store: FaultyStore
    _requests: list[RequestFault]

    def __repr__(self) -> str:
        return f"<faults of the broker at port {self._proxy.port}>"

    # ---- network ----------------------------------------------------------------------------------------------

    def drop_connections(self) -> int:
        """Reset every connection. Clients may connect again at once. Returns how many there were."""
        return self._do(self._proxy.reset)

    def half_open(self) -> int:
        """Take the broker's end from every connection, and tell no client. Returns how many there were."""
        return self._do(self._proxy.half_open)

    def refuse_connections(self) -> Fault:
        """Reset new connections; those that are open stay."""
        return self._knobs(refusing=True)

    def freeze(self) -> Fault:
        """Let nothing pass in either direction. All connections stay open, and nothing is lost."""
        self._do(self._proxy.freeze)
        return Fault(lambda: self._do(self._proxy.thaw))

    def slow_network(self, delay_seconds: float = 0.0, *, bytes_per_second: float = math.inf) -> Fault:
        """Add a delay each way, and limit the rate of each direction, over all connections together."""
        self._do(self._proxy.set_bandwidth, bytes_per_second)
        slow = self._knobs(delay_seconds=delay_seconds)

        def end() -> None:
            self._do(self._proxy.set_bandwidth, math.inf)
            slow.end()

        return Fault(end)

    # ---- answers ----------------------------------------------------------------------------------------------

    def fail(self, api: str, error: str | int, *, times: int | None = 1) -> Fault:
        """Refuse the next requests of an API with one of Kafka's errors, without effect; `times` None for all.

        api: as Kafka spells it, such as "Produce", or "*". error: its name or its code. Raises ValueError.
        """
        code = _CODES.get(error) if isinstance(error, str) else error
        if code is None or code not in error_codes.NAMES or code == error_codes.NONE:
            raise ValueError(f"Kafka has no error {error!r}, such as 'NOT_LEADER_OR_FOLLOWER' or 6")
        return self._meet(RequestFault(api=api, times=times, error_code=code))

    def delay(self, api: str, seconds: float, *, times: int | None = None) -> Fault:
        """Answer later. A connection's later requests wait too; what is produced meanwhile is stored at once."""
        return self._meet(RequestFault(api=api, times=times, delay_seconds=seconds))

    def lose_reply(self, api: str, *, times: int | None = 1) -> Fault:
        """Do what is asked, then end the connection instead of answering."""
        return self._meet(RequestFault(api=api, times=times, loses_reply=True))

    # ---- object store -----------------------------------------------------------------------------------------

    def fail_store(self, operation: str = "*", *, times: int | None = None) -> Fault:
        """Fail operations of the object store, which the broker retries: `get*`, `put*`, `list`, `delete`."""
        return self._rule(lambda: self._store.fail(On(operation, times=times)))

    def delay_store(self, seconds: float, operation: str = "*", *, jitter_seconds: float = 0.0) -> Fault:
        """Make operations of the object store slow, each by a random part of the jitter more."""
        return self._rule(lambda: self._store.delay(On(operation), seconds, jitter_seconds=jitter_seconds))

    def heal(self) -> None:
        """End every fault."""
        self._do(self._heal)

    # -----------------------------------------------------------------------------------------------------------

    def _do(self, function: Callable[..., T], *args: Any) -> T:
        async def perform() -> T:
            await trio.lowlevel.checkpoint()
            return function(*args)

        return self._thread.call(perform)

    def _knobs(self, **values: Any) -> Fault:
        """Set attributes of the proxy, until the fault ends."""

        def turn(values: dict[str, Any]) -> None:
            for name, value in values.items():
                setattr(self._proxy, name, value)

        self._do(turn, values)
        calm = {name: type(value)() for name, value in values.items()}
        return Fault(lambda: self._do(turn, calm))

    def _meet(self, fault: RequestFault) -> Fault:
        names = [each.name for each in APIS]
        if fault.api not in (EVERY_API, *names):
            raise ValueError(f"the broker has no API {fault.api!r}, only {', '.join(names)}, and '*' for all")
        self._do(self._requests.append, fault)
        return Fault(lambda: self._do(_discard, self._requests, fault), lambda: fault.met_count)

    def _rule(self, make: Callable[[], Rule]) -> Fault:
        rule = self._do(make)
        return Fault(lambda: self._do(_discard, self._store.rules, rule), lambda: rule.met_count)

    def _heal(self) -> None:
        self._requests.clear()
        self._store.heal()
        self._proxy.refusing, self._proxy.delay_seconds = False, 0.0
        self._proxy.set_bandwidth(math.inf)
        self._proxy.thaw()


def _discard(items: list[T], item: T) -> None:
    if item in items:
        items.remove(item)
