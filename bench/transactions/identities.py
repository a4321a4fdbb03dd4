"""Gets ids for producers: as any client does, before it is measured what they send."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from bench.frames import CLIENT_ID
from bench.transactions.frames import Producing
from kafscale.client.client import connect
from kafscale.config import Address
from kafscale.errors import KafkaError
from kafscale.wire import error_codes
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

TIMEOUT_MS = 60_000
WITHIN_SECONDS = 60.0  # Kafka makes __transaction_state when it is first asked for
PAUSE_SECONDS = 0.1
AGAIN = {
    error_codes.COORDINATOR_LOAD_IN_PROGRESS,
    error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.NOT_COORDINATOR,
    error_codes.CONCURRENT_TRANSACTIONS,  # of what an earlier load has left
}


def identities(address: Address, transactional_ids: Sequence[str | None]) -> Sequence[Producing]:
    """Return who these are from now on; None is an idempotent producer without transactions. Raises KafkaError."""
    return trio.run(_identities, address, transactional_ids)


async def _identities(address: Address, transactional_ids: Sequence[str | None]) -> Sequence[Producing]:
    async with connect(address, CLIENT_ID) as client:
        found = []
        with trio.fail_after(WITHIN_SECONDS):
            for transactional_id in transactional_ids:
                if transactional_id is not None:
                    await client.transaction_coordinator(transactional_id)
                request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
                response = await client.request(request, InitProducerIdResponse)
                while response.error_code in AGAIN:
                    await trio.sleep(PAUSE_SECONDS)
                    response = await client.request(request, InitProducerIdResponse)
                if response.error_code != error_codes.NONE:
                    raise KafkaError(response.error_code, f"InitProducerId of {transactional_id}")
                found.append(Producing(response.producer_id, response.producer_epoch))
        return found
