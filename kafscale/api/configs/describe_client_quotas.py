"""DescribeClientQuotas (48, KIP-546): the quotas that AlterClientQuotas has set.

v0  by a filter of entities
v1  flexible

An entity has a user, a client id, both, or an IP address; a name may be the default of all without a quota of their
own. `--producer-byte-rate` and `--consumer-byte-rate` have no entity and are not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.client_quotas import CLIENT_ID, DEFAULT, IP, USER, Name, QuotaEntity
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REQUEST, UNSUPPORTED_VERSION
from kafscale.wire.messages.configs import (
    ClientQuotasEntity,
    DescribeClientQuotasComponent,
    DescribeClientQuotasEntry,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasValue,
)

THIS_NAME, THE_DEFAULT, ANY = range(3)
_MATCHES: Final = {THIS_NAME: "MATCH_TYPE_EXACT", THE_DEFAULT: "MATCH_TYPE_DEFAULT", ANY: "MATCH_TYPE_SPECIFIED"}

KAFKAS_ORDER: Final = (CLIENT_ID, USER, IP)  # of an entity's components in an answer

Filter = Mapping[str, DescribeClientQuotasComponent]  # by entity type


def handle(services: Services, call: Call, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    try:
        is_wanted = _predicate(_filter(request.components), strict=request.strict)
    except KafkaError as exc:
        return DescribeClientQuotasResponse(error_code=exc.code, error_message=exc.message)
    return DescribeClientQuotasResponse(
        entries=[
            DescribeClientQuotasEntry(
                entity=[
                    ClientQuotasEntity(entity_type=kind, entity_name=None if name is DEFAULT else name)
                    for kind in KAFKAS_ORDER
                    if (name := entity.names.get(kind)) is not None
                ],
                values=[DescribeClientQuotasValue(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in services.client_quotas.all().items()
            if is_wanted(entity)
        ]
    )


def _filter(components: Sequence[DescribeClientQuotasComponent]) -> Filter:
    """Check the components as Kafka does. Raises KafkaError for the first invalid one, so the fourth at the latest."""
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


def _predicate(by_type: Filter, *, strict: bool) -> Callable[[QuotaEntity], bool]:
    """Return a function that tells whether an entity has all types of the filter, and with `strict` no others."""
    wanted = {entity_type: _name(component) for entity_type, component in by_type.items()}

    def is_wanted(entity: QuotaEntity) -> bool:
        names = entity.names
        if strict and len(names) != len(wanted):
            return False
        return all(kind in names and name in (None, names[kind]) for kind, name in wanted.items())

    return is_wanted


def _name(component: DescribeClientQuotasComponent) -> Name | None:
    if component.match_type == ANY:
        return None
    return DEFAULT if component.match is None else component.match


API = Api(48, "DescribeClientQuotas", 0, 1, DescribeClientQuotasRequest, DescribeClientQuotasResponse, handle)
