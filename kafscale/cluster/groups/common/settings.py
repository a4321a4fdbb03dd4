"""Limits of groups that can't be set, their times, and the memory of all groups (`--group-state-bytes`).

Sizes are estimates: the bytes that clients have sent, and a constant for each object.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import attrs

from kafscale.cluster.groups.common.events import Join
from kafscale.config import CoordinatorSettings
from kafscale.metrics import Metrics
from kafscale.wire.internal_topics.consumer_offsets import ClassicProtocol, OffsetCommitValue

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
        help = "Of --group-state-bytes, what consumer groups take."
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
# What a leader may assign, over all members: it is one value of the metadata store. Kafka's limit is 1 MiB likewise.
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
