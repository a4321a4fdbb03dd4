"""AlterClientQuotas (49, KIP-546): set and remove byte rates of client ids, which act at once and stay over restarts.

v0  set and remove, of entities one by one
v1  flexible

A client id's own rate goes before the default of client ids, and that before `--producer-byte-rate` and
`--consumer-byte-rate`. What would have no effect here is refused: quotas of users and IP addresses, and
`request_percentage` and `controller_mutation_rate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kafscale.api.configs.describe_client_quotas import CLIENT_ID
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.client_quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, QuotaChange
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REQUEST, NONE
from kafscale.wire.messages.alter_client_quotas import (
    AlterClientQuotasEntity,
    AlterClientQuotasEntry,
    AlterClientQuotasOp,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
)

KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)


async def handle(services: Services, call: Call, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """Accept or refuse each entry on its own; those that are accepted take effect together."""
    results: list[AlterClientQuotasResult] = []
    changes: list[QuotaChange] = []
    async for entry in in_turns(request.entries):
        result = AlterClientQuotasResult(error_code=NONE, entity=entry.entity)
        try:
            changes.append(_change(entry))
        except KafkaError as exc:
            result.error_code, result.error_message = exc.code, exc.message
        results.append(result)
    if changes and not request.validate_only:
        try:
            await services.client_quotas.alter(changes)
        except KafkaError as exc:
            for result in results:
                if result.error_code == NONE:
                    result.error_code, result.error_message = exc.code, exc.message
    return AlterClientQuotasResponse(entries=results)


def _change(entry: AlterClientQuotasEntry) -> QuotaChange:
    """Raises KafkaError INVALID_REQUEST."""
    client_id = _client_id(entry.entity)
    values: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key not in KEYS:
            raise KafkaError(INVALID_REQUEST, f"Invalid configuration key {op.key}: this broker has {', '.join(KEYS)}")
        if op.key in values:
            raise KafkaError(INVALID_REQUEST, f"Duplicate configuration key {op.key}")
        values[op.key] = None if op.remove else _rate(op)
    return QuotaChange(client_id=client_id, values=values)


def _client_id(entity: Sequence[AlterClientQuotasEntity]) -> str | None:
    types = [each.entity_type for each in entity]
    if types != [CLIENT_ID]:
        told = " and ".join(types) or "no entity"
        raise KafkaError(INVALID_REQUEST, f"Quotas are of a {CLIENT_ID} alone, not of {told}: there are no users here")
    return entity[0].entity_name


def _rate(op: AlterClientQuotasOp) -> float:
    if not (math.isfinite(op.value) and op.value > 0):
        raise KafkaError(INVALID_REQUEST, f"Quota {op.key} must be greater than 0")
    if not op.value.is_integer():
        raise KafkaError(INVALID_REQUEST, f"{op.key} must be a whole number of bytes per second")
    return op.value


API = Api(49, "AlterClientQuotas", 0, 1, AlterClientQuotasRequest, AlterClientQuotasResponse, handle)
