"""Faults of a `BackgroundBroker`, as plain calls: of its network, its answers and its object store.

    with faults.refuse_connections(): ...                    # for a while
    faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=3)

A fault starts with the call and ends when its `times` are used up, or at the end of its block, `end` or `heal`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import attrs
import trio

from kafscale.api import produce
from kafscale.api.cluster import metadata
from kafscale.api.handling.calls import Call
from kafscale.api.handling.gate import Gate
from kafscale.api.handling.refusals import refusal, set_errors
from kafscale.api.produce import PendingProduce
from kafscale.api.table import APIS
from kafscale.errors import KafkaError, ProtocolError
from kafscale.log.partition.chunks import Lease
from kafscale.server.kafka.dispatch import Dispatcher, EncodedReply, Request
from kafscale.testing.faulty_store import FaultyStore, On, Rule
from kafscale.testing.tcp_proxy import TcpProxy
from kafscale.testing.trio_thread import TrioThread
from kafscale.wire import error_codes
from kafscale.wire.messages.records import ProduceRequest

__tracebackhide__ = True  # pytest shows the line of the test instead

EVERY_API = "*"


@attrs.define(eq=False, kw_only=True, repr=False)
class RequestFault:
    """A fault of the requests of an API, or of `EVERY_API`: an error, a delay or a lost reply.

    `times` is the number of requests to meet, None for all; `met_count` counts them.
    """

    api: str
    times: int | None = None
    error_code: int = error_codes.NONE
    delay_seconds: float = 0.0
    loses_reply: bool = False
    met_count: int = attrs.field(default=0, init=False)

    def may_meet(self, api: str) -> bool:
        """Tell whether the fault would meet a request of this API now."""
        return self.api in (api, EVERY_API) and self.met_count != self.times


@attrs.define(eq=False, kw_only=True, repr=False)
class _FaultyGate(Gate):
    """A gate that sends Produces through the general path while a fault may meet them."""

    faults: list[RequestFault]

    def takes_plain(self, call: Call, request: ProduceRequest, topic: str) -> bool:
        is_met = any(fault.may_meet(produce.API.name) for fault in self.faults)
        return not is_met and super().takes_plain(call, request, topic)


@attrs.define(eq=False, repr=False)
class FaultyDispatcher(Dispatcher):
    """A dispatcher that refuses, delays or loses the replies of requests, by a list of faults that may change.

    A refused request has no effect. A request whose reply is lost has its effect, and its connection ends.
    """

    faults: list[RequestFault] = attrs.field(factory=list, kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.services.gate = _FaultyGate(quotas=self.services.quotas, access=self.services.access, faults=self.faults)

    async def begin(self, request: Request, frame_lease: Lease | None) -> PendingProduce:
        pending = await super().begin(request, frame_lease)
        if (code := self._take_error(request)) != error_codes.NONE:
            _refuse_produce(pending, code)
        return pending

    def may_wait(self, request: Request) -> bool:
        delayed = any(fault.delay_seconds and fault.may_meet(request.api.name) for fault in self.faults)
        return delayed or super().may_wait(request)

    async def answer(self, request: Request) -> EncodedReply:
        for fault in list(self.faults):
            if fault.delay_seconds and fault.may_meet(request.api.name):
                fault.met_count += 1
                await trio.sleep(fault.delay_seconds)
        is_known = (
            request.call.version <= request.api.max_version
        )  # ApiVersions may be newer, which the client negotiates
        if request.pending is None and is_known and (code := self._take_error(request)) != error_codes.NONE:
            return await self._refuse(request, code)
        reply = await super().answer(request)
        for fault in self.faults:
            if fault.loses_reply and fault.may_meet(request.api.name):
                fault.met_count += 1
                reply.release()
                raise ProtocolError(f"the reply to {request.api.name} is lost, as a test asked for")
        return reply

    def _take_error(self, request: Request) -> int:
        for fault in self.faults:
            if fault.error_code and fault.may_meet(request.api.name):
                fault.met_count += 1
                return fault.error_code
        return error_codes.NONE

    async def _refuse(self, request: Request, error_code: int) -> EncodedReply:
        """Refuse a request. Metadata has its brokers, so that a client knows where to retry."""
        row, call = self._rows[request.api.key], request.call
        message = self._decode(request)
        if request.api is metadata.API:
            response = await metadata.handle(self.services, call, message)
            response.topics = list(response.topics)  # which may be a generator
            set_errors(response, error_code)
        else:
            response = refusal(message, row.api.response, error_code)
        row.errors.count(response)
        return await self._encoded(row, call, response, call.version)


def _refuse_produce(pending: PendingProduce, error_code: int) -> None:
    """Refuse a Produce before it is ordered, so that none of its batches gets into the log."""
    pending.refuse(KafkaError(error_code))
    pending.unchecked.clear()
    pending.incomplete = False
    set_errors(pending.response, error_code)  # even if it was refused for another reason
    for topic in pending.response.responses:
        for partition in topic.partition_responses:
            partition.base_offset = -1


T = TypeVar("T")
_CODES = {name: code for code, name in error_codes.NAMES.items()}


@attrs.define(eq=False, repr=False)
class Fault:
    """A lasting fault, as a context manager that ends it."""

    _end: Callable[[], None]
    _counts: Callable[[], int] = lambda: 0

    @property
    def met_count(self) -> int:
        """Return the number of met requests or store operations; 0 for a fault of the network."""
        return self._counts()

    def end(self) -> None:
        """End the fault; do nothing if it has ended."""
        self._end()

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


@attrs.define(eq=False, repr=False)
class BrokerFaults:
    """The faults of a broker; they survive its restarts."""

    _thread: TrioThread
    _proxy: TcpProxy
    _store: FaultyStore
    _requests: list[RequestFault]

    def __repr__(self) -> str:
        return f"<faults of the broker at port {self._proxy.port}>"

    # ---- network ----------------------------------------------------------------------------------------------

    def drop_connections(self) -> int:
        """Reset every connection; clients may connect again at once. Returns their number."""
        return self._do(self._proxy.reset)

    def half_open(self) -> int:
        """Close the broker's end of every connection without telling the clients. Returns their number."""
        return self._do(self._proxy.half_open)

    def refuse_connections(self) -> Fault:
        """Reset new connections; open ones stay."""
        return self._knobs(refusing=True)

    def freeze(self) -> Fault:
        """Hold back all bytes in both directions. Connections stay open, and nothing is lost."""
        self._do(self._proxy.freeze)
        return Fault(lambda: self._do(self._proxy.thaw))

    def slow_network(self, delay_seconds: float = 0.0, *, bytes_per_second: float = math.inf) -> Fault:
        """Add a delay each way, and limit the rate of each direction over all connections."""
        self._do(self._proxy.set_bandwidth, bytes_per_second)
        slow = self._knobs(delay_seconds=delay_seconds)

        def end() -> None:
            self._do(self._proxy.set_bandwidth, math.inf)
            slow.end()

        return Fault(end)

    # ---- answers ----------------------------------------------------------------------------------------------

    def fail(self, api: str, error: str | int, *, times: int | None = 1) -> Fault:
        """Refuse the next requests of an API with a Kafka error, without effect; `times` None for all.

        `api` is Kafka's name, such as "Produce", or "*"; `error` is a name or a code. Raises ValueError.
        """
        code = _CODES.get(error) if isinstance(error, str) else error
        if code is None or code not in error_codes.NAMES or code == error_codes.NONE:
            raise ValueError(f"{error!r} is not a Kafka error, such as 'NOT_LEADER_OR_FOLLOWER' or 6")
        return self._meet(RequestFault(api=api, times=times, error_code=code))

    def delay(self, api: str, seconds: float, *, times: int | None = None) -> Fault:
        """Delay answers. Later requests of a connection wait too; produced records are stored at once."""
        return self._meet(RequestFault(api=api, times=times, delay_seconds=seconds))

    def lose_reply(self, api: str, *, times: int | None = 1) -> Fault:
        """Perform requests, then end the connection instead of replying."""
        return self._meet(RequestFault(api=api, times=times, loses_reply=True))

    # ---- object store -----------------------------------------------------------------------------------------

    def fail_store(self, operation: str = "*", *, times: int | None = None) -> Fault:
        """Fail operations of the object store, such as `get*`, `put*`, `list` or `delete`; the broker retries them."""
        return self._rule(lambda: self._store.fail(On(operation, times=times)))

    def delay_store(self, seconds: float, operation: str = "*", *, jitter_seconds: float = 0.0) -> Fault:
        """Delay operations of the object store, by `seconds` and a random part of the jitter."""
        return self._rule(lambda: self._store.delay(On(operation), seconds, jitter_seconds=jitter_seconds))

    def heal(self) -> None:
        self._do(self._heal)

    # -----------------------------------------------------------------------------------------------------------

    def _do(self, function: Callable[..., T], *args: Any) -> T:
        async def perform() -> T:
            await trio.lowlevel.checkpoint()
            return function(*args)

        return self._thread.call(perform)

    def _knobs(self, **values: Any) -> Fault:
        def turn(values: dict[str, Any]) -> None:
            for name, value in values.items():
                setattr(self._proxy, name, value)

        self._do(turn, values)
        calm = {name: type(value)() for name, value in values.items()}
        return Fault(lambda: self._do(turn, calm))

    def _meet(self, fault: RequestFault) -> Fault:
        names = [api.name for api in APIS]
        if fault.api not in (EVERY_API, *names):
            raise ValueError(f"{fault.api!r} is not an API of the broker; allowed: {', '.join(names)}, and '*' for all")
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
