"""What an operator may set about groups, and the limits that nobody may set."""

from __future__ import annotations

import attrs

from kafscale.config import Settings

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

    @classmethod
    def of(cls, settings: Settings) -> GroupSettings:
        return cls(
            min_session_timeout_ms=settings.coordinator.group_min_session_timeout_ms,
            max_session_timeout_ms=settings.coordinator.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.coordinator.group_initial_rebalance_delay_ms,
            max_group_count=settings.limits.max_groups_count,
            max_member_count=settings.limits.max_group_members_count,
            state_max_bytes=settings.limits.group_state_bytes,
            offset_metadata_max_count=settings.limits.offset_metadata_max_bytes,
            offsets_retention_ms=settings.coordinator.offsets_retention_ms,
        )
