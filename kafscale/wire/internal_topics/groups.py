"""Classic groups in `__consumer_offsets` (record type 2): a generation with its members and their assignment."""

from __future__ import annotations

from typing import ClassVar

import attrs

from kafscale.wire.schema import NEVER, Array, wire


@attrs.define(kw_only=True)
class MemberMetadata:
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", since=3, default=None)
    client_id: str = wire("string")
    client_host: str = wire("string")
    rebalance_timeout: int = wire("int32", since=1, default=-1)  # in milliseconds, as below
    session_timeout: int = wire("int32")
    subscription: bytes = wire("bytes")  # for consumers a ConsumerProtocolSubscription behind its version
    assignment: bytes = wire("bytes")


@attrs.define(kw_only=True)
class GroupMetadataValue:
    """Kafka 4.1 writes version 3, although it reads 4, so that older brokers can still read it (KIP-915)."""

    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 4, 4
    WRITTEN_VERSION: ClassVar = 3

    protocol_type: str = wire("string")
    generation: int = wire("int32")
    protocol: str | None = wire("string")
    leader: str | None = wire("string")
    current_state_timestamp: int = wire("int64", since=2, default=-1)  # in milliseconds
    members: list[MemberMetadata] = wire(Array(MemberMetadata), factory=list)


@attrs.frozen(kw_only=True)
class GroupMetadataKey:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, NEVER
    RECORD_TYPE: ClassVar = 2
    VALUE: ClassVar = GroupMetadataValue

    group: str = wire("string")
