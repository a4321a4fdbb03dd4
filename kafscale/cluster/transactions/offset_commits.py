"""Commits offsets in a transaction: a batch in the group's partition of `__consumer_offsets`.

That partition is enrolled first, by the commit itself (TxnOffsetCommit 5, KIP-890) or by AddOffsetsToTxn. The group is
asked, the partition enrolled, the batch appended and the group told in one step, so that no member is fenced and no
rebalance completes in between. Under `segment`, and with another broker as coordinator, enrolment must be durable
first; then everything is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import trio

from kafscale.cluster.coordinator.entries import Appended, InternalLog, RecordsEntry
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.context import GroupMemberIdentity as Member
from kafscale.cluster.groups.common.log_records import offset_record
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.transactions.enrolling import ProducerEnrolment
from kafscale.cluster.transactions.ledger import ProducerIdentity as Producer
from kafscale.cluster.transactions.service import FATAL_TO_PRODUCERS, TransactionService
from kafscale.cluster.transactions.values import now_ms
from kafscale.errors import KafkaError, StorageFailed
from kafscale.log.partition.partition import Partition
from kafscale.wire.error_codes import COORDINATOR_NOT_AVAILABLE, NONE, NOT_COORDINATOR, NOT_ENOUGH_REPLICAS
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue
from kafscale.wire.records import ProducerStamp

PIECE_COUNT = 1000  # offsets of one batch: 2 ms of the event loop
DURABLE_SECONDS = 5.0  # Kafka: offsets.commit.timeout.ms, 5,000
FIRST_SEQUENCE = 0  # of every batch, as in Kafka: the sequence of coordinators is not checked


@attrs.frozen(kw_only=True)
class OffsetsOfTransaction:
    producer: Producer
    transaction_version: int
    group_id: str
    member: Member
    offsets: Mapping[TopicPartition, OffsetCommitValue]


@attrs.define(eq=False, kw_only=True, repr=False)
class TransactionalOffsets:
    """Commits offsets in transactions. `topic` is `__consumer_offsets`."""

    internal: InternalLog
    groups: GroupCoordinator
    transactions: TransactionService
    topic: str

    async def commit(
        self, wanted: OffsetsOfTransaction, check: Callable[[TopicPartition], int] = lambda at: NONE
    ) -> Mapping[TopicPartition, int]:
        """Commit offsets durably in the transaction; return the error code of each partition that is not committed.

        `check` returns the error code of a partition, whose topic may have been deleted meanwhile. After an error of
        the group or the transaction, no more offsets are tried.
        """
        enrolment = ProducerEnrolment(self.transactions, wanted.producer, wanted.transaction_version)
        refused: dict[TopicPartition, int] = {}
        untried: dict[TopicPartition, int] = {}
        pending = list(wanted.offsets)
        appended: Appended | None = None
        for start in range(0, len(pending), PIECE_COUNT):
            piece = pending[start : start + PIECE_COUNT]
            try:
                await self._enrol(wanted, enrolment)
                refused |= {at: error_code for at in piece if (error_code := check(at)) != NONE}
                offsets = {at: wanted.offsets[at] for at in piece if at not in refused}
                if offsets:
                    appended = self._append(wanted, enrolment, offsets)
            except KafkaError as exc:
                untried = dict.fromkeys(pending[start:], await self._confirmed(exc.code))
                break
            await trio.lowlevel.checkpoint()
        if appended is not None and not await _is_durable(appended):
            return dict.fromkeys(pending, COORDINATOR_NOT_AVAILABLE) | untried | refused
        return untried | refused

    async def _confirmed(self, error_code: int) -> int:
        """Return the error code of a refusal, or that of a superseded broker if it would be fatal to a producer."""
        if error_code in FATAL_TO_PRODUCERS:
            try:
                await self.transactions.confirm_lead()
            except KafkaError as exc:
                return exc.code
        return error_code

    async def _enrol(self, wanted: OffsetsOfTransaction, enrolment: ProducerEnrolment) -> None:
        if not self.transactions.enrols_at_once:
            await enrolment.ask([self._partition(wanted, wanted.offsets)])

    def _append(
        self,
        wanted: OffsetsOfTransaction,
        enrolment: ProducerEnrolment,
        offsets: Mapping[TopicPartition, OffsetCommitValue],
    ) -> Appended:
        partition = self._partition(wanted, offsets)
        _raise(enrolment.take_nowait([partition]).get(partition, NONE))
        time_ms = now_ms()
        records = [offset_record(wanted.group_id, at, offset).encode(time_ms) for at, offset in offsets.items()]
        stamp = ProducerStamp(wanted.producer.producer_id, wanted.producer.producer_epoch, FIRST_SEQUENCE)
        try:
            appended = self.internal.append_group([RecordsEntry(partition, records, stamp)], time_ms)
        except StorageFailed as exc:
            raise KafkaError(NOT_COORDINATOR, str(exc)) from exc
        if appended is None:
            raise KafkaError(COORDINATOR_NOT_AVAILABLE, "there is no room for it now")
        self.groups.transactions.committed(wanted.group_id, wanted.producer.producer_id, offsets, appended.base_offset)
        return appended

    def _partition(
        self, wanted: OffsetsOfTransaction, offsets: Mapping[TopicPartition, OffsetCommitValue]
    ) -> Partition:
        _raise(self.groups.check_transactional_commit(wanted.group_id, wanted.member, offsets))
        partition = self.internal.partition(self.topic, self.groups.led.partition_of(wanted.group_id))
        if partition is None:
            raise KafkaError(NOT_COORDINATOR)
        return partition


def _raise(error_code: int) -> None:
    """Raise KafkaError for an error code. Clients of groups don't know NOT_ENOUGH_REPLICAS."""
    if error_code != NONE:
        raise KafkaError(COORDINATOR_NOT_AVAILABLE if error_code == NOT_ENOUGH_REPLICAS else error_code)


async def _is_durable(appended: Appended) -> bool:
    """Wait until the batch is durable, for a bounded time: otherwise the client commits again."""
    with trio.move_on_after(DURABLE_SECONDS):
        try:
            await appended.wait()
        except StorageFailed:
            return False
        return True
    return False
