"""Messages between brokers, and UnregisterBroker."""

from __future__ import annotations

from kafscale.wire.schema import OWN_TAG, Array, Message, Nullable, Struct, wire


class BrokerHeartbeatRequest(Message, key=63, versions=(0, 0), flexible=0):
    """BrokerHeartbeat: a broker says that it runs (KIP-631). Only brokers send it."""

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64", default=-1)
    current_metadata_offset: int = wire("int64")
    want_fence: bool = wire("bool")
    want_shut_down: bool = wire("bool")


class BrokerHeartbeatResponse(Message, answers=BrokerHeartbeatRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    is_caught_up: bool = wire("bool", default=False)
    is_fenced: bool = wire("bool", default=True)
    should_shut_down: bool = wire("bool", default=False)


class ReleasedPartition(Struct):
    """A partition that the receiver leads with this epoch; `contents` is a checkpoint of its manifest."""

    topic_id: bytes = wire("uuid")
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")
    contents: bytes = wire("bytes")


class BegunPartition(Struct):
    """A partition that the sender leads with this epoch, which begins at `offset`.

    `recover` are the incarnations whose streams have unflushed records. The receiver answers when it has committed
    that, or can't.
    """

    topic_id: bytes = wire("uuid")
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")
    offset: int = wire("int64")
    recover: list[int] = wire(Array("int32"))


class PartitionLoad(Struct):
    partition_index: int = wire("int32")
    bytes_per_second: int = wire("int64")


class TopicLoad(Struct):
    topic_id: bytes = wire("uuid")
    partitions: list[PartitionLoad] = wire(Array(PartitionLoad))


class Load(Struct):
    """Bytes a second written and read: for each of the busiest partitions, and for all others together."""

    is_settled: bool = wire("bool")
    busiest: list[TopicLoad] = wire(Array(TopicLoad))
    others_count: int = wire("int32")
    others_bytes_per_second: int = wire("int64")


class OwnHeartbeatRequest(BrokerHeartbeatRequest):
    """BrokerHeartbeat between brokers of KafScale: released partitions; for the controller, also load and new leaders.

    The controller's answer has the brokers' surpluses, by which the sender places new partitions; every answer has the
    store's silence. A peer that ignores these fields makes the sender read the bucket, balance without loads, and
    commit its own epoch starts.
    """

    released: list[ReleasedPartition] = wire(Array(ReleasedPartition), tag=OWN_TAG, factory=list)
    load: Load | None = wire(Nullable(Load), tag=OWN_TAG + 1, default=None)
    begun: list[BegunPartition] = wire(Array(BegunPartition), tag=OWN_TAG + 2, factory=list)
    secret: bytes = wire(
        "bytes", tag=OWN_TAG + 3, default=b""
    )  # of the sender (`kafscale.cluster.membership.peers.peer_connections`)
    # of possibly hanging transactions (`kafscale.cluster.transactions.hanging`): the receiver tells what they enrolled
    producer_ids: list[int] | None = wire(Array("int64"), tag=OWN_TAG + 4, default=None)


class Surplus(Struct):
    """Weight of a broker's partitions beyond their number (`kafscale.cluster.membership.placement.choice`)."""

    broker_id: int = wire("int32")
    weight: float = wire("float64")


class CoordinatedPartition(Struct):
    """A partition of `__transaction_state` that was read completely, and is led with this epoch."""

    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")


class EnrolledTopic(Struct):
    name: str = wire("string")
    partitions: list[int] = wire(Array("int32"))


class EnrolledProducer(Struct):
    """Partitions that take part in a producer's transaction, or lack its marker."""

    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    topics: list[EnrolledTopic] = wire(Array(EnrolledTopic))


class OwnHeartbeatResponse(BrokerHeartbeatResponse):
    surpluses: list[Surplus] = wire(Array(Surplus), tag=OWN_TAG, factory=list)
    store_silent_ms: int = wire("int32", tag=OWN_TAG + 1, default=0)
    coordinated: list[CoordinatedPartition] = wire(Array(CoordinatedPartition), tag=OWN_TAG + 2, factory=list)
    enrolled: list[EnrolledProducer] = wire(Array(EnrolledProducer), tag=OWN_TAG + 3, factory=list)


class UnregisterBrokerRequest(Message, key=64, versions=(0, 0), flexible=0):
    """UnregisterBroker: forget a broker that does not come back (KIP-631)."""

    broker_id: int = wire("int32")


class UnregisterBrokerResponse(Message, answers=UnregisterBrokerRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
