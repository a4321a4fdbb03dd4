"""Values that a coordinator writes: records of `__transaction_state`, and markers in the partitions of a transaction.

A record has the fields of Kafka's schema alone. The last epoch (KIP-360), which a coordinator also knows, is lost with
it, as in Kafka.
"""

from __future__ import annotations

import attrs

from kafscale.wire.internal_topics.transaction_state import PartitionsSchema, TransactionLogValue

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP_MS = -1
PRODUCER_EPOCH_MAX = 32767  # an int16


@attrs.frozen(order=True)
class TopicPartition:
    """A topic by name, and one partition of it."""

    topic: str
    partition: int


@attrs.frozen
class StateRecord:
    """A record of the coordinator's own partition; without a value it is a tombstone."""

    transactional_id: str
    value: TransactionLogValue | None


@attrs.frozen(kw_only=True)
class Marker:
    """A control record that ends a producer's transaction in one partition."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int  # from 2 on its epoch is above that of the transaction's records


def partitions_by_topic(partitions: frozenset[TopicPartition]) -> list[PartitionsSchema]:
    """Return partitions in the form of records: topics and partitions in order, so equal states are equal bytes."""
    if len(partitions) == 1:  # as in most transactions
        (only,) = partitions
        return [PartitionsSchema(only.topic, [only.partition])]
    indexes: dict[str, list[int]] = {}
    for at in sorted(partitions):
        indexes.setdefault(at.topic, []).append(at.partition)
    return [PartitionsSchema(topic, of_topic) for topic, of_topic in indexes.items()]
