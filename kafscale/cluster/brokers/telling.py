"""Tells single brokers at once that what concerns them is committed: by a heartbeat that waits for no turn.

Who is to lead a partition from now on looks at the metadata then, as nobody leads it until it has seen that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import attrs
import trio

from kafscale.cluster.brokers.calls import BrokerCalls
from kafscale.cluster.brokers.heartbeats import heartbeat
from kafscale.concurrency.signals import Signal
from kafscale.errors import BrokerUnavailable, KafkaError, ProtocolError
from kafscale.wire.messages.broker_heartbeat import BrokerHeartbeatResponse


@attrs.define(eq=False, kw_only=True, repr=False)
class Telling:
    """Speaks for an incarnation of broker `broker_id`; `run` it. `revision` is that of the metadata, as known here.

    Who can't be told finds out by itself soon.
    """

    broker_id: int
    incarnation: int
    calls: BrokerCalls
    revision: Callable[[], int]
    _untold: set[int] = attrs.field(factory=set, init=False)
    _asking: set[int] = attrs.field(factory=set, init=False)
    _more: Signal = attrs.field(factory=Signal, init=False)

    def tell(self, broker_id: int) -> None:
        """Have a broker look at the metadata, if it does not know what is known here."""
        self._untold.add(broker_id)
        self._more.set()

    async def run(self) -> None:
        """Tell until cancelled; each broker with one request at a time, however much there is to tell."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._more.wait()
                self._more.clear()
                for broker_id in self._untold - self._asking:
                    self._asking.add(broker_id)
                    nursery.start_soon(self._tell, broker_id)

    async def _tell(self, broker_id: int) -> None:
        while broker_id in self._untold:
            self._untold.discard(broker_id)
            request = heartbeat(self.broker_id, self.incarnation, self.revision())
            with suppress(BrokerUnavailable, ProtocolError, KafkaError):
                await self.calls.ask(broker_id, request, BrokerHeartbeatResponse)
        self._asking.discard(broker_id)
