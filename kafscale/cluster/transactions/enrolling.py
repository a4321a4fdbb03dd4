"""Enrols partitions of this broker in a producer's transaction, wherever it is coordinated.

A coordinator on this broker is asked in one step with the append. Another one is asked before, and the transaction may
be over when its answer comes, as the marker comes another way. So the partition expects a first batch until a marker of
the producer comes (Kafka's `VerificationStateEntry`, KIP-890).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.ledger import ProducerIdentity
from kafscale.cluster.transactions.service import TransactionService
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.transactions import Expectation
from kafscale.wire.error_codes import NONE


@attrs.define(eq=False, repr=False)
class ProducerEnrolment:
    """The enrolment of the partitions of one request, by the protocol of a transaction version."""

    transactions: TransactionService
    identity: ProducerIdentity
    transaction_version: int
    _expected: dict[Partition, Expectation] = attrs.field(factory=dict, init=False)  # after the coordinator's answer
    _refused: dict[Partition, int] = attrs.field(factory=dict, init=False)

    def waits(self, partitions: Collection[Partition]) -> bool:
        """Tell whether `ask` must be awaited before these partitions may be written to."""
        if self.transactions.enrols_at_once or not self._unenrolled(partitions):
            return False
        return not self.transactions.internal.is_one_log or self._is_remote

    async def ask(self, partitions: Collection[Partition]) -> None:
        """Enrol partitions durably if that needs a wait; `take_nowait` returns the result."""
        unenrolled = self._unenrolled(partitions)
        if not unenrolled:
            return
        if not self._is_remote:
            if not self.transactions.internal.is_one_log:
                await self.transactions.enrol(
                    self.identity, _places(unenrolled), transaction_version=self.transaction_version
                )
            return
        expected = {partition: partition.transactions.expect(self.identity.producer_id) for partition in unenrolled}
        codes = await self.transactions.remote.enrol(
            self.identity, _places(unenrolled), transaction_version=self.transaction_version
        )
        for partition, expectation in expected.items():
            code = codes[_place(partition)]
            if code == NONE:
                self._expected[partition] = expectation
            else:
                self._refused[partition] = code

    def take_nowait(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Enrol partitions before appending their batches; return the error code of each refused one."""
        left = [
            partition
            for partition in self._unenrolled(partitions)
            if partition not in self._refused and not self._is_expected(partition)
        ]
        refused = {partition: code for partition, code in self._refused.items() if partition in partitions}
        if not left:
            return refused
        codes = self.transactions.enrol_nowait(
            self.identity, _places(left), transaction_version=self.transaction_version
        )
        return refused | {partition: code for partition in left if (code := codes[_place(partition)]) != NONE}

    @property
    def _is_remote(self) -> bool:
        return self.transactions.is_remote(self.identity.transactional_id)

    def _is_expected(self, partition: Partition) -> bool:
        expectation = self._expected.get(partition)
        return expectation is not None and expectation.holds

    def _unenrolled(self, partitions: Collection[Partition]) -> Collection[Partition]:
        """Return the partitions without an open transaction of the producer and epoch, which would be enrolled."""
        producer_id, epoch = self.identity.producer_id, self.identity.producer_epoch
        return [partition for partition in partitions if not partition.transactions.has_open(producer_id, epoch)]


def _place(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.index)


def _places(partitions: Collection[Partition]) -> frozenset[TopicPartition]:
    return frozenset(map(_place, partitions))
