"""ListTransactions between brokers: the partitions that producers have enrolled, of those that are coordinated here.

Who does not know these fields answers as to anybody, and gives no `coordinated`.
"""

from __future__ import annotations

import attrs

from kafscale.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from kafscale.wire.messages.own import OWN_TAG
from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class EnrolledRequest(ListTransactionsRequest):
    wants_enrolled: bool = wire("bool", tag=OWN_TAG, default=False)  # instead of transactional ids
    broker_id: int = wire("int32", tag=OWN_TAG + 1, default=-1)  # of the sender, as are the next two
    broker_epoch: int = wire("int64", tag=OWN_TAG + 2, default=-1)
    secret: bytes = wire("bytes", tag=OWN_TAG + 3, default=b"")  # `kafscale.cluster.membership.peers.senders`


@attrs.define(kw_only=True)
class CoordinatedPartition:
    """A partition of `__transaction_state` that has been read completely, and is led with this epoch."""

    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")


@attrs.define(kw_only=True)
class EnrolledTopic:
    name: str = wire("string")
    partitions: list[int] = wire(Array("int32"))


@attrs.define(kw_only=True)
class EnrolledProducer:
    """Partitions that take part in a producer's transaction, or lack its marker."""

    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    topics: list[EnrolledTopic] = wire(Array(EnrolledTopic))


@attrs.define(kw_only=True)
class EnrolledResponse(ListTransactionsResponse):
    coordinated: list[CoordinatedPartition] = wire(Array(CoordinatedPartition), tag=OWN_TAG, factory=list)
    enrolled: list[EnrolledProducer] = wire(Array(EnrolledProducer), tag=OWN_TAG + 1, factory=list)
