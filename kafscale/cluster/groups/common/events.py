"""Requests to groups and their answers: values only, as far as the wire's own messages do not serve.

Assignments and metadata of classic members are the members' own bytes: the broker reads only the subscribed topics.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping, Sequence

import attrs

from kafscale.cluster.groups.common.assignors import Partitions
from kafscale.wire import error_codes
from kafscale.wire.internal_topics.consumer_offsets import ClassicProtocol, GroupMetadataValue, OffsetCommitValue
from kafscale.wire.messages.groups import JoinGroupResponse

UNKNOWN_MEMBER_ID = ""  # the client has no member id yet
NO_GENERATION = -1
NO_TIMEOUT_MS = -1  # the heartbeat leaves the field out
CONSUMER_PROTOCOL_TYPE = "consumer"
MEMBER_EPOCH_SINCE = 9  # version of OffsetCommit and OffsetFetch from which the generation may be a member epoch


@attrs.frozen(kw_only=True)
class GroupMemberIdentity:
    """The fields by which a member names itself in every request after it has joined."""

    member_id: str
    group_instance_id: str | None = None
    generation_id: int = NO_GENERATION


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
    protocols: tuple[ClassicProtocol, ...]
    member_id_required: bool = False  # the client knows MEMBER_ID_REQUIRED (version 4, KIP-394)
    can_skip_assignment: bool = False  # the client knows `skip_assignment` (version 9, KIP-814)
    reason: str = "not provided"


def refused_join(error_code: int, member_id: str = UNKNOWN_MEMBER_ID) -> JoinGroupResponse:
    """Return the answer to a join that fails."""
    return JoinGroupResponse(error_code=error_code, member_id=member_id, protocol_name=None)


@attrs.frozen(kw_only=True)
class Sync:
    """A SyncGroup request; `assignments` by member id, from the leader only."""

    identity: GroupMemberIdentity
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Heartbeat:
    """A ConsumerGroupHeartbeat request; None, and -1 for the timeout, if a field has not changed since the last one.

    `viewer` is the client, as `Rights` know it.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT_MS
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str
    client_host: str
    viewer: Hashable = None
    chooses_member_id: bool = True  # the client makes its own id (version 1)

    @property
    def is_full(self) -> bool:
        """Tell whether it has every field, as from a client that is not sure what the broker knows."""
        has_topics = self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        return self.rebalance_timeout_ms != NO_TIMEOUT_MS and has_topics and self.owned is not None


@attrs.frozen(kw_only=True)
class HeartbeatReply:
    """The answer to a heartbeat; `assignment` is None if it has not changed."""

    error_code: int = error_codes.NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class EventRefused(Exception):
    """An event is not accepted; nothing has changed."""

    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message


class TimerKind(enum.Enum):
    """The reason for a member's deadline."""

    SESSION = "session"  # to send its next heartbeat
    REBALANCE = "rebalance"  # to give up partitions
    JOIN = "join"  # of the classic protocol: to join again
    SYNC = "sync"  # of the classic protocol: to ask for its assignment


@attrs.frozen
class TimerKey:
    """One deadline of one member."""

    kind: TimerKind
    member_id: str


@attrs.frozen(kw_only=True)
class RegexRefresh:
    """A search for the topics of regular expressions, whose result the group is to be told.

    `viewers` are the clients that subscribe by each expression; it finds topics that all of them may describe. They
    are empty without an authorizer.
    """

    viewers: Mapping[str, frozenset[Hashable]]
    asker: Hashable  # the client whose heartbeat asks
    version: int  # of the topics that are searched
    rights_version: int = 0


@attrs.frozen(kw_only=True)
class Downgrade:
    """A consumer group becomes this classic group; its members rebalance at once if `rebalances`.

    `protocols` has all protocols of each member: the group's record has one.
    """

    group: GroupMetadataValue
    protocols: Mapping[str, Sequence[ClassicProtocol]]
    rebalances: bool
    reason: str


@attrs.frozen
class LoggedOffset:
    """A committed offset, and the offset of its record in the log."""

    offset: OffsetCommitValue
    logged_at: int


@attrs.frozen
class CommittedOffset:
    """A committed offset among those of all groups."""

    group_id: str
    topic: str
    partition: int
    offset: int
