"""Groups and committed offsets as entries of the metadata store.

    groups/<group id>/group                        a GroupRecord; none for a group that only ever committed offsets
    groups/<group id>/offsets/<topic>/<partition>  an OffsetAndMetadata

Ids may be any text; percent-encoding keeps them within their part of the key.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

import attrs

from kafscale.cluster.groups.events import GroupProtocol

PREFIX = "groups/"
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
class TopicPartition:
    """A topic by name, and one partition of it."""

    topic: str
    partition: int


@attrs.frozen
class GroupKey:
    """What a key of the metadata store is about: a group, or its offset in one partition."""

    group_id: str
    offset_of: TopicPartition | None


def group_prefix(group_id: str) -> str:
    """Return what every key of this group, and of no other, starts with."""
    return f"{PREFIX}{_quoted(group_id)}/"


def group_key(group_id: str) -> str:
    return f"{group_prefix(group_id)}group"


def offset_key(group_id: str, at: TopicPartition) -> str:
    return f"{group_prefix(group_id)}offsets/{_quoted(at.topic)}/{at.partition}"


@lru_cache(maxsize=4096)  # a commit makes a key per partition, of few topics and groups
def _quoted(text: str) -> str:
    return quote(text, safe="")


def parse_key(key: str) -> GroupKey:
    """The reverse. Raises ValueError for a key that is none of these."""
    match key.split("/"):
        case ["groups", group_id, "group"]:
            return GroupKey(unquote(group_id), None)
        case ["groups", group_id, "offsets", topic, partition]:
            return GroupKey(unquote(group_id), TopicPartition(unquote(topic), int(partition)))
        case _:
            raise ValueError(f"not a key of a group: {key!r}")
