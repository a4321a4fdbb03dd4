"""Requests to a transaction coordinator, and its outcomes: a reply, and the entries that must be durable before it.

    outcome = coordinator.end_transaction(request, now_ms=…)
    if outcome.needs_producer_id:              allocate an id, and ask again with it; nothing is decided
    journal.append(outcome.entries)            as one group, in this order; no await since the question
    …durable…                                  `coordinator.is_durable(outcome)` is True if there is nothing to wait for
    for sending in coordinator.done(outcome):  markers for other brokers, for which the decision is now durable
    …outcome.reply…

A batch that enrols its partition goes behind the entries, into the same group. If the journal refuses the group and
writes nothing, `coordinator.undo(outcome)` takes the decision back, again without an await in between. An outcome
without entries may still depend on an earlier decision that is not durable yet. `done` is called for every outcome that
was written, also if its client has gone.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.cluster.transactions.values import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Marker, StateRecord
from kafscale.wire.error_codes import NONE, TRANSACTION_ABORTABLE

Reply = TypeVar("Reply")


@attrs.frozen(kw_only=True)
class ProducerReply:
    """The answer to InitProducerId and EndTxn: with no error the id and epoch that the producer has from now on.

    EndTxn of version 1 changes neither, and says neither.
    """

    error_code: int = NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@attrs.frozen(kw_only=True)
class PartitionsReply:
    """The answer to adding or verifying partitions: one error for all of them, or none, and which take no part."""

    error_code: int = NONE
    not_enrolled: frozenset[TopicPartition] = frozenset()  # where it was to be verified

    def error_of(self, partition: TopicPartition) -> int:
        if self.error_code != NONE:
            return self.error_code
        return TRANSACTION_ABORTABLE if partition in self.not_enrolled else NONE


@attrs.frozen(kw_only=True)
class MarkersToSend:
    """Markers of one transaction for partitions that are led elsewhere: WriteTxnMarkers, repeated until it is answered.

    What is written is told by `MarkersWritten` with this id and epoch.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    markers: tuple[Marker, ...]
    group: int  # the decision that must be durable first


@attrs.frozen(kw_only=True)
class Held:
    """The state of one transactional id at its coordinator."""

    transaction: ProducerTransaction
    group: int = 0  # of the last decision about it; 0: read from the log, so durable
    outstanding: frozenset[TopicPartition] = frozenset()  # whose markers are not known to be written
    is_owed: bool = False  # it is complete, and no record says so yet


@attrs.frozen(kw_only=True)
class CoordinatorOutcome(Generic[Reply]):
    """The decision of a coordinator on one request."""

    reply: Reply
    entries: tuple[StateRecord | Marker, ...] = ()
    group: int = 0  # durable with it, and with all before it, is what the reply says
    needs_producer_id: bool = False  # ask again with a new one; nothing was decided
    former: tuple[str, Held | None] | None = None  # the id and its state before, if the decision can be taken back


@attrs.frozen(kw_only=True)
class InitProducerId:
    """An InitProducerId request with a transactional id; without one there is nothing to coordinate."""

    transactional_id: str
    transaction_timeout_ms: int
    producer_id: int = NO_PRODUCER_ID  # this and the epoch are those of a producer that wants to go on (KIP-360)
    producer_epoch: int = NO_PRODUCER_EPOCH


@attrs.frozen
class ProducerIdentity:
    """The identity of a producer in all of its requests after InitProducerId."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
