"""What consumers put into the opaque bytes of JoinGroup and SyncGroup (protocol type "consumer").

Each is preceded by its version as an int16, which is not part of the class. A member may be newer than we are: read a
version above MAX_VERSION as MAX_VERSION and ignore what follows the message.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import NEVER, Array, wire


@attrs.define(kw_only=True)
class TopicPartition:
    topic: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class ConsumerProtocolSubscription:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 3, NEVER

    topics: list[str] = wire(Array("string"), factory=list)
    user_data: bytes | None = wire("bytes", default=None)
    owned_partitions: list[TopicPartition] = wire(Array(TopicPartition), since=1, factory=list)
    generation_id: int = wire("int32", since=2, default=-1)
    rack_id: str | None = wire("string", since=3, default=None)


@attrs.define(kw_only=True)
class ConsumerProtocolAssignment:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 3, NEVER

    assigned_partitions: list[TopicPartition] = wire(Array(TopicPartition), factory=list)
    user_data: bytes | None = wire("bytes", default=None)
