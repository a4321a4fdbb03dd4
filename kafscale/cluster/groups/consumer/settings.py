"""Settings of consumer groups, and limits that can't be set."""

from __future__ import annotations

import enum

import attrs

# Different regular expressions that the members of one group subscribe by. Kafka has no limit; members of a group that
# do the same work have the same one.
REGEXES_MAX_COUNT = 64
# What one member may say about itself: topic names, ids, and what it says in the classic protocol. As there.
MEMBER_METADATA_MAX_BYTES = 1024 * 1024
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
