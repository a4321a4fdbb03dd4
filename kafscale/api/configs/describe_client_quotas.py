"""DescribeClientQuotas (48, KIP-546): the quotas that were set while the broker ran.

v0  by a filter of entities
v1  flexible

The only entities are client ids and their default: without authentication there are no users, and a quota of an IP
address can't be set. What `--producer-byte-rate` and `--consumer-byte-rate` say is not an entity's, and is not listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REQUEST
from kafscale.wire.messages.describe_client_quotas import (
    DescribeClientQuotasComponent,
    DescribeClientQuotasEntity,
    DescribeClientQuotasEntry,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasValue,
)

CLIENT_ID = "client-id"
THIS_NAME, THE_DEFAULT, ANY = range(3)


def handle(services: Services, call: Call, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    try:
        is_wanted = _filter(request.components, strict=request.strict)
    except KafkaError as exc:
        return DescribeClientQuotasResponse(error_code=exc.code, error_message=exc.message)
    return DescribeClientQuotasResponse(
        entries=[
            DescribeClientQuotasEntry(
                entity=[DescribeClientQuotasEntity(entity_type=CLIENT_ID, entity_name=client_id)],
                values=[DescribeClientQuotasValue(key=key, value=value) for key, value in values.items()],
            )
            for client_id, values in services.client_quotas.all().items()
            if is_wanted(client_id)
        ]
    )


def _filter(components: Sequence[DescribeClientQuotasComponent], *, strict: bool) -> Callable[[str | None], bool]:
    """Tell whether a client id, or the default, is asked for: an entity must have every type that is named.

    With `strict` it must have no other one.
    """
    for entity_type, count in Counter(each.entity_type for each in components).items():
        if count > 1:
            raise KafkaError(INVALID_REQUEST, f"Entity type {entity_type} cannot appear more than once in the filter.")
    for each in components:
        if each.match_type not in (THIS_NAME, THE_DEFAULT, ANY):
            raise KafkaError(INVALID_REQUEST, f"Unknown match type {each.match_type}")
        if (each.match_type == THIS_NAME) != (each.match is not None):
            raise KafkaError(INVALID_REQUEST, "A name is needed to match one, and only then.")
    if any(each.entity_type != CLIENT_ID for each in components) or (strict and not components):
        return lambda client_id: False
    return lambda client_id: all(_matches(each, client_id) for each in components)


def _matches(component: DescribeClientQuotasComponent, client_id: str | None) -> bool:
    return component.match_type == ANY or component.match == client_id


API = Api(48, "DescribeClientQuotas", 0, 1, DescribeClientQuotasRequest, DescribeClientQuotasResponse, handle)
