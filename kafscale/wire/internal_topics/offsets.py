"""Committed offsets in `__consumer_offsets` (record type 1): how far a group has read a partition."""

from __future__ import annotations

from typing import ClassVar

import attrs

from kafscale.wire.schema import NEVER, wire


@attrs.define(kw_only=True)
class OffsetCommitValue:
    """Kafka writes version 4, and 1 where the client chose when the offset expires, which says no leader epoch."""

    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 4, 4
    WRITTEN_VERSION: ClassVar = 4

    offset: int = wire("int64")
    leader_epoch: int = wire("int32", since=3, default=-1)
    metadata: str = wire("string")
    commit_timestamp: int = wire("int64")  # in milliseconds, as below
    expire_timestamp: int = wire("int64", since=1, until=1, default=-1)
    topic_id: bytes = wire("uuid", since=4, tag=0, default=bytes(16))  # zeros: not known


@attrs.frozen(kw_only=True)
class OffsetCommitKey:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, NEVER
    RECORD_TYPE: ClassVar = 1
    VALUE: ClassVar = OffsetCommitValue

    group: str = wire("string")
    topic: str = wire("string")
    partition: int = wire("int32")
