"""AlterClientQuotas (49, KIP-546): set and remove quotas of users, client ids and IP addresses. They act at once.

v0  set and remove, of entities one by one
v1  flexible

Users and client ids, or both, have `producer_byte_rate`, `consumer_byte_rate`, `request_percentage` and
`controller_mutation_rate`; IP addresses have `connection_creation_rate`. `kafscale.cluster.registries.client_quotas`
tells which one applies to a client. All have precedence over `--producer-byte-rate` and `--consumer-byte-rate`. An
address is written as numbers: host names, which Kafka's brokers look up, are refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from kafscale.api.handling.calls import Api, Call, check_batch_size
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.client_quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Name,
    QuotaChange,
    QuotaEntity,
)
from kafscale.concurrency.turns import in_turns
from kafscale.config import canonical_ip
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REQUEST, NONE
from kafscale.wire.messages.configs import (
    AlterClientQuotasEntry,
    AlterClientQuotasOp,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
    ClientQuotasEntity,
)

WHOLE_TOLERANCE: Final = 1e-6  # Kafka's
NAME_MAX_LENGTH: Final = 1000  # of a user or client id with a quota. Kafka: 32,767


@attrs.frozen
class _ValueKind:
    name: str
    most: float
    is_whole: bool = True


_LONG: Final = _ValueKind("LONG", 2**63 - 1)
_INT: Final = _ValueKind("INT", 2**31 - 1)
_DOUBLE: Final = _ValueKind("DOUBLE", math.inf, is_whole=False)
CLIENT_KEYS: Final[Mapping[str, _ValueKind]] = {
    PRODUCER_BYTE_RATE: _LONG,
    CONSUMER_BYTE_RATE: _LONG,
    REQUEST_PERCENTAGE: _DOUBLE,
    CONTROLLER_MUTATION_RATE: _DOUBLE,
}
IP_KEYS: Final[Mapping[str, _ValueKind]] = {CONNECTION_CREATION_RATE: _INT}


async def handle(services: Services, call: Call, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """Accept or refuse each entry by itself; the accepted ones take effect together."""
    results: list[AlterClientQuotasResult] = []
    changes: dict[QuotaEntity, QuotaChange] = {}
    change_count = sum(max(1, len(entry.ops)) for entry in request.entries)
    async for entry in in_turns(request.entries):
        result = AlterClientQuotasResult(error_code=NONE, entity=entry.entity)
        try:
            check_batch_size(change_count)
            change = _change(entry)
            if change.entity in changes:
                raise KafkaError(INVALID_REQUEST, f"Ignoring duplicate entity {_shown(entry.entity)}")
            changes[change.entity] = change
        except KafkaError as exc:
            result.error_code, result.error_message = exc.code, exc.message
        results.append(result)
    if changes and not request.validate_only:
        try:
            await services.client_quotas.alter(list(changes.values()))
        except KafkaError as exc:
            for result in results:
                if result.error_code == NONE:
                    result.error_code, result.error_message = exc.code, exc.message
    return AlterClientQuotasResponse(entries=results)


def _change(entry: AlterClientQuotasEntry) -> QuotaChange:
    twice = [key for key, count in Counter(op.key for op in entry.ops).items() if count > 1]
    if twice:
        raise KafkaError(
            INVALID_REQUEST, f"Duplicate quota key {twice[0]} not updating quota for this entity {_shown(entry.entity)}"
        )
    entity = _entity(entry.entity)
    keys = CLIENT_KEYS if entity.ip is None else IP_KEYS
    return QuotaChange(entity=entity, values={op.key: None if op.remove else _value(op, keys) for op in entry.ops})


def _entity(parts: Sequence[ClientQuotasEntity]) -> QuotaEntity:
    names: dict[str, Name] = {}
    for part in parts:
        entity_type, name = part.entity_type, part.entity_name
        if entity_type in names:
            raise KafkaError(INVALID_REQUEST, f"Invalid client quota entity, duplicate entity entry {entity_type}")
        if entity_type not in (USER, CLIENT_ID, IP):
            raise KafkaError(INVALID_REQUEST, f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise KafkaError(INVALID_REQUEST, f"Empty {entity_type} not supported")
        if name is not None and len(name) > NAME_MAX_LENGTH:
            raise KafkaError(INVALID_REQUEST, f"A {entity_type} with a quota has at most {NAME_MAX_LENGTH} characters")
        names[entity_type] = DEFAULT if name is None else name
    if not names:
        raise KafkaError(INVALID_REQUEST, "Invalid empty client quota entity")
    if IP in names and len(names) > 1:
        raise KafkaError(
            INVALID_REQUEST, "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
        )
    if (address := names.get(IP, DEFAULT)) is not DEFAULT:
        try:
            names[IP] = canonical_ip(address)
        except ValueError as exc:
            raise KafkaError(INVALID_REQUEST, f"{address} is not a valid IP") from exc
    return QuotaEntity.of(names)


def _value(op: AlterClientQuotasOp, keys: Mapping[str, _ValueKind]) -> float:
    key, value, kind = op.key, op.value, keys.get(op.key)
    if kind is None:
        raise KafkaError(INVALID_REQUEST, f"Invalid configuration key {key}")
    if not value > 0:  # NaN is not either
        raise KafkaError(INVALID_REQUEST, f"Quota {key} must be greater than 0")
    if value > kind.most or math.isinf(value):
        raise KafkaError(INVALID_REQUEST, f"Proposed value for {key} is too large for a {kind.name}.")
    if kind.is_whole and value % 1.0 > WHOLE_TOLERANCE:
        raise KafkaError(INVALID_REQUEST, f"{key} cannot be a fractional value.")
    return value


def _shown(entity: Sequence[ClientQuotasEntity]) -> str:
    names = ", ".join(f"{part.entity_type}={part.entity_name}" for part in entity)
    return f"ClientQuotaEntity(entries={{{names}}})"


API = Api(49, "AlterClientQuotas", 0, 1, AlterClientQuotasRequest, AlterClientQuotasResponse, handle)
