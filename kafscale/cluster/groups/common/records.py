"""What is stored of a group: values. Their bytes are in `log_records`."""

from __future__ import annotations

import attrs

from kafscale.cluster.groups.common.events import GroupProtocol

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
class TopicPartition:
    """A topic by name, and one partition of it."""

    topic: str
    partition: int


@attrs.frozen
class CommittedOffset:
    """A committed offset among those of all groups."""

    group_id: str
    topic: str
    partition: int
    offset: int
