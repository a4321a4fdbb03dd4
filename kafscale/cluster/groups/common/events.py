"""Events and results of a group's state machine, and the values that are stored of a group.

Error codes are those of `kafscale.wire.error_codes`. Assignments and metadata are the members' own bytes: the broker
reads only the subscribed topics in a member's metadata. The bytes of stored values are in `groups.log_records`.
"""

from __future__ import annotations

import attrs

from kafscale.wire import error_codes

NO_TOPIC_ID = bytes(16)  # of an offset whose topic id is not known


@attrs.frozen(kw_only=True)
class MemberRecord:
    """A member as of the last assignment."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes


@attrs.frozen(kw_only=True)
class GroupRecord:
    """A group as of the last generation that had an assignment, or since it is empty."""

    generation_id: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    state_timestamp_ms: int  # wall clock, since when it is stable or empty
    members: tuple[MemberRecord, ...] = ()


@attrs.frozen(kw_only=True)
class OffsetAndMetadata:
    """A committed offset: the next one that the group would read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None  # where the client chose the retention (OffsetCommit versions 2 to 4)
    topic_id: bytes = NO_TOPIC_ID


@attrs.frozen
class LoggedOffset:
    """A committed offset, and the offset in the log of the record that says so."""

    offset: OffsetAndMetadata
    logged_at: int


@attrs.frozen
class CommittedOffset:
    """A committed offset among those of all groups."""

    group_id: str
    topic: str
    partition: int
    offset: int


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
    """A member as the leader is told of it."""

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
class GroupMemberIdentity:
    """A member names itself by this in everything that it sends after joining."""

    member_id: str
    group_instance_id: str | None = None
    generation_id: int = NO_GENERATION


@attrs.frozen(kw_only=True)
class Sync:
    """A SyncGroup request; `assignments` by member id, from the leader only."""

    identity: GroupMemberIdentity
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
