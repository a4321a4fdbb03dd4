"""Who may commit a consumer group's offsets, and read them: the group's members, at the epoch that they are at."""

from __future__ import annotations

import attrs

from kafscale.cluster.groups.consumer.state import GroupState
from kafscale.wire import error_codes

# The first version of OffsetCommit and OffsetFetch whose generation may be a member epoch.
MEMBER_EPOCH_SINCE = 9


@attrs.frozen(kw_only=True)
class OffsetAccess:
    """Who says to be whom. An id of None, or an epoch of -1, is not said: by an administrator, or an old client."""

    member_id: str | None
    member_epoch: int
    instance_id: str | None = None
    version: int = MEMBER_EPOCH_SINCE
    is_transactional: bool = False


def check_commit(state: GroupState, access: OffsetAccess) -> int:
    """Return the error code for whoever commits offsets."""
    if access.member_epoch < 0 and not state.members:
        return error_codes.NONE
    says_nothing = not access.member_id and access.instance_id is None and access.member_epoch == -1
    if access.is_transactional and says_nothing:
        return error_codes.NONE
    member = state.members.get(access.member_id or "")
    if member is None:
        return error_codes.UNKNOWN_MEMBER_ID
    is_classic = member.uses_classic_protocol
    if not access.is_transactional and not is_classic and access.version < MEMBER_EPOCH_SINCE:
        return error_codes.UNSUPPORTED_VERSION
    if member.member_epoch == access.member_epoch:
        return error_codes.NONE
    # A transactional producer knows of generations only.
    return error_codes.ILLEGAL_GENERATION if is_classic or access.is_transactional else error_codes.STALE_MEMBER_EPOCH


def check_fetch(state: GroupState, access: OffsetAccess) -> int:
    """Return the error code for whoever reads committed offsets."""
    if access.member_id is None and access.member_epoch < 0:
        return error_codes.NONE
    member = state.members.get(access.member_id or "")
    if member is None:
        return error_codes.UNKNOWN_MEMBER_ID
    if member.member_epoch == access.member_epoch:
        return error_codes.NONE
    return error_codes.ILLEGAL_GENERATION if member.uses_classic_protocol else error_codes.STALE_MEMBER_EPOCH
