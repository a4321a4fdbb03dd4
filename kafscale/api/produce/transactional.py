"""Batches of a transaction: their partitions take part in it before they have them.

What belongs to a transaction that is open in its partition is enrolled there, as nothing else opens one. For the first
batch the coordinator is asked: by Produce 12 to enrol the partition, by earlier versions whether AddPartitionsToTxn has
(KIP-890). Enrolment and batch follow each other in the write-ahead log; under `segment` the batch waits for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from kafscale.api.handling.services import Services
from kafscale.api.produce.batches import Batch
from kafscale.cluster.transactions.requests import Identity
from kafscale.cluster.transactions.values import TopicPartition
from kafscale.cluster.transactions.versions import PRODUCE_BUMP_VERSION, produce_code, transaction_version
from kafscale.errors import KafkaError
from kafscale.wire import error_codes


@attrs.define(eq=False, repr=False)
class TransactionalProduce:
    """One Produce with a transactional id; some of its batches may be of no transaction all the same."""

    services: Services
    transactional_id: str
    version: int
    _identity: Identity | None = attrs.field(default=None, init=False)

    def check(self, batch: Batch) -> None:
        """Check that all batches of transactions are one producer's. Raises KafkaError INVALID_PRODUCER_ID_MAPPING."""
        header = batch.header
        if not header.is_transactional:
            return
        identity = Identity(self.transactional_id, header.producer_id, header.producer_epoch)
        if self._identity is None:
            self._identity = identity
        elif self._identity != identity:
            reason = "Transactional records contained more than one producer ID"
            raise KafkaError(error_codes.INVALID_PRODUCER_ID_MAPPING, reason)

    def waits(self, batches: Sequence[Batch]) -> bool:
        """Tell whether enrolment has to be waited for."""
        return not self.services.internal.is_one_log and bool(_unenrolled(batches))

    async def enrol(self, batches: Sequence[Batch]) -> None:
        """Have partitions enrolled durably, where that is to be waited for; `enrol_nowait` says how it went."""
        if self.waits(batches) and self._identity is not None:
            await self.services.transactions.enrol(
                self._identity, frozenset(_unenrolled(batches).values()), transaction_version=self._protocol
            )

    def enrol_alone(self, batch: Batch) -> bool:
        """Have the partition of the only batch enrolled, which is appended next; False if that is refused, or waits.

        Then it goes the general way, which tells why. Raises KafkaError as `check`.
        """
        self.check(batch)
        return not self.waits([batch]) and not self.enrol_nowait([batch])

    def enrol_nowait(self, batches: Sequence[Batch]) -> Mapping[Batch, KafkaError]:
        """Have partitions enrolled whose batches are appended next. Returns which batches may not be, and why."""
        unenrolled = _unenrolled(batches)
        if not unenrolled or self._identity is None:
            return {}
        if not self.services.assignment.is_alone:  # a transaction that began before is to end with what it has
            refused = KafkaError(produce_code(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, self.version))
            return dict.fromkeys(unenrolled, refused)
        errors = self.services.transactions.enrol_nowait(
            self._identity, frozenset(unenrolled.values()), transaction_version=self._protocol
        )
        return {
            batch: KafkaError(produce_code(errors[at], self.version))
            for batch, at in unenrolled.items()
            if errors[at] != error_codes.NONE
        }

    @property
    def _protocol(self) -> int:
        return transaction_version(self.version, PRODUCE_BUMP_VERSION)


def _unenrolled(batches: Sequence[Batch]) -> Mapping[Batch, TopicPartition]:
    """The batches whose partition has no transaction of their producer and epoch open."""
    found = {}
    for batch in batches:
        header, partition = batch.header, batch.partition
        if header.is_transactional and not partition.transactions.has_open(header.producer_id, header.producer_epoch):
            found[batch] = TopicPartition(partition.topic, partition.index)
    return found
