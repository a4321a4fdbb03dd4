"""DescribeClientQuotas (48, KIP-546): the quotas that were set while the broker ran.

v0  by a filter of entities
v1  flexible

An entity has a client id, or is the default of all that have none of their own. A filter may name Kafka's other types
too: there are no quotas of users, who do not authenticate, and none of IP addresses. What `--producer-byte-rate` and
`--consumer-byte-rate` say is not an entity's, and is not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REQUEST, UNSUPPORTED_VERSION
from kafscale.wire.messages.describe_client_quotas import (
    DescribeClientQuotasComponent,
    DescribeClientQuotasEntity,
    DescribeClientQuotasEntry,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasValue,
)

CLIENT_ID: Final = "client-id"
USER: Final = "user"
IP: Final = "ip"
THIS_NAME, THE_DEFAULT, ANY = range(3)
_MATCHES: Final = {THIS_NAME: "MATCH_TYPE_EXACT", THE_DEFAULT: "MATCH_TYPE_DEFAULT", ANY: "MATCH_TYPE_SPECIFIED"}

Filter = Mapping[str, DescribeClientQuotasComponent]  # by entity type


def handle(services: Services, call: Call, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    try:
        is_wanted = _predicate(_filter(request.components), strict=request.strict)
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


def _filter(components: Sequence[DescribeClientQuotasComponent]) -> Filter:
    """Check the components as Kafka does. Raises KafkaError at the first that is wrong, so at the fourth at the latest.

    INVALID_REQUEST, or UNSUPPORTED_VERSION of a type that Kafka does not know.
    """
    found: dict[str, DescribeClientQuotasComponent] = {}
    for component in components:
        entity_type = component.entity_type
        if not entity_type:
            raise KafkaError(INVALID_REQUEST, "Invalid empty entity type.")
        if entity_type in found:
            raise KafkaError(INVALID_REQUEST, f"Entity type {entity_type} cannot appear more than once in the filter.")
        if entity_type not in (CLIENT_ID, USER, IP):
            raise KafkaError(UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}")
        _check_match(component)
        found[entity_type] = component
    if IP in found and len(found) > 1:
        raise KafkaError(
            INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component.",
        )
    return found


def _check_match(component: DescribeClientQuotasComponent) -> None:
    match = _MATCHES.get(component.match_type)
    if match is None:
        raise KafkaError(INVALID_REQUEST, f"Unknown match type {component.match_type}")
    if component.match_type == THIS_NAME:
        if component.match is None:
            raise KafkaError(INVALID_REQUEST, f"Request specified {match}, but set match string to null.")
    elif component.match is not None:
        raise KafkaError(INVALID_REQUEST, f"Request specified {match}, but also specified a match string.")


def _predicate(by_type: Filter, *, strict: bool) -> Callable[[str | None], bool]:
    """Tell whether a client id, or the default, is asked for: an entity must have every type that is named.

    With `strict` it must have no other one.
    """
    if by_type.keys() - {CLIENT_ID} or (strict and not by_type):
        return lambda client_id: False
    component = by_type.get(CLIENT_ID)
    if component is None or component.match_type == ANY:
        return lambda client_id: True
    name = component.match
    return lambda client_id: client_id == name


API = Api(48, "DescribeClientQuotas", 0, 1, DescribeClientQuotasRequest, DescribeClientQuotasResponse, handle)
