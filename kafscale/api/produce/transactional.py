"""Batches of a transaction: their partitions take part in it before they have them.

What belongs to a transaction that is open in its partition is enrolled there, as nothing else opens one. For the first
batch the coordinator is asked: by Produce 12 to enrol the partition, by earlier versions whether AddPartitionsToTxn has
(KIP-890). Enrolment and batch follow each other in the write-ahead log; under `segment`, and where another broker
coordinates the transaction, the batch waits for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from kafscale.api.handling.services import Services
from kafscale.api.produce.batches import Batch
from kafscale.cluster.transactions.enrolling import ProducerEnrolment
from kafscale.cluster.transactions.requests import ProducerIdentity
from kafscale.cluster.transactions.versions import PRODUCE_BUMP_VERSION, produce_code, transaction_version
from kafscale.errors import KafkaError
from kafscale.log.partition.partition import Partition
from kafscale.wire import error_codes


@attrs.define(eq=False, repr=False)
class TransactionalProduce:
    """One Produce with a transactional id; some of its batches may be of no transaction all the same."""

    services: Services
    transactional_id: str
    version: int
    _enrolment: ProducerEnrolment | None = attrs.field(default=None, init=False)

    def check(self, batch: Batch) -> None:
        """Check that all batches of transactions are one producer's. Raises KafkaError INVALID_PRODUCER_ID_MAPPING."""
        header = batch.header
        if not header.is_transactional:
            return
        identity = ProducerIdentity(self.transactional_id, header.producer_id, header.producer_epoch)
        if self._enrolment is None:
            protocol = transaction_version(self.version, PRODUCE_BUMP_VERSION)
            self._enrolment = ProducerEnrolment(self.services.transactions, identity, protocol)
        elif self._enrolment.identity != identity:
            reason = "Transactional records contained more than one producer ID"
            raise KafkaError(error_codes.INVALID_PRODUCER_ID_MAPPING, reason)

    def waits(self, batches: Sequence[Batch]) -> bool:
        """Tell whether enrolment has to be waited for."""
        return self._enrolment is not None and self._enrolment.waits(_partitions(batches))

    async def enrol(self, batches: Sequence[Batch]) -> None:
        """Enrol partitions durably where that takes a wait; `enrol_nowait` then tells the outcome."""
        if self._enrolment is not None:
            await self._enrolment.ask(_partitions(batches))

    def enrol_alone(self, batch: Batch) -> bool:
        """Enrol the partition of the only batch, which is appended next; False if that is refused, or takes a wait.

        Then it goes the general way, which tells why. Raises KafkaError as `check`.
        """
        self.check(batch)
        enrolment, partitions = self._enrolment, [batch.partition]
        return enrolment is None or (not enrolment.waits(partitions) and not enrolment.take_nowait(partitions))

    def enrol_nowait(self, batches: Sequence[Batch]) -> Mapping[Batch, KafkaError]:
        """Enrol the partitions of batches that are appended next. Return the refused batches, and why."""
        if self._enrolment is None:
            return {}
        refused = self._enrolment.take_nowait(_partitions(batches))
        return {
            batch: KafkaError(produce_code(refused[batch.partition], self.version))
            for batch in batches
            if batch.header.is_transactional and batch.partition in refused
        }


def _partitions(batches: Sequence[Batch]) -> Sequence[Partition]:
    """The partitions that get something of a transaction."""
    return [batch.partition for batch in batches if batch.header.is_transactional]
