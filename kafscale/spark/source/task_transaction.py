"""One attempt of a task writes its rows in a transaction and leaves it open for the driver to end.

Rows are written by columns, or by librdkafka for settings that only it knows. Nothing here imports pyspark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Protocol

import attrs
import pyarrow as pa
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer

from kafscale.errors import KafkaError
from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.producing.enrolment import Enrolment
from kafscale.spark.producing.producer import ColumnProducer
from kafscale.spark.producing.settings import ProducerSettings
from kafscale.spark.source.deliveries import Deliveries, Refusals
from kafscale.spark.transactions.decisions import Prepared, RecordSpan
from kafscale.spark.transactions.logs import UnfilteredPartition

INIT_TIMEOUT_SECONDS = 120.0
INIT_STEP_SECONDS = 1.0  # librdkafka goes on with it when it is asked again
ABORT_TIMEOUT_SECONDS = 10.0  # the driver aborts it, too


class TransactionWriting(Protocol):
    """Writes rows in a transaction. To be closed."""

    def send(self, rows: pa.RecordBatch, topic: str | None) -> None:
        """Write rows to this topic, or to that of each row. Raises ConfigError, KafkaError, BrokerUnavailable."""
        ...

    def finish(self) -> Prepared:
        """Wait until all are acknowledged, and return what is open.

        Raises ConfigError, KafkaError, BrokerUnavailable.
        """
        ...

    def abort(self) -> None:
        """Abort the transaction, if that is quick."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


def prepare(
    batches: Iterable[pa.RecordBatch], topic: str | None, begin: Callable[[], TransactionWriting]
) -> Prepared | None:
    """Write rows, and return their open transaction; None, and no transaction, without rows.

    Raises ConfigError, KafkaError, BrokerUnavailable, and aborts the transaction then.
    """
    writing: TransactionWriting | None = None
    try:
        for rows in batches:
            if rows.num_rows:
                writing = writing or begin()
                writing.send(rows, topic)
        return None if writing is None else writing.finish()
    except BaseException:
        if writing is not None:
            writing.abort()
        raise
    finally:
        if writing is not None:
            writing.close()


# ---- by columns -----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class ColumnWriting:
    """Writes rows by columns. Made by `begin`."""

    producer: ColumnProducer
    enrolment: Enrolment

    @classmethod
    def begin(
        cls, settings: ProducerSettings, cluster: Cluster, transactional_id: str, timeout_ms: int
    ) -> ColumnWriting:
        """Make a writer, which connects when it has enough rows."""
        enrolment = Enrolment(cluster=cluster, transactional_id=transactional_id, timeout_ms=timeout_ms)
        return cls(producer=ColumnProducer.of(settings, enrolment), enrolment=enrolment)

    def send(self, rows: pa.RecordBatch, topic: str | None) -> None:
        """See `TransactionWriting`."""
        self.producer.send(rows, topic)

    def finish(self) -> Prepared:
        """See `TransactionWriting`."""
        self.producer.finish()
        identity = self.enrolment.identity
        assert identity is not None, "there were rows"
        return Prepared(
            transactional_id=self.enrolment.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            spans=tuple(
                RecordSpan(topic=topic, partition=partition, first=task.first, last=task.last, count=task.count)
                for (topic, partition), task in sorted(self.enrolment.written.items())
            ),
        )

    def abort(self) -> None:
        """See `TransactionWriting`."""
        self.producer.close()  # so that nothing is sent behind it
        self.enrolment.abort()

    def close(self) -> None:
        """See `TransactionWriting`."""
        self.producer.close()
        self.enrolment.close()


# ---- by librdkafka --------------------------------------------------------------------------------------------------


@attrs.define(kw_only=True, eq=False, repr=False)
class TracedDeliveries(Deliveries):
    """Deliveries, and the offsets of the delivered records."""

    _spans: dict[tuple[str, int], list[int]] = attrs.field(factory=dict, init=False)  # first, last, count

    @property
    def spans(self) -> tuple[RecordSpan, ...]:
        """Return the offsets of the records, in order of topic and partition."""
        return tuple(
            RecordSpan(topic=topic, partition=partition, first=first, last=last, count=count)
            for (topic, partition), (first, last, count) in sorted(self._spans.items())
        )

    def delivered(self, error: ClientError | None, message: Message) -> None:
        """Note the end of a record and its offset."""
        Deliveries.delivered(self, error, message)
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None or topic is None or partition is None or offset is None:
            return
        span = self._spans.setdefault((topic, partition), [offset, offset, 0])
        span[0] = min(span[0], offset)
        span[1] = max(span[1], offset)
        span[2] += 1


@attrs.frozen(kw_only=True, eq=False)
class LibrdkafkaWriting:
    """Writes rows by librdkafka. Made by `begin`."""

    transactional_id: str
    open_cluster: Callable[[], Cluster]
    deliveries: TracedDeliveries

    @classmethod
    def begin(
        cls,
        transactional_id: str,
        open_cluster: Callable[[], Cluster],
        open_producer: Callable[[Refusals], Producer],
    ) -> LibrdkafkaWriting:
        """Begin a transaction. `open_producer` opens a producer with its id. Raises KafkaError."""
        refusals = Refusals()
        producer = open_producer(refusals)
        try:
            _initialise(producer, refusals)
            producer.begin_transaction()
        except KafkaException as exc:
            error = exc.args[0]
            raise KafkaError(error.code(), f"transactional id '{transactional_id}': {error.str()}") from exc
        deliveries = TracedDeliveries(producer=producer, refusals=refusals)
        return cls(transactional_id=transactional_id, open_cluster=open_cluster, deliveries=deliveries)

    def send(self, rows: pa.RecordBatch, topic: str | None) -> None:
        """See `TransactionWriting`."""
        self.deliveries.send(rows, topic)

    def finish(self) -> Prepared:
        """Take the producer's id and epoch from a batch of its own, as the coordinator may know a later producer.

        See `TransactionWriting`.
        """
        self.deliveries.finish()
        spans = self.deliveries.spans
        with closing(self.open_cluster()) as cluster:
            log = UnfilteredPartition(cluster=cluster, topic=spans[0].topic, partition=spans[0].partition)
            header = log.batch_at(spans[0].first).header
        return Prepared(
            transactional_id=self.transactional_id,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            spans=spans,
        )

    def abort(self) -> None:
        """See `TransactionWriting`."""
        with suppress(KafkaException):
            self.deliveries.producer.abort_transaction(ABORT_TIMEOUT_SECONDS)

    def close(self) -> None:
        """Do nothing: librdkafka closes its connections with the producer."""


def _initialise(producer: Producer, refusals: Refusals) -> None:
    """Wait for the coordinator, unless it refuses the login. Raises KafkaError, KafkaException."""
    until = time.monotonic() + INIT_TIMEOUT_SECONDS
    while True:
        try:
            producer.init_transactions(INIT_STEP_SECONDS)
        except KafkaException as exc:
            producer.poll(0)  # which calls `refusals.note`
            refusals.check()
            if exc.args[0].code() != ClientError._TIMED_OUT or time.monotonic() > until:
                raise
        else:
            return
