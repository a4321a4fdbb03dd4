"""UnregisterBroker (64): forget a broker that will not return (`kafka-cluster.sh unregister`).

v0  (flexible) by its id

A broker that serves, or for which partitions wait, is INVALID_REQUEST with a message that says what to do. An unknown
broker is BROKER_ID_NOT_REGISTERED. A lone broker has no registration and can't be removed.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.errors import KafkaError
from kafscale.wire.messages.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(services: Services, call: Call, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    try:
        await services.membership.unregister(request.broker_id)
    except KafkaError as exc:
        return UnregisterBrokerResponse(error_code=exc.code, error_message=exc.message)
    return UnregisterBrokerResponse()


API = Api(64, "UnregisterBroker", 0, 0, UnregisterBrokerRequest, UnregisterBrokerResponse, handle)
