"""A dispatcher that refuses, delays, or loses the replies of the requests that a test names.

    faults = [RequestFault("Produce", times=3, error_code=NOT_LEADER_OR_FOLLOWER)]
    broker = Broker(settings, make_dispatcher=partial(FaultyDispatcher, faults=faults))

A request that is refused has no effect. One whose reply is lost has its effect, and ends its connection.
"""

from __future__ import annotations

import attrs
import trio

from kafscale.api import produce
from kafscale.api.cluster import metadata
from kafscale.api.handling.calls import Call
from kafscale.api.handling.gate import Gate
from kafscale.api.handling.refusals import refusal, set_errors
from kafscale.api.produce import PendingProduce
from kafscale.errors import KafkaError, ProtocolError
from kafscale.log.partition.chunks import Lease
from kafscale.server.kafka.dispatch import Dispatcher, Reply, Request
from kafscale.wire import error_codes
from kafscale.wire.messages.produce import ProduceRequest

EVERY_API = "*"


@attrs.define(eq=False, kw_only=True, repr=False)
class RequestFault:
    """What happens to the requests of one API, or of `EVERY_API`.

    times: how many to meet, None for all. Of error, delay and loss a fault has one. met_count: how many it has met.
    """

    api: str
    times: int | None = None
    error_code: int = error_codes.NONE
    delay_seconds: float = 0.0
    loses_reply: bool = False
    met_count: int = attrs.field(default=0, init=False)

    def may_meet(self, api: str) -> bool:
        """Tell whether it would happen to a request of this API now."""
        return self.api in (api, EVERY_API) and self.met_count != self.times


@attrs.define(eq=False, kw_only=True, repr=False)
class _FaultyGate(Gate):
    """While Produces are to meet a fault, they are looked at one by one."""

    faults: list[RequestFault]

    def takes_plain(self, call: Call, request: ProduceRequest, topic: str) -> bool:
        is_met = any(each.may_meet(produce.API.name) for each in self.faults)
        return not is_met and super().takes_plain(call, request, topic)


@attrs.define(eq=False, repr=False)
class FaultyDispatcher(Dispatcher):
    """`faults` is shared with whoever adds to it; it is looked at for each request."""

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
        delayed = any(each.delay_seconds and each.may_meet(request.api.name) for each in self.faults)
        return delayed or super().may_wait(request)

    async def answer(self, request: Request) -> Reply:
        for fault in list(self.faults):
            if fault.delay_seconds and fault.may_meet(request.api.name):
                fault.met_count += 1
                await trio.sleep(fault.delay_seconds)
        is_known = request.call.version <= request.api.max_version  # ApiVersions may be newer, to be negotiated
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

    async def _refuse(self, request: Request, error_code: int) -> Reply:
        """Metadata is run all the same: without the brokers in it a client would not know where to ask again."""
        row, call = self._rows[request.api.key], request.call
        message = self._decode(request)
        if request.api is metadata.API:
            response = await metadata.handle(self.services, call, message)
            response.topics = list(response.topics)  # they may be made only when they are encoded
            set_errors(response, error_code)
        else:
            response = refusal(message, row.api.response, error_code)
        row.errors.count(response)
        return await self._encoded(row, call, response, call.version)


def _refuse_produce(pending: PendingProduce, error_code: int) -> None:
    """Refuse a Produce before it is ordered, so that nothing of it gets into the log."""
    pending.refuse(KafkaError(error_code))
    pending.unchecked.clear()
    pending.incomplete = False
    set_errors(pending.response, error_code)  # also where it was refused for another reason
    for topic in pending.response.responses:
        for partition in topic.partition_responses:
            partition.base_offset = -1
