"""InitProducerId (22): an id for an idempotent producer.

v0  producer id and epoch
v1  throttled by the client
v2  flexible
v3  a producer may name the id and epoch that it has, to have the epoch bumped (KIP-360)
v4  may answer PRODUCER_FENCED
v5  may answer TRANSACTION_ABORTABLE (KIP-890)

As in Kafka, a producer without a transactional id always gets a new id with epoch 0, whatever it names. There are no
transactions yet: a transactional id is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which the Java client,
librdkafka and franz-go report at once and never retry (COORDINATOR_NOT_AVAILABLE and the like they retry for ever).
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.errors import KafkaError, StorageFull
from kafscale.wire.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    INVALID_REQUEST,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from kafscale.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_PRODUCER_ID = NO_PRODUCER_EPOCH = -1


async def handle(services: Services, call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return InitProducerIdResponse(error_code=INVALID_REQUEST)
    if request.transactional_id is not None:
        is_named = request.transactional_id != ""
        return InitProducerIdResponse(error_code=TRANSACTIONAL_ID_AUTHORIZATION_FAILED if is_named else INVALID_REQUEST)
    try:
        producer_id = await services.producer_ids.allocate()
    except StorageFull:
        # As Kafka where no block of ids is to be had; every client tries again after that.
        return InitProducerIdResponse(error_code=COORDINATOR_LOAD_IN_PROGRESS)
    except KafkaError as exc:
        return InitProducerIdResponse(error_code=exc.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


API = Api(22, "InitProducerId", 0, 5, InitProducerIdRequest, InitProducerIdResponse, handle)
