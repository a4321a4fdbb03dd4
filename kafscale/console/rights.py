"""Operations that a user may not do, with the ACL that would allow it, for buttons of pages."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import TypeVar

from kafscale.client.groups import NOT_TOLD
from kafscale.errors import KafkaError
from kafscale.security.acls import AclOperation
from kafscale.wire.error_codes import CLUSTER_AUTHORIZATION_FAILED

CLUSTER = "the cluster"
T = TypeVar("T")


async def unless_refused(
    asked: Awaitable[T], otherwise: T, *, codes: Collection[int] = (CLUSTER_AUTHORIZATION_FAILED,)
) -> tuple[T, str]:
    """Return an answer and no text, or for an error of `codes` `otherwise` and the error's text."""
    try:
        return await asked, ""
    except KafkaError as exc:
        if exc.code not in codes:
            raise
        return otherwise, str(exc)


def missing_right(authorized_operations: int, operation: AclOperation, resource: str) -> str:
    """Return the missing ACL, or nothing if the user has it or the broker does not tell.

    authorized_operations: bits of a broker's answer, one for each operation.
    """
    if authorized_operations == NOT_TOLD or authorized_operations >> operation & 1:
        return ""
    return f"Needs the ACL {operation.title} on {resource}."
