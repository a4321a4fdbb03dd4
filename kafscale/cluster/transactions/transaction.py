"""The state of one transactional id, and functions that return its next state. The coordinator checks the requests.

Kafka's rules for epochs (KIP-98, KIP-360, KIP-890):

    InitProducerId            epoch + 1; a new producer id, and epoch 0, where the epochs of the old one are used up
    EndTxn, version 1         the epoch stays
    EndTxn, version 2         PREPARE has epoch + 1, which is the producer's next one; where that would be the last
                              epoch there is, COMPLETE goes over to `next_producer_id` and epoch 0
    timeout, fencing          PREPARE has epoch + 2: + 1 that fences, + 1 of version 2, so that a producer with the
                              old epoch can't take the answer for that to a repeated EndTxn

A producer never gets the last epoch (32767), which is left for fencing it.
"""

from __future__ import annotations

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.values import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP_MS,
    PRODUCER_EPOCH_MAX,
    StateRecord,
    TransactionState,
    partitions_by_topic,
)
from kafscale.wire.internal_topics.transaction_state import TransactionLogValue

EPOCH_BUMP_VERSION = 2  # `transaction.version` from which on each transaction has an epoch of its own (KIP-890)
LAST_GIVEN_EPOCH = PRODUCER_EPOCH_MAX - 1


