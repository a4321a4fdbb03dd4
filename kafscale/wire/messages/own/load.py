"""BrokerHeartbeat between brokers: what the sender has to do, which the controller is told.

OWN_TAG is what a broker has released. Who does not know the field answers as to any heartbeat, and balances without it.
"""

from __future__ import annotations

import attrs

from kafscale.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from kafscale.wire.messages.own import OWN_TAG
from kafscale.wire.schema import Array, Nullable, wire


@attrs.define(kw_only=True)
class PartitionLoad:
    partition_index: int = wire("int32")
    bytes_per_second: int = wire("int64")


@attrs.define(kw_only=True)
class TopicLoad:
    topic_id: bytes = wire("uuid")
    partitions: list[PartitionLoad] = wire(Array(PartitionLoad))


@attrs.define(kw_only=True)
class Load:
    """Bytes a second that are written and read: of the busiest partitions, and of the others together."""

    is_settled: bool = wire("bool")
    busiest: list[TopicLoad] = wire(Array(TopicLoad))
    others_count: int = wire("int32")
    others_bytes_per_second: int = wire("int64")


@attrs.define(kw_only=True)
class LoadedHeartbeatRequest(BrokerHeartbeatRequest):
    load: Load | None = wire(Nullable(Load), tag=OWN_TAG + 1, default=None)
