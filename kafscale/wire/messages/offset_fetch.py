"""OffsetFetch (key 9, versions 1 to 10): the positions that groups have committed.

Versions 1 to 7 ask for one group by `group_id` and `topics`, from 8 on for several in `groups` (KIP-709). The structs
inside are the same, so one piece of code serves both. Version 9 names the member that asks (KIP-848), 10 has topic ids
in place of names.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class OffsetFetchRequestTopic:
    name: str = wire("string", until=9, default="")
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    partition_indexes: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class OffsetFetchRequestGroup:
    group_id: str = wire("string")
    member_id: str | None = wire("string", since=9, default=None)
    member_epoch: int = wire("int32", since=9, default=-1)  # -1: not a member, or of the classic protocol
    topics: list[OffsetFetchRequestTopic] | None = wire(Array(OffsetFetchRequestTopic))  # null: all of them


@attrs.define(kw_only=True)
class OffsetFetchRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 9, 1, 10, 6
    NEWEST_WITH_NAMES = 9

    group_id: str = wire("string", until=7, default="")
    # null (from version 2 on): all of them
    topics: list[OffsetFetchRequestTopic] | None = wire(Array(OffsetFetchRequestTopic), until=7, factory=list)
    groups: list[OffsetFetchRequestGroup] = wire(Array(OffsetFetchRequestGroup), since=8, factory=list)
    # fail rather than report an offset of an open transaction
    require_stable: bool = wire("bool", since=7, default=False)


@attrs.define(kw_only=True)
class OffsetFetchResponsePartition:
    partition_index: int = wire("int32")
    committed_offset: int = wire("int64", default=-1)  # -1: none
    committed_leader_epoch: int = wire("int32", since=5, default=-1)
    metadata: str | None = wire("string", default="")
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class OffsetFetchResponseTopic:
    name: str = wire("string", until=9, default="")
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    partitions: list[OffsetFetchResponsePartition] = wire(Array(OffsetFetchResponsePartition), factory=list)


@attrs.define(kw_only=True)
class OffsetFetchResponseGroup:
    group_id: str = wire("string")
    topics: list[OffsetFetchResponseTopic] = wire(Array(OffsetFetchResponseTopic), factory=list)
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class OffsetFetchResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 9, 1, 10, 6

    throttle_time_ms: int = wire("int32", since=3, default=0)
    topics: list[OffsetFetchResponseTopic] = wire(Array(OffsetFetchResponseTopic), until=7, factory=list)
    error_code: int = wire("int16", since=2, until=7, default=0)
    groups: list[OffsetFetchResponseGroup] = wire(Array(OffsetFetchResponseGroup), since=8, factory=list)
