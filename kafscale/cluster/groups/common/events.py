"""What goes into a group's state machine, and what comes out of it: values only.

Error codes are those of `kafscale.wire.error_codes`. Bytes are the members' own: no broker looks into an assignment,
and into a member's metadata only for the topics that it subscribes to.
"""

from __future__ import annotations

import attrs

from kafscale.wire import error_codes

UNKNOWN_MEMBER_ID = ""  # "I have no id yet"
NO_GENERATION = -1
CONSUMER_PROTOCOL_TYPE = "consumer"


@attrs.frozen
class GroupProtocol:
    """One way of sharing out work that a member knows (an assignor's name), and what it says about itself for it."""

    name: str
    metadata: bytes


@attrs.frozen(kw_only=True)
class Join:
    """A JoinGroup request."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    member_id_required: bool = False  # the client knows MEMBER_ID_REQUIRED (version 4, KIP-394)
    can_skip_assignment: bool = False  # the client knows `skip_assignment` (version 9, KIP-814)
    reason: str = "not provided"


@attrs.frozen(kw_only=True)
class JoinedMember:
    """What the leader is told of each member."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@attrs.frozen(kw_only=True)
class JoinResult:
    error_code: int = error_codes.NONE
    member_id: str = UNKNOWN_MEMBER_ID
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()  # for the leader only


@attrs.frozen(kw_only=True)
class Identity:
    """A member names itself by this in everything that it sends after joining."""

    member_id: str
    group_instance_id: str | None = None
    generation_id: int = NO_GENERATION


@attrs.frozen(kw_only=True)
class Sync:
    """A SyncGroup request; `assignments` by member id, from the leader only."""

    identity: Identity
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class SyncResult:
    error_code: int = error_codes.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@attrs.frozen(kw_only=True)
class Leaving:
    """One member of a LeaveGroup request; with the unknown member id its instance id says who (an administrator)."""

    member_id: str
    group_instance_id: str | None = None
    reason: str = "not provided"
