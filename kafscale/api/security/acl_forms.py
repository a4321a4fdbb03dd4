"""Bindings and filters of access control lists as messages have them."""

from __future__ import annotations

from typing import Final

from kafscale.api.handling.services import Services
from kafscale.errors import KafkaError
from kafscale.security.acls import AclFilter
from kafscale.wire.error_codes import INVALID_REQUEST, SECURITY_DISABLED
from kafscale.wire.messages.security import DeleteAclsFilter

SECURITY_IS_DISABLED: Final = KafkaError(SECURITY_DISABLED, "No Authorizer is configured.")


def check_enabled(services: Services) -> None:
    if services.access.authorizer is None:
        raise SECURITY_IS_DISABLED


def filter_of(asked: DeleteAclsFilter) -> AclFilter:
    """Return the filter of a message. Raises KafkaError INVALID_REQUEST for an unknown element."""
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
