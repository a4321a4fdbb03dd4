"""What the calls about access control lists share: bindings and filters in the forms that messages have."""

from __future__ import annotations

from typing import Final, Protocol

from kafscale.api.handling.services import Services
from kafscale.errors import KafkaError
from kafscale.security.acls import AclFilter
from kafscale.wire.error_codes import INVALID_REQUEST, SECURITY_DISABLED

SECURITY_IS_DISABLED: Final = KafkaError(SECURITY_DISABLED, "No Authorizer is configured.")


class AskedFilter(Protocol):
    """A filter as a request has it."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def check_enabled(services: Services) -> None:
    """Raises KafkaError SECURITY_DISABLED where no lists act."""
    if services.access.authorizer is None:
        raise SECURITY_IS_DISABLED


def filter_of(asked: AskedFilter) -> AclFilter:
    """Raises KafkaError INVALID_REQUEST for what is not known."""
    found = AclFilter(
        resource_type=asked.resource_type_filter,
        pattern_type=asked.pattern_type_filter,
        resource_name=asked.resource_name_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=asked.operation,
        permission=asked.permission_type,
    )
    if found.is_unknown:
        raise KafkaError(INVALID_REQUEST, "The filter contains unknown elements.")
    return found
