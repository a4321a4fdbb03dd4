"""Operations that a user may not do, with the ACL that would allow it, for buttons of pages."""

from __future__ import annotations

from kafscale.client.groups import NOT_TOLD
from kafscale.security.acls import AclOperation

CLUSTER = "the cluster"


def missing_right(authorized_operations: int, operation: AclOperation, resource: str) -> str:
    """Return the missing ACL, or nothing if the user has it or the broker does not tell.

    authorized_operations: bits of a broker's answer, one for each operation.
    """
    if authorized_operations == NOT_TOLD or authorized_operations >> operation & 1:
        return ""
    return f"Needs the ACL {operation.title} on {resource}."
