"""Requests to groups, their answers, and what groups share: settings, topics, timers, and the way to the log."""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

import attrs

from kafscale.cluster.groups.common.assignors import Partitions
from kafscale.cluster.groups.common.log_records import CoordinatorRecord
from kafscale.cluster.groups.common.topics import KnownTopics
from kafscale.concurrency.timers import TimerQueue
from kafscale.config import CoordinatorSettings, Settings
from kafscale.metrics import Metrics
from kafscale.wire import error_codes
from kafscale.wire.internal_topics.consumer_offsets import ClassicProtocol, GroupMetadataValue, OffsetCommitValue
from kafscale.wire.messages.groups import JoinGroupResponse

logger = logging.getLogger(__name__)

TELL_FULL_EVERY_SECONDS = 60.0
GROUP_BYTES = 2048  # beside its id, members and offsets
MEMBER_BYTES = 1024
PENDING_MEMBER_BYTES = 512
PROTOCOL_BYTES = 128
OFFSET_BYTES = 256


@attrs.define(eq=False, repr=False)
class GroupStateBytes:
    """Memory in use. Stored groups are loaded also beyond the maximum."""

    max_bytes: float = math.inf
    used_bytes: int = attrs.field(default=0, init=False)
    _told_full_at: float = attrs.field(default=-math.inf, init=False)

    def register(self, metrics: Metrics) -> None:
        help = "Bytes of --group-state-bytes that consumer groups use."
        metrics.gauge("kafscale_group_state_bytes", help, lambda: self.used_bytes)

    def has_room(self, more_bytes: int) -> bool:
        """Tell whether the state may grow by this. It may always shrink."""
        return more_bytes <= 0 or self.used_bytes + more_bytes <= self.max_bytes

    def has_room_or_say_so(self, more_bytes: int, *, now_seconds: float) -> bool:
        """Tell whether the state may grow by this; if not, write a warning, once a minute."""
        if self.has_room(more_bytes):
            return True
        if now_seconds - self._told_full_at >= TELL_FULL_EVERY_SECONDS:
            self._told_full_at = now_seconds
            logger.warning(
                "the state of consumer groups takes %d bytes, and --group-state-bytes allows %d: "
                "new members and offsets are refused until others have expired or been deleted",
                *(self.used_bytes, self.max_bytes),
            )
        return False

    def change(self, by_bytes: int) -> None:
        self.used_bytes += by_bytes


def protocols_bytes(protocols: Iterable[ClassicProtocol]) -> int:
    return sum(PROTOCOL_BYTES + len(protocol.name) + len(protocol.metadata) for protocol in protocols)


def join_bytes(join: Join) -> int:
    """Return how many bytes a member takes that joins like this, before it has an assignment."""
    return MEMBER_BYTES + len(join.client_id) + len(join.group_instance_id or "") + protocols_bytes(join.protocols)


def offset_bytes(offset: OffsetCommitValue | None) -> int:
    return 0 if offset is None else OFFSET_BYTES + len(offset.metadata)


# What one member may say about itself, over all of its protocols. Kafka's limit is that of the group's record, 1 MiB.
MEMBER_METADATA_MAX_BYTES = 1024 * 1024
# The ways to assign partitions that one member may know: each is looked for in what every other member says.
PROTOCOLS_MAX_COUNT = 1000
# What a leader may assign, over all members: it is one record of `__consumer_offsets`. Kafka's limit is 1 MiB likewise.
ASSIGNMENT_MAX_BYTES = 4 * 1024 * 1024


# Different regular expressions that the members of one group subscribe by. Kafka has no limit; members of a group that
# do the same work have the same one.
REGEXES_MAX_COUNT = 64
# Between two searches through all topics for a group, whatever its members do. Not to be set in Kafka either.
REGEX_REFRESH_MIN_INTERVAL_MS = 10_000
# Not to be set in Kafka either. A new member that waits for its join to be answered is removed then.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
OFFSETS_RETENTION_CHECK_INTERVAL_MS = 600_000  # Kafka: offsets.retention.check.interval.ms


@attrs.frozen(kw_only=True)
class GroupOverrides:
    """Settings of one group, by IncrementalAlterConfigs of the resource type GROUP; None: those of all groups."""

    session_timeout_ms: int | None = None  # consumer.session.timeout.ms
    heartbeat_interval_ms: int | None = None  # consumer.heartbeat.interval.ms


NO_OVERRIDES = GroupOverrides()


@attrs.frozen(kw_only=True)
class GroupTimes:
    """Times in force for one group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


def group_times(settings: CoordinatorSettings, overrides: GroupOverrides) -> GroupTimes:
    """Return the times of a group. Raises ValueError for times out of bounds, or that drop members on time."""
    session_timeout_ms, interval_ms = overrides.session_timeout_ms, overrides.heartbeat_interval_ms
    if session_timeout_ms is None:
        session_timeout_ms = settings.group_consumer_session_timeout_ms
    if interval_ms is None:
        interval_ms = settings.group_consumer_heartbeat_interval_ms
    least_ms, most_ms = settings.group_consumer_min_session_timeout_ms, settings.group_consumer_max_session_timeout_ms
    if not least_ms <= session_timeout_ms <= most_ms:
        raise ValueError("the session timeout must be between group.consumer.min and max.session.timeout.ms")
    least_ms = settings.group_consumer_min_heartbeat_interval_ms
    most_ms = settings.group_consumer_max_heartbeat_interval_ms
    if not least_ms <= interval_ms <= most_ms:
        raise ValueError("the heartbeat interval must be between group.consumer.min and max.heartbeat.interval.ms")
    if interval_ms >= session_timeout_ms:
        raise ValueError(
            "the heartbeat interval must be less than the session timeout: members who are on time would be dropped"
        )
    return GroupTimes(session_timeout_ms=session_timeout_ms, heartbeat_interval_ms=interval_ms)


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


Then = Callable[[bool], None]  # told whether the records are durable


def ignore_outcome(durable: bool) -> None:
    """Do nothing: the log reports a failed write itself."""


class Rights(Protocol):
    """The authorizer, for topics that regular expressions find."""

    @property
    def version(self) -> int:
        """The number of changes of rights since the start."""

    def may_describe(self, viewer: Any, topic: str) -> bool:
        """Tell whether a client may know of a topic."""


class Submit(Protocol):
    """Writes records of a group, however long that takes.

    Calls `late` if it takes long. Calls `placed` with the offsets of the records in the log once they are durable, and
    then `then`.
    """

    def __call__(
        self,
        group_id: str,
        records: Sequence[CoordinatorRecord],
        then: Then,
        *,
        late: Callable[[], None] = ...,
        placed: Callable[[Sequence[int]], None] = ...,
    ) -> None: ...


@attrs.frozen(eq=False, kw_only=True, repr=False)
class GroupContext:
    """`overrides` has settings of single groups by id; `rights` is None without an authorizer.

    `search` starts a search for topics, whose result the group's `regexes_found` gets. `downgrade` puts a classic
    group into the place of the consumer group of an id.
    """

    settings: Settings
    overrides: Mapping[str, GroupOverrides]
    topics: KnownTopics
    state_bytes: GroupStateBytes
    timers: TimerQueue
    wall_clock_ms: Callable[[], int]
    submit: Submit
    search: Callable[[Any, RegexRefresh], None]
    downgrade: Callable[[str, Downgrade], None]
    rights: Rights | None = None
    new_member_id: Callable[[], str] = lambda: str(uuid4())
