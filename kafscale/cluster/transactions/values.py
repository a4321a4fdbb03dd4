"""What a coordinator has written: records of `__transaction_state`, and markers in the partitions of a transaction.

`TransactionLogValue` has the fields of Kafka's schema of that name and no others, so that Kafka's tools print it. What
else a coordinator knows (the last epoch, KIP-360) is forgotten with it, as in Kafka.
"""

from __future__ import annotations

import attrs

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
class PartitionsOfTopic:
    """Some partitions of one topic, in ascending order: Kafka's `PartitionsSchema`."""

    topic: str
    partition_ids: tuple[int, ...]


@attrs.frozen(kw_only=True)
class TransactionLogValue:
    """The value of a record of `__transaction_state`; its key is the transactional id alone."""

    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_status: int
    transaction_partitions: tuple[PartitionsOfTopic, ...] | None
    transaction_last_update_timestamp_ms: int
    transaction_start_timestamp_ms: int = NO_TIMESTAMP_MS
    client_transaction_version: int = 0


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


def partitions_by_topic(partitions: frozenset[TopicPartition]) -> tuple[PartitionsOfTopic, ...]:
    """Return them as a record has them: topics and partitions in order, so that equal states are equal bytes."""
    if len(partitions) == 1:  # as in most transactions
        (only,) = partitions
        return (PartitionsOfTopic(only.topic, (only.partition,)),)
    ids: dict[str, list[int]] = {}
    for each in sorted(partitions):
        ids.setdefault(each.topic, []).append(each.partition)
    return tuple(PartitionsOfTopic(topic, tuple(of_topic)) for topic, of_topic in ids.items())
