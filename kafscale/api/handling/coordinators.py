"""How every API of groups finds out whether this broker coordinates a group, and what it answers where it does not.

NOT_COORDINATOR     it is coordinated elsewhere, or by nobody just now; clients then ask FindCoordinator
INVALID_GROUP_ID    the id is empty, which nobody can be a member of; offsets may be committed under it
"""

from __future__ import annotations

from kafscale.api.handling.services import Services
from kafscale.wire.error_codes import INVALID_GROUP_ID, NONE, NOT_COORDINATOR


def is_coordinated_here(services: Services, group_id: str) -> bool:
    """Tell whether requests about the group are for this broker."""
    node = services.assignment.coordinator(group_id)
    return node is not None and node.node_id == services.node.node_id


def coordinator_error(services: Services, group_id: str) -> int:
    """The error code of whatever is asked of a group here."""
    return NONE if is_coordinated_here(services, group_id) else NOT_COORDINATOR


def membership_error(services: Services, group_id: str) -> int:
    """The error code of whatever a member of a group asks here."""
    return coordinator_error(services, group_id) if group_id else INVALID_GROUP_ID
