"""The transaction that all records of a producer are in: their partitions are enrolled before the first are sent, and
it is left open (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import attrs

from kafscale.errors import BrokerUnavailable, KafkaError, ProtocolError
from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.brokers.transactional import end, enrol, initialise
from kafscale.spark.producing.batches import Identity
from kafscale.wire import error_codes

ABORT_SECONDS = 10.0  # the driver aborts it, too


@attrs.define
class Written:
    """The records in one partition: `count` of them, among offsets from first to last."""

    first: int
    last: int
    count: int


@attrs.define(eq=False, kw_only=True, repr=False)
class Enrolment:
    """One transaction. `written` is what is acknowledged of it. To be closed."""

    cluster: Cluster
    transactional_id: str
    timeout_ms: int
    identity: Identity | None = attrs.field(default=None, init=False)
    written: dict[tuple[str, int], Written] = attrs.field(factory=dict, init=False)
    _enrolled: set[tuple[str, int]] = attrs.field(factory=set, init=False)

    def close(self) -> None:
        """Close connections, and leave the transaction as it is."""
        self.cluster.close()

    def identify(self) -> Identity:
        """Fence the former owner of the id, and abort its transaction. Raises BrokerUnavailable, KafkaError."""
        producer_id, epoch = initialise(self.cluster, self.transactional_id, self.timeout_ms)
        self.identity = Identity(producer_id=producer_id, producer_epoch=epoch)
        return self.identity

    def enrol(self, places: Iterable[tuple[str, int]]) -> None:
        """Add these partitions before they get records. Raises BrokerUnavailable, KafkaError."""
        new = sorted({*places} - self._enrolled)
        if new:
            enrol(self.cluster, self.transactional_id, self.producer, new)
            self._enrolled.update(new)

    def note(self, place: tuple[str, int], base_offset: int, record_count: int) -> None:
        """Take where a batch is that was acknowledged. Raises KafkaError if the broker does not tell."""
        if base_offset < 0:
            code = error_codes.DUPLICATE_SEQUENCE_NUMBER
            raise KafkaError(code, f"a broker does not tell where a batch is in partition {place[1]} of '{place[0]}'")
        last = base_offset + record_count - 1
        known = self.written.setdefault(place, Written(base_offset, last, 0))
        known.first, known.last = min(known.first, base_offset), max(known.last, last)
        known.count += record_count

    def abort(self) -> None:
        """Abort it, if that can be done soon."""
        if self.identity is not None:
            self.cluster.retry_seconds = min(self.cluster.retry_seconds, ABORT_SECONDS)
            with suppress(BrokerUnavailable, KafkaError, ProtocolError):
                end(self.cluster, self.transactional_id, self.producer, committed=False)

    @property
    def producer(self) -> tuple[int, int]:
        """Return the id and epoch of its producer, which there are when it has batches."""
        assert self.identity is not None
        return self.identity.producer_id, self.identity.producer_epoch
