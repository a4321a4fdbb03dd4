"""InitProducerId (22): an id for an idempotent producer, or id and epoch for a transactional one.

v0  producer id and epoch
v1  throttled by the client
v2  flexible
v3  a producer may name the id and epoch that it has, for a new epoch (KIP-360)
v4  may answer PRODUCER_FENCED
v5  may answer TRANSACTION_ABORTABLE (KIP-890)

As in Kafka, a producer without a transactional id always gets a new id with epoch 0. A producer with one fences earlier
producers, and their open transaction is aborted before the answer.
"""

from __future__ import annotations

import logging

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.transactions.ledger import InitProducerId
from kafscale.cluster.transactions.values import TRANSACTIONAL_ID_MAX_COUNT
from kafscale.cluster.transactions.versions import INIT_PRODUCER_ID_FENCED_VERSION, fenced_code
from kafscale.errors import KafkaError, StorageFull
from kafscale.security.acls import WRITE_IDEMPOTENTLY, WRITE_TOPIC, WRITE_TRANSACTION
from kafscale.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS, INVALID_REQUEST
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

logger = logging.getLogger(__name__)

NO_PRODUCER_ID = NO_PRODUCER_EPOCH = -1


async def handle(services: Services, call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        _check_access(services, call, request.transactional_id)
    except KafkaError as exc:
        return InitProducerIdResponse(error_code=exc.code)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return InitProducerIdResponse(error_code=INVALID_REQUEST)
    if request.transactional_id == "" or len(request.transactional_id or "") > TRANSACTIONAL_ID_MAX_COUNT:
        return InitProducerIdResponse(error_code=INVALID_REQUEST)
    try:
        if request.transactional_id is not None:
            return await _init_transactions(services, call.version, request, request.transactional_id)
        producer_id = await services.producer_ids.allocate()
    except StorageFull:
        # As Kafka without a block of ids; every client tries again.
        return InitProducerIdResponse(error_code=COORDINATOR_LOAD_IN_PROGRESS)
    except KafkaError as exc:
        return InitProducerIdResponse(error_code=exc.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _check_access(services: Services, call: Call, transactional_id: str | None) -> None:
    access = services.access
    if transactional_id is not None:
        access.check(call, WRITE_TRANSACTION, transactional_id)
    elif not access.allows(call, WRITE_IDEMPOTENTLY, tells=False) and not access.allows_some(call, WRITE_TOPIC):
        access.check(call, WRITE_IDEMPOTENTLY)


async def _init_transactions(
    services: Services, version: int, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    asked = InitProducerId(
        transactional_id=transactional_id,
        transaction_timeout_ms=request.transaction_timeout_ms,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )
    reply = await services.transactions.init_producer_id(asked)
    return InitProducerIdResponse(
        error_code=fenced_code(reply.error_code, version, INIT_PRODUCER_ID_FENCED_VERSION),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


API = Api(22, "InitProducerId", 0, 5, InitProducerIdRequest, InitProducerIdResponse, handle)
