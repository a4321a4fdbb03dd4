"""Values of transaction coordinators: states by Kafka's numbers and names, records, markers.

A record has the fields of Kafka's schema alone. The last epoch (KIP-360), which a coordinator also knows, is lost with
it, as in Kafka.
"""

from __future__ import annotations

import enum

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.wire.internal_topics.transaction_state import PartitionsSchema, TransactionLogValue


class TransactionState(enum.IntEnum):
    """The number is what a record of `__transaction_state` has."""

    EMPTY = 0  # has a producer id, and no transaction since
    ONGOING = 1
    PREPARE_COMMIT = 2  # decided; markers are missing
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4  # every marker is written
    COMPLETE_ABORT = 5
    DEAD = 6  # the id has expired; never written, a tombstone is
    PREPARE_EPOCH_FENCE = 7  # the producer is being fenced, which ends in PREPARE_ABORT; never written by Kafka either

    __hash__ = int.__hash__  # that of an enumeration is of its name, and not built in

    @property
    def kafka_name(self) -> str:
        """The name that DescribeTransactions and ListTransactions use."""
        return _NAMES[self]

    @property
    def is_prepared(self) -> bool:
        """Tell whether it is decided how the transaction ends, and markers are missing."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def may_expire(self) -> bool:
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    def may_follow(self, former: TransactionState) -> bool:
        return former in _FORMER[self]


_NAMES = {state: state.name.title().replace("_", "") for state in TransactionState}
STATES_BY_NAME = {name: state for state, name in _NAMES.items()}

_S = TransactionState
_BETWEEN_TRANSACTIONS = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
_FORMER: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: _BETWEEN_TRANSACTIONS,
    _S.ONGOING: _BETWEEN_TRANSACTIONS | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    # Version 2 also aborts where nothing was enrolled: the client can't know whether its first batch arrived.
    _S.PREPARE_ABORT: _BETWEEN_TRANSACTIONS | {_S.ONGOING, _S.PREPARE_EPOCH_FENCE},
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: _BETWEEN_TRANSACTIONS,
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}


NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP_MS = -1
PRODUCER_EPOCH_MAX = 32767  # an int16


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
