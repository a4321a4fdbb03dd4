"""Quotas of users, client ids and IP addresses (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafscale.client.client import Client
from kafscale.login.failures import check
from kafscale.wire.messages.configs import (
    AlterClientQuotasEntry,
    AlterClientQuotasOp,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ClientQuotasEntity,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

USER, CLIENT_ID, IP = "user", "client-id", "ip"  # types of entities
KEYS: Mapping[str, tuple[str, ...]] = {
    USER: ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"),
    CLIENT_ID: ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"),
    IP: ("connection_creation_rate",),
}


@attrs.frozen
class Quota:
    """Quotas of an entity: the names by type, None for the default of all names, and the values by key."""

    entity: Mapping[str, str | None]
    values: Mapping[str, float]


async def list_quotas(client: Client) -> list[Quota]:
    """List the quotas of all entities. Raises KafkaError, BrokerUnavailable."""
    response = await client.request(DescribeClientQuotasRequest(), DescribeClientQuotasResponse)
    check(response.error_code, "client quotas", response.error_message)
    quotas = [
        Quota(
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in sorted(entry.values, key=lambda value: value.key)},
        )
        for entry in response.entries or ()
    ]
    return sorted(quotas, key=lambda quota: [(kind, name or "") for kind, name in sorted(quota.entity.items())])


async def alter_quotas(client: Client, entity: Mapping[str, str | None], changes: Mapping[str, float | None]) -> None:
    """Set quotas of an entity, and remove those that are None. Raises KafkaError, BrokerUnavailable."""
    entry = AlterClientQuotasEntry(
        entity=[ClientQuotasEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            AlterClientQuotasOp(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in changes.items()
        ],
    )
    response = await client.request(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse)
    for result in response.entries:
        check(result.error_code, "client quota", result.error_message)
