"""Requests of a transactional producer besides Produce (KIP-98), and the transaction that a task leaves open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

import attrs

from kafscale.errors import BrokerUnavailable, KafkaError, ProtocolError
from kafscale.login.failures import check
from kafscale.spark.brokers.cluster import Cluster
from kafscale.wire import error_codes
from kafscale.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

ABORT_SECONDS = 10.0  # the driver aborts it, too


@attrs.frozen(kw_only=True)
class WriterIdentity:
    """A producer's id and epoch, given by a broker."""

    producer_id: int
    producer_epoch: int


@attrs.frozen(kw_only=True)
class RecordSpan:
    """The records of a transaction in one partition: `count` of them, among offsets from first to last."""

    topic: str
    partition: int
    first: int
    last: int
    count: int


@attrs.frozen(kw_only=True)
class Prepared:
    """The open transaction of one task, whose records are all acknowledged."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    spans: tuple[RecordSpan, ...]


def initialise(cluster: Cluster, transactional_id: str, timeout_ms: int) -> WriterIdentity:
    """Fence the former producer of the id and end its transaction. Raises BrokerUnavailable, KafkaError."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)

    def ask() -> WriterIdentity:
        response = cluster.ask(cluster.coordinator(transactional_id), request, InitProducerIdResponse)
        check(response.error_code, f"transactional id '{transactional_id}'")
        return WriterIdentity(producer_id=response.producer_id, producer_epoch=response.producer_epoch)

    return cluster.patiently(ask)


def end(cluster: Cluster, transactional_id: str, producer_id: int, producer_epoch: int, *, committed: bool) -> None:
    """End a transaction, unless it has ended the same way before.

    Raises BrokerUnavailable, KafkaError: the id or epoch is fenced, or the transaction ended otherwise.
    """
    request = EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=producer_epoch, committed=committed
    )

    def ask() -> None:
        response = cluster.ask(cluster.coordinator(transactional_id), request, EndTxnResponse)
        check(response.error_code, f"transactional id '{transactional_id}'")

    cluster.patiently(ask)


@attrs.define(eq=False, kw_only=True, repr=False)
class WriterTransaction:
    """One transactional producer and its present transaction. To be closed.

    spans: the acknowledged records by topic and partition.
    """

    cluster: Cluster
    transactional_id: str
    timeout_ms: int
    identity: WriterIdentity | None = attrs.field(default=None, init=False)
    spans: dict[tuple[str, int], RecordSpan] = attrs.field(factory=dict, init=False)
    _enrolled: set[tuple[str, int]] = attrs.field(factory=set, init=False)

    def close(self) -> None:
        """Close connections, and leave the transaction as it is."""
        self.cluster.close()

    def identify(self) -> WriterIdentity:
        """Fence the former producer of the id, and abort its transaction. Raises BrokerUnavailable, KafkaError."""
        self.identity = initialise(self.cluster, self.transactional_id, self.timeout_ms)
        return self.identity

    def enrol(self, places: Iterable[tuple[str, int]]) -> None:
        """Add partitions to the transaction before they get records. Raises BrokerUnavailable, KafkaError."""
        new = sorted({*places} - self._enrolled)
        if not new:
            return
        assert self.identity is not None, "batches have an identity before they are enrolled"
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in new:
            by_topic[topic].append(partition)
        request = AddPartitionsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=found) for topic, found in by_topic.items()],
        )

        def ask() -> None:
            coordinator = self.cluster.coordinator(self.transactional_id)
            for topic in self.cluster.ask(coordinator, request, AddPartitionsToTxnResponse).results_by_topic:
                for result in topic.results_by_partition:
                    about = f"transactional id '{self.transactional_id}' in '{topic.name}' {result.partition_index}"
                    check(result.partition_error_code, about)

        self.cluster.patiently(ask)
        self._enrolled.update(new)

    def note(self, place: tuple[str, int], base_offset: int, record_count: int) -> None:
        """Record the offsets of an acknowledged batch. Raises KafkaError if the broker does not tell them."""
        topic, partition = place
        if base_offset < 0:
            code = error_codes.DUPLICATE_SEQUENCE_NUMBER
            raise KafkaError(code, f"a broker does not tell where a batch is in partition {partition} of '{topic}'")
        last = base_offset + record_count - 1
        known = self.spans.get(place)
        if known is not None:
            base_offset, last = min(known.first, base_offset), max(known.last, last)
            record_count += known.count
        self.spans[place] = RecordSpan(
            topic=topic, partition=partition, first=base_offset, last=last, count=record_count
        )

    def prepared(self) -> Prepared | None:
        """Return the open transaction; None without records."""
        if self.identity is None:
            return None
        return Prepared(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            spans=tuple(span for _, span in sorted(self.spans.items())),
        )

    def end(self, *, committed: bool) -> None:
        """End the transaction, if it has partitions. Raises BrokerUnavailable, KafkaError."""
        if self._enrolled and self.identity is not None:
            end(self.cluster, self.transactional_id, *attrs.astuple(self.identity), committed=committed)
            self._enrolled.clear()

    def abort_soon(self) -> None:
        """Abort the transaction of a failed task, unless that takes longer than ABORT_SECONDS."""
        if self.identity is not None:
            self.cluster.retry_seconds = min(self.cluster.retry_seconds, ABORT_SECONDS)
            with suppress(BrokerUnavailable, KafkaError, ProtocolError):
                end(self.cluster, self.transactional_id, *attrs.astuple(self.identity), committed=False)
