"""The states of a transaction, with Kafka's numbers and names, and which of them may follow which."""

from __future__ import annotations

import enum


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
