"""BrokerHeartbeat (63, KIP-631), version 0: another broker of the same bucket says that one of its incarnations runs.

Kafka's brokers send it to the controller alone. Here the controller sends it to the others, too: the answer tells that
they run. The controller is told what its sender has to do as well, and what to commit for it, in fields of our own; it
answers when that is done, with what all have to do. Version 1 has log directories that have failed (KIP-858); a broker
ends when its own has.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.wire.messages.brokers import OwnHeartbeatRequest, OwnHeartbeatResponse


async def handle(services: Services, call: Call, request: OwnHeartbeatRequest) -> OwnHeartbeatResponse:
    return await services.heard_of(request)


API = Api(63, "BrokerHeartbeat", 0, 0, OwnHeartbeatRequest, OwnHeartbeatResponse, handle)
