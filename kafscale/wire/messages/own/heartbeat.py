"""BrokerHeartbeat between brokers: what the sender has released; for the controller, what it has to do, and has begun.

The controller answers who tells that with what all have to do, for those who place new partitions. Each broker answers
for how long the store has not answered it. Who does not know these fields answers as to any heartbeat, and asks the
bucket, balances without them, or commits nothing for others.
"""

from __future__ import annotations

import attrs

from kafscale.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kafscale.wire.messages.own import OWN_TAG
from kafscale.wire.schema import Array, Nullable, wire


@attrs.define(kw_only=True)
class ReleasedPartition:
    """A partition that the receiver leads from now on, with this epoch; `contents` is a checkpoint of its manifest."""

    topic_id: bytes = wire("uuid")
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")
    contents: bytes = wire("bytes")


@attrs.define(kw_only=True)
class BegunPartition:
    """A partition that the sender leads with this epoch, which begins at `offset`.

    `recover` are the incarnations whose streams have what is in no segment yet; none, when all of that is flushed. The
    receiver answers when it has committed that, or can't.
    """

    topic_id: bytes = wire("uuid")
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")
    offset: int = wire("int64")
    recover: list[int] = wire(Array("int32"))


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
class OwnHeartbeatRequest(BrokerHeartbeatRequest):
    released: list[ReleasedPartition] = wire(Array(ReleasedPartition), tag=OWN_TAG, factory=list)
    load: Load | None = wire(Nullable(Load), tag=OWN_TAG + 1, default=None)
    begun: list[BegunPartition] = wire(Array(BegunPartition), tag=OWN_TAG + 2, factory=list)
    secret: bytes = wire(
        "bytes", tag=OWN_TAG + 3, default=b""
    )  # of the sender (`kafscale.cluster.membership.peers.senders`)


@attrs.define(kw_only=True)
class Surplus:
    """What the partitions of a broker weigh beyond their number (`kafscale.cluster.membership.placement.choice`)."""

    broker_id: int = wire("int32")
    weight: float = wire("float64")


@attrs.define(kw_only=True)
class OwnHeartbeatResponse(BrokerHeartbeatResponse):
    surpluses: list[Surplus] = wire(Array(Surplus), tag=OWN_TAG, factory=list)
    store_silent_ms: int = wire("int32", tag=OWN_TAG + 1, default=0)
