"""Outcomes of a transaction coordinator: a reply, and the entries that must be durable before it.

    outcome = coordinator.end_transaction(identity, …, now_ms=…)
    if outcome.needs_producer_id:              nothing is decided: allocate an id, and ask again with it
    journal.append(outcome.entries)            as one group, in order, without an await since the call
    …durable…                                  at once if `coordinator.is_durable(outcome)`
    for sending in coordinator.done(outcome):  markers for other brokers, whose decision is now durable
    …outcome.reply…

A batch that enrols its partition goes behind the entries, into the same group. If the journal refuses the group,
`coordinator.undo(outcome)` takes the decision back, without an await in between. An outcome without entries may depend
on an earlier decision that is not durable yet. `done` must be called for every written outcome, even without a client.
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
    """The answer to InitProducerId and EndTxn, with the producer's new id and epoch. EndTxn 1 changes neither."""

    error_code: int = NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@attrs.frozen(kw_only=True)
class PartitionsReply:
    """The answer to adding or verifying partitions: one error for all, or the partitions that are not enrolled."""

    error_code: int = NONE
    not_enrolled: frozenset[TopicPartition] = frozenset()  # when verifying

    def error_of(self, partition: TopicPartition) -> int:
        if self.error_code != NONE:
            return self.error_code
        return TRANSACTION_ABORTABLE if partition in self.not_enrolled else NONE


@attrs.frozen(kw_only=True)
class MarkersToSend:
    """Markers of one transaction for partitions of other brokers, sent by WriteTxnMarkers until all are written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    markers: tuple[Marker, ...]
    group: int  # the decision that must be durable first


@attrs.frozen(kw_only=True)
class Held:
    transaction: ProducerTransaction
    group: int = 0  # of the last decision about it; 0: from the log
    outstanding: frozenset[TopicPartition] = frozenset()  # without a written marker
    is_owed: bool = False  # complete, but no record says so yet


@attrs.frozen(kw_only=True)
class CoordinatorOutcome(Generic[Reply]):
    """The decision of a coordinator on one request."""

    reply: Reply
    entries: tuple[StateRecord | Marker, ...] = ()
    group: int = 0  # the reply waits until this group is durable
    needs_producer_id: bool = False  # nothing was decided: ask again with a new id
    former: tuple[str, Held | None] | None = None  # the id and its state before, if the decision can be taken back


@attrs.frozen(kw_only=True)
class InitProducerId:
    """An InitProducerId request with a transactional id."""

    transactional_id: str
    transaction_timeout_ms: int
    producer_id: int = NO_PRODUCER_ID  # with its epoch, of a producer that wants to go on (KIP-360)
    producer_epoch: int = NO_PRODUCER_EPOCH


@attrs.frozen
class ProducerIdentity:
    """The identity of a producer in its requests after InitProducerId."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
