"""What an operator may set about groups, and the limits that nobody may set."""

from __future__ import annotations

import attrs

# Group ids are keys of the metadata store and labels of metrics. Kafka has no limit but that of a string, 32 KiB.
GROUP_ID_MAX_COUNT = 1024
# A join of an id that was never seen makes a group; Kafka has no limit but its heap.
GROUPS_MAX_COUNT = 100_000
# What one member may say about itself, over all of its protocols. Kafka's limit is that of the group's record, 1 MiB.
MEMBER_METADATA_MAX_BYTES = 1024 * 1024
# What a leader may assign, over all members: it is one value of the metadata store. Kafka's limit is 1 MiB likewise.
ASSIGNMENT_MAX_BYTES = 4 * 1024 * 1024


@attrs.frozen(kw_only=True)
class GroupSettings:
    """The names and defaults are Kafka's (4.1), where no comment says otherwise."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 30 * 60_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 0  # group.initial.rebalance.delay.ms; 0 as in Kafka's quickstart, not 3000
    max_member_count: int = 10_000  # group.max.size; no limit in Kafka
    new_member_join_timeout_ms: int = 5 * 60_000  # not to be set in Kafka either
    offset_metadata_max_count: int = 4096  # offset.metadata.max.bytes, which counts characters
    offsets_retention_ms: int = 7 * 24 * 3600_000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
