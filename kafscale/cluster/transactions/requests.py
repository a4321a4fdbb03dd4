"""What a transaction coordinator is asked: values only, made from requests of whatever version."""

from __future__ import annotations

import attrs

from kafscale.cluster.transactions.values import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition


@attrs.frozen(kw_only=True)
class InitProducerId:
    """An InitProducerId request with a transactional id; without one there is nothing to coordinate."""

    transactional_id: str
    transaction_timeout_ms: int
    producer_id: int = NO_PRODUCER_ID  # this and the epoch are those of a producer that wants to go on (KIP-360)
    producer_epoch: int = NO_PRODUCER_EPOCH
    new_producer_id: int | None = None  # one that nobody has; asked for by `Outcome.needs_producer_id`


@attrs.frozen
class Identity:
    """What a producer names itself by in everything that it sends after InitProducerId."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@attrs.frozen(kw_only=True)
class AddPartitions:
    """Partitions that are to take part: AddPartitionsToTxn, AddOffsetsToTxn, a Produce 12 or a TxnOffsetCommit 5.

    Whether they exist, and the producer may write there, has been looked at before.
    """

    identity: Identity
    partitions: frozenset[TopicPartition]
    transaction_version: int  # what `kafscale.cluster.transactions.versions` says of the request's version


@attrs.frozen(kw_only=True)
class VerifyPartitions:
    """Tell whether partitions take part, without enrolling them (KIP-890, part 1): a transactional Produce below 12."""

    identity: Identity
    partitions: frozenset[TopicPartition]


@attrs.frozen(kw_only=True)
class EndTransaction:
    """An EndTxn request."""

    identity: Identity
    committed: bool
    transaction_version: int
    new_producer_id: int | None = None  # as in `InitProducerId`


@attrs.frozen(kw_only=True)
class MarkersWritten:
    """Markers that are durable in these partitions, or not needed there; of others nothing is said."""

    transactional_id: str
    producer_id: int
    producer_epoch: int  # the marker's
    partitions: frozenset[TopicPartition]