@attrs.frozen(kw_only=True)
class ProducerTransaction:
    transactional_id: str
    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID  # before the last step
    next_producer_id: int = NO_PRODUCER_ID  # to go over to when the transaction is complete
    producer_epoch: int
    last_producer_epoch: int = NO_PRODUCER_EPOCH  # its producer may repeat a request whose reply was lost
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    start_timestamp_ms: int = NO_TIMESTAMP_MS
    last_update_timestamp_ms: int
    client_transaction_version: int = 0

    @classmethod
    def of(cls, transactional_id: str, value: TransactionLogValue) -> ProducerTransaction:
        """Decode a record. Raises ValueError for an unknown status."""
        by_topic = value.transaction_partitions or ()
        return cls(
            transactional_id=transactional_id,
            producer_id=value.producer_id,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            producer_epoch=value.producer_epoch,
            timeout_ms=value.transaction_timeout_ms,
            state=TransactionState(value.transaction_status),
            partitions=frozenset(
                TopicPartition(topic.topic, index) for topic in by_topic for index in topic.partition_ids
            ),
            start_timestamp_ms=value.transaction_start_timestamp_ms,
            last_update_timestamp_ms=value.transaction_last_update_timestamp_ms,
            client_transaction_version=value.client_transaction_version,
        )

    def record(self) -> StateRecord:
        """Return the record of the state, which has no last epoch."""
        is_empty = self.state is TransactionState.EMPTY
        value = TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=int(self.state),
            transaction_partitions=None if is_empty else partitions_by_topic(self.partitions),
            transaction_last_update_timestamp_ms=self.last_update_timestamp_ms,
            transaction_start_timestamp_ms=self.start_timestamp_ms,
            client_transaction_version=self.client_transaction_version,
        )
        return StateRecord(self.transactional_id, value)

    @property
    def is_exhausted(self) -> bool:
        """Tell whether there is no further epoch for a producer."""
        return self.producer_epoch >= LAST_GIVEN_EPOCH

    @property
    def deadline_ms(self) -> int | None:
        """The time after which an ongoing transaction is aborted."""
        return self.start_timestamp_ms + self.timeout_ms if self.state is TransactionState.ONGOING else None

    def with_new_epoch(self, *, timeout_ms: int, now_ms: int, last_producer_epoch: int) -> ProducerTransaction:
        """Return the state after InitProducerId: the next epoch of the same producer id."""
        assert not self.is_exhausted
        return self._initialised(self.producer_id, self.producer_epoch + 1, last_producer_epoch, timeout_ms, now_ms)

    def with_same_epoch(self, *, timeout_ms: int, now_ms: int) -> ProducerTransaction:
        """Return the state after an InitProducerId that repeats one whose reply was lost."""
        assert TransactionState.EMPTY.may_follow(self.state), self
        return attrs.evolve(
            self,
            state=TransactionState.EMPTY,
            timeout_ms=timeout_ms,
            start_timestamp_ms=NO_TIMESTAMP_MS,
            last_update_timestamp_ms=self._no_earlier(now_ms),
        )

    def with_new_producer_id(
        self, producer_id: int, *, timeout_ms: int, now_ms: int, last_producer_epoch: int
    ) -> ProducerTransaction:
        """Return the state after an InitProducerId without further epochs."""
        return self._initialised(producer_id, 0, last_producer_epoch, timeout_ms, now_ms)

    def _initialised(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> ProducerTransaction:
        assert TransactionState.EMPTY.may_follow(self.state), self
        return ProducerTransaction(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            previous_producer_id=self.producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            last_update_timestamp_ms=self._no_earlier(now_ms),
            client_transaction_version=self.client_transaction_version,
        )

    def enrolled(
        self, partitions: frozenset[TopicPartition], *, transaction_version: int, now_ms: int
    ) -> ProducerTransaction:
        """Return the state with more partitions."""
        assert TransactionState.ONGOING.may_follow(self.state), self
        is_ongoing = self.state is TransactionState.ONGOING
        updated_ms = self._no_earlier(now_ms)
        return ProducerTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            previous_producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_producer_epoch=self.last_producer_epoch,
            timeout_ms=self.timeout_ms,
            state=TransactionState.ONGOING,
            partitions=self.partitions | partitions,
            start_timestamp_ms=self.start_timestamp_ms if is_ongoing else updated_ms,
            last_update_timestamp_ms=updated_ms,
            client_transaction_version=transaction_version,
        )

    def fenced(self, *, now_ms: int, last_producer_epoch: int | None = None) -> ProducerTransaction:
        """Return PREPARE_ABORT by the coordinator itself, which fences the producer with the current epoch.

        A producer that asked for this and names `last_producer_epoch` may go on.
        """
        fence_epoch = min(self.producer_epoch + 1, PRODUCER_EPOCH_MAX)
        return self._prepared(
            TransactionState.PREPARE_ABORT,
            producer_epoch=min(fence_epoch + 1, PRODUCER_EPOCH_MAX),
            last_producer_epoch=fence_epoch if last_producer_epoch is None else last_producer_epoch,
            transaction_version=EPOCH_BUMP_VERSION,
            now_ms=now_ms,
        )

    def ended(
        self, *, committed: bool, transaction_version: int, now_ms: int, next_producer_id: int = NO_PRODUCER_ID
    ) -> ProducerTransaction:
        """Return PREPARE_COMMIT or PREPARE_ABORT, as the producer wants."""
        bumps = transaction_version >= EPOCH_BUMP_VERSION
        return self._prepared(
            TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            producer_epoch=self.producer_epoch + 1 if bumps else self.producer_epoch,
            last_producer_epoch=self.producer_epoch if bumps else self.last_producer_epoch,
            transaction_version=transaction_version if bumps else 0,
            now_ms=now_ms,
            next_producer_id=next_producer_id,
        )

    def _prepared(
        self,
        state: TransactionState,
        *,
        producer_epoch: int,
        last_producer_epoch: int,
        transaction_version: int,
        now_ms: int,
        next_producer_id: int = NO_PRODUCER_ID,
    ) -> ProducerTransaction:
        assert state.may_follow(self.state), self
        assert 0 <= producer_epoch <= PRODUCER_EPOCH_MAX, self
        nothing_enrolled = self.state.may_expire
        updated_ms = self._no_earlier(now_ms)
        return ProducerTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            producer_epoch=producer_epoch,
            last_producer_epoch=last_producer_epoch,
            timeout_ms=self.timeout_ms,
            state=state,
            partitions=self.partitions,
            start_timestamp_ms=updated_ms if nothing_enrolled else self.start_timestamp_ms,
            last_update_timestamp_ms=updated_ms,
            client_transaction_version=transaction_version,
        )

    @property
    def following_producer(self) -> tuple[int, int]:
        """The producer id and epoch after the prepared transaction is complete."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch

    def completed(self, *, now_ms: int) -> ProducerTransaction:
        """Return COMPLETE_COMMIT or COMPLETE_ABORT: every marker is written."""
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        state = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
        assert state.may_follow(self.state), self
        producer_id, producer_epoch = self.following_producer
        return ProducerTransaction(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            previous_producer_id=self.producer_id,
            producer_epoch=producer_epoch,
            last_producer_epoch=self.last_producer_epoch,
            timeout_ms=self.timeout_ms,
            state=state,
            start_timestamp_ms=self.start_timestamp_ms,
            last_update_timestamp_ms=self._no_earlier(now_ms),
            client_transaction_version=self.client_transaction_version,
        )

    def _no_earlier(self, now_ms: int) -> int:
        """Return a time that is not before the last update: another clock may have been ahead."""
        return max(now_ms, self.last_update_timestamp_ms)
