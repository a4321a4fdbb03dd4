"""EndTxn (26): commit or abort a transaction.

v2  may answer PRODUCER_FENCED (KIP-588)
v3  flexible
v4  may answer TRANSACTION_ABORTABLE (KIP-890)
v5  raises the epoch, and returns the producer's new id and epoch
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.transactions.ledger import ProducerIdentity
from kafscale.cluster.transactions.versions import (
    END_TXN_BUMP_VERSION,
    END_TXN_FENCED_VERSION,
    fenced_code,
    transaction_version,
)
from kafscale.errors import KafkaError
from kafscale.wire.messages.transactions import EndTxnRequest, EndTxnResponse


async def handle(services: Services, call: Call, request: EndTxnRequest) -> EndTxnResponse:
    identity = ProducerIdentity(request.transactional_id, request.producer_id, request.producer_epoch)
    protocol = transaction_version(call.version, END_TXN_BUMP_VERSION)
    try:
        reply = await services.transactions.end(identity, committed=request.committed, transaction_version=protocol)
    except KafkaError as exc:
        return EndTxnResponse(error_code=exc.code)
    return EndTxnResponse(
        error_code=fenced_code(reply.error_code, call.version, END_TXN_FENCED_VERSION),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


API = Api(26, "EndTxn", 0, 5, EndTxnRequest, EndTxnResponse, handle)
