"""Protocols of clients and errors that they know, by the version of a request, as in Kafka 4.1."""

from __future__ import annotations

from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION
from kafscale.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    NETWORK_EXCEPTION,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
)

# First versions of requests whose client knows PRODUCER_FENCED (KIP-588).
INIT_PRODUCER_ID_FENCED_VERSION = 4
ADD_PARTITIONS_FENCED_VERSION = 2
ADD_OFFSETS_FENCED_VERSION = 2
END_TXN_FENCED_VERSION = 2

# First versions of requests whose client gives each transaction its own epoch (KIP-890, part 2).
ADD_PARTITIONS_BUMP_VERSION = 4  # sent by brokers, for their Produce 12 and TxnOffsetCommit 5
END_TXN_BUMP_VERSION = 5
PRODUCE_BUMP_VERSION = 12
TXN_OFFSET_COMMIT_BUMP_VERSION = 5

PRODUCE_ABORTABLE_VERSION = 11  # the client knows TRANSACTION_ABORTABLE (KIP-890, part 1)
TXN_OFFSET_COMMIT_ABORTABLE_VERSION = 4


def transaction_version(request_version: int, bump_version: int) -> int:
    """Return the protocol of a request, by one of the `…_BUMP_VERSION`s."""
    return EPOCH_BUMP_VERSION if request_version >= bump_version else 0


def fenced_code(error_code: int, request_version: int, fenced_version: int) -> int:
    """Return the code for a client that may be too old for PRODUCER_FENCED, by one of the `…_FENCED_VERSION`s."""
    is_old = error_code == PRODUCER_FENCED and request_version < fenced_version
    return INVALID_PRODUCER_EPOCH if is_old else error_code


def produce_code(error_code: int, produce_version: int) -> int:
    """Return the error of a Produce whose partition was not enrolled.

    Producers try again after NOT_ENOUGH_REPLICAS, without new metadata.
    """
    if error_code == PRODUCER_FENCED:
        return INVALID_PRODUCER_EPOCH
    if error_code == TRANSACTION_ABORTABLE and produce_version < PRODUCE_ABORTABLE_VERSION:
        return INVALID_TXN_STATE
    if error_code == CONCURRENT_TRANSACTIONS and produce_version >= PRODUCE_BUMP_VERSION:
        return CONCURRENT_TRANSACTIONS
    if error_code in _AGAIN:
        return NOT_ENOUGH_REPLICAS
    return error_code


def txn_offset_commit_code(error_code: int, request_version: int) -> int:
    """Return the error of a TxnOffsetCommit whose partition was not enrolled.

    From version 2 on clients try again after COORDINATOR_LOAD_IN_PROGRESS; earlier ones can crash (KAFKA-7296).
    """
    if error_code == PRODUCER_FENCED:
        return INVALID_PRODUCER_EPOCH
    if error_code == TRANSACTION_ABORTABLE and request_version < TXN_OFFSET_COMMIT_ABORTABLE_VERSION:
        return INVALID_TXN_STATE
    if error_code in (NETWORK_EXCEPTION, COORDINATOR_LOAD_IN_PROGRESS):
        return COORDINATOR_LOAD_IN_PROGRESS if request_version >= 2 else COORDINATOR_NOT_AVAILABLE
    return error_code


_AGAIN = {
    CONCURRENT_TRANSACTIONS,
    NETWORK_EXCEPTION,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR,
}
