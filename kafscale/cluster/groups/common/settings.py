"""Settings of groups, limits that can't be set, and the memory of all groups (`--group-state-bytes`).

Sizes are estimates: the bytes that clients have sent, and a constant for the objects of each thing.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Iterable

import attrs

from kafscale.cluster.groups.common.events import Join
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
    """Memory in use. Nothing is refused here: stored groups are loaded whatever they take."""

    max_bytes: float = math.inf
    used_bytes: int = attrs.field(default=0, init=False)
    _told_full_at: float = attrs.field(default=-math.inf, init=False)

    def register(self, metrics: Metrics) -> None:
        """Export the memory in use."""
        help = "Of --group-state-bytes, what consumer groups take."
        metrics.gauge("kafscale_group_state_bytes", help, lambda: self.used_bytes)

    def has_room(self, more_bytes: int) -> bool:
        """Tell whether the state may grow by so much. It may always shrink."""
        return more_bytes <= 0 or self.used_bytes + more_bytes <= self.max_bytes

    def has_room_or_say_so(self, more_bytes: int, *, now_seconds: float) -> bool:
        """Tell whether the state may grow by so much; if not, the log says so, once a minute."""
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
        """The state has grown, or shrunk."""
        self.used_bytes += by_bytes


def protocols_bytes(protocols: Iterable[ClassicProtocol]) -> int:
    """Return how many bytes what a member says about itself takes."""
    return sum(PROTOCOL_BYTES + len(protocol.name) + len(protocol.metadata) for protocol in protocols)


def join_bytes(join: Join) -> int:
    """Return how many bytes a member that joins like this will take, before it has an assignment."""
    return MEMBER_BYTES + len(join.client_id) + len(join.group_instance_id or "") + protocols_bytes(join.protocols)


def offset_bytes(offset: OffsetCommitValue | None) -> int:
    """Return how many bytes a committed offset takes; none takes nothing."""
    return 0 if offset is None else OFFSET_BYTES + len(offset.metadata)


# What one member may say about itself, over all of its protocols. Kafka's limit is that of the group's record, 1 MiB.
MEMBER_METADATA_MAX_BYTES = 1024 * 1024
# The ways to assign partitions that one member may know: each is looked for in what every other member says.
PROTOCOLS_MAX_COUNT = 1000
# What a leader may assign, over all members: it is one value of the metadata store. Kafka's limit is 1 MiB likewise.
ASSIGNMENT_MAX_BYTES = 4 * 1024 * 1024


@attrs.frozen(kw_only=True)
class GroupSettings:
    """The defaults are Kafka's (4.1), where no comment says otherwise."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 30 * 60_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 0  # group.initial.rebalance.delay.ms; 0 as in Kafka's quickstart, not 3000
    max_group_count: int = 100_000  # a join of an id that was never seen makes a group; no limit in Kafka
    max_member_count: int = 10_000  # group.max.size; no limit in Kafka
    state_max_bytes: int = 256 << 20  # of the members and offsets of all groups; no limit in Kafka
    new_member_join_timeout_ms: int = 5 * 60_000  # not to be set in Kafka either
    offset_metadata_max_count: int = 4096  # offset.metadata.max.bytes, which counts characters
    offsets_retention_ms: int = 7 * 24 * 3600_000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms


# Different regular expressions that the members of one group subscribe by. Kafka has no limit; members of a group that
# do the same work have the same one.
REGEXES_MAX_COUNT = 64
# Between two searches through all topics for a group, whatever its members do. Not to be set in Kafka either.
REGEX_REFRESH_MIN_INTERVAL_MS = 10_000


class MigrationPolicy(enum.Enum):
    """The ways in which a group that has members may change its protocol: `group.consumer.migration.policy`."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


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


@attrs.frozen(kw_only=True)
class ConsumerGroupSettings:
    """The defaults are Kafka's (4.1), where no comment says otherwise."""

    session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    min_session_timeout_ms: int = 45_000  # group.consumer.min.session.timeout.ms
    max_session_timeout_ms: int = 60_000  # group.consumer.max.session.timeout.ms
    heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    min_heartbeat_interval_ms: int = 5_000  # group.consumer.min.heartbeat.interval.ms
    max_heartbeat_interval_ms: int = 15_000  # group.consumer.max.heartbeat.interval.ms
    max_size: int = 10_000  # group.consumer.max.size; no limit in Kafka
    assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors; the first is the default
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL  # group.consumer.migration.policy
    regex_refresh_interval_ms: int = 600_000  # group.consumer.regex.refresh.interval.ms
    classic_max_size: int = 10_000  # group.max.size, which a group must meet to become a classic one

    def __attrs_post_init__(self) -> None:
        if not self.assignors:
            raise ValueError("group.consumer.assignors must name one assignor at least")
        self.times(NO_OVERRIDES)

    def times(self, overrides: GroupOverrides) -> GroupTimes:
        """Return the times of a group. Raises ValueError for times out of bounds, or that drop members on time."""
        session_timeout_ms, interval_ms = overrides.session_timeout_ms, overrides.heartbeat_interval_ms
        times = GroupTimes(
            session_timeout_ms=self.session_timeout_ms if session_timeout_ms is None else session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms if interval_ms is None else interval_ms,
        )
        if not self.min_session_timeout_ms <= times.session_timeout_ms <= self.max_session_timeout_ms:
            raise ValueError("the session timeout must be between group.consumer.min and max.session.timeout.ms")
        if not self.min_heartbeat_interval_ms <= times.heartbeat_interval_ms <= self.max_heartbeat_interval_ms:
            raise ValueError("the heartbeat interval must be between group.consumer.min and max.heartbeat.interval.ms")
        if times.heartbeat_interval_ms >= times.session_timeout_ms:
            raise ValueError(
                "the heartbeat interval must be less than the session timeout: members who are on time would be dropped"
            )
        return times
