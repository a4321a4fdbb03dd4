"""ConsumerGroupHeartbeat (key 68, versions 0 and 1): joins, leaves and keeps up a member of a consumer group (KIP-848).

The group's coordinator computes the assignment. A member sends in full what has changed since its last heartbeat, and
null for the rest. Version 1 subscribes by regular expression, and has members make their ids themselves (KIP-1082).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, Nullable, wire


@attrs.define(kw_only=True)
class TopicPartitions:
    topic_id: bytes = wire("uuid")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class ConsumerGroupHeartbeatRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 68, 0, 1, 0

    group_id: str = wire("string")
    member_id: str = wire("string")
    member_epoch: int = wire("int32")  # 0: join, -1: leave, -2: leave for a while, as a static member
    instance_id: str | None = wire("string", default=None)
    rack_id: str | None = wire("string", default=None)
    rebalance_timeout_ms: int = wire("int32", default=-1)  # -1: as before
    subscribed_topic_names: list[str] | None = wire(Array("string"), default=None)
    subscribed_topic_regex: str | None = wire("string", since=1, default=None)  # RE2
    server_assignor: str | None = wire("string", default=None)
    # what the member has; null: as before
    topic_partitions: list[TopicPartitions] | None = wire(Array(TopicPartitions), default=None)


@attrs.define(kw_only=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = wire(Array(TopicPartitions), factory=list)


@attrs.define(kw_only=True)
class ConsumerGroupHeartbeatResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 68, 0, 1, 0

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    member_id: str | None = wire("string", default=None)
    member_epoch: int = wire("int32", default=0)
    heartbeat_interval_ms: int = wire("int32", default=0)
    assignment: Assignment | None = wire(Nullable(Assignment), default=None)  # null: as before
