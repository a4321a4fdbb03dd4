"""Verdicts on requests of producers, by the epoch that they name and the state of their transaction."""

from __future__ import annotations

from kafscale.cluster.transactions.requests import EndTransaction, InitProducerId
from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION, LAST_GIVEN_EPOCH, ProducerTransaction
from kafscale.cluster.transactions.values import NO_PRODUCER_ID, PRODUCER_EPOCH_MAX, TransactionState
from kafscale.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NONE,
    PRODUCER_FENCED,
)


def init_verdict(transaction: ProducerTransaction, request: InitProducerId) -> int:
    """Return why this producer may not go on (KIP-360); one that names no epoch always may."""
    if transaction.state.is_prepared:
        fenced = request.producer_id not in (NO_PRODUCER_ID, transaction.producer_id, transaction.previous_producer_id)
        return PRODUCER_FENCED if fenced else CONCURRENT_TRANSACTIONS
    if request.producer_id == NO_PRODUCER_ID:
        return NONE
    is_last = request.producer_epoch == transaction.last_producer_epoch
    if request.producer_id != transaction.producer_id:  # maybe it did not get the reply that gave it a new one
        return NONE if request.producer_id == transaction.previous_producer_id and is_last else PRODUCER_FENCED
    if transaction.state is TransactionState.ONGOING:  # its producer has the present epoch
        is_last = False
    is_present = request.producer_epoch == transaction.producer_epoch
    return NONE if is_last or (is_present and request.producer_epoch < PRODUCER_EPOCH_MAX) else PRODUCER_FENCED


def plain_end_verdict(transaction: ProducerTransaction, request: EndTransaction) -> int | None:
    """EndTxn of version 1: return the error, NONE for a repeated request, or None if the transaction is to be ended."""
    identity = request.identity
    if transaction.producer_id != identity.producer_id:
        return INVALID_PRODUCER_ID_MAPPING
    if transaction.producer_epoch != identity.producer_epoch:
        return PRODUCER_FENCED
    return _judge_state(transaction.state, request.committed)


def bumping_end_verdict(transaction: ProducerTransaction, request: EndTransaction) -> int | None:
    """EndTxn of version 2, likewise: its epoch says whether it is the next one or repeats the last one."""
    epoch = request.identity.producer_epoch
    went_over = transaction.previous_producer_id == request.identity.producer_id and (
        epoch == LAST_GIVEN_EPOCH and transaction.producer_epoch == 0
    )
    if transaction.producer_id != request.identity.producer_id and not went_over:
        return INVALID_PRODUCER_ID_MAPPING
    state = transaction.state
    # Only the end of a transaction by version 2 has bumped the epoch for the producer itself. Kafka 4.1 does not look
    # at that: a zombie of version 2, behind which one of version 1 has ended a transaction, is given that one's epoch.
    bumped = transaction.client_transaction_version >= EPOCH_BUMP_VERSION
    is_repeated = bumped and (went_over or epoch + 1 == transaction.producer_epoch)
    if state.is_prepared or (is_repeated and state in _COMPLETE):
        return _judge_state(state, request.committed) if is_repeated else PRODUCER_FENCED
    if epoch != transaction.producer_epoch or epoch > LAST_GIVEN_EPOCH:
        return PRODUCER_FENCED
    if state is TransactionState.ONGOING or not request.committed:
        return None  # an abort of nothing too: the client can't know that its first batch never arrived
    return INVALID_TXN_STATE


_COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


def _judge_state(state: TransactionState, committed: bool) -> int | None:
    """Return what a client hears whose epoch fits: the outcome is decided, and it may want the other one."""
    if state is TransactionState.ONGOING:
        return None
    prepared = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    completed = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    if state is prepared:
        return CONCURRENT_TRANSACTIONS
    return NONE if state is completed else INVALID_TXN_STATE
