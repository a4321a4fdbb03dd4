"""One attempt of a task: its rows go into a transaction that is left open for the driver to end.

Nothing here imports pyspark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress

import attrs
import pyarrow as pa
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer

from kafscale.errors import KafkaError
from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.source.deliveries import Deliveries, Refusals
from kafscale.spark.transactions.decision import Prepared, Span
from kafscale.spark.transactions.logs import PartitionLog

INIT_TIMEOUT_SECONDS = 120.0
INIT_STEP_SECONDS = 1.0  # librdkafka goes on with it when it is asked again
ABORT_TIMEOUT_SECONDS = 10.0  # the driver aborts it, too


@attrs.frozen(kw_only=True)
class TaskTransaction:
    """The transaction of one attempt. `open_producer` opens a producer with its transactional id."""

    transactional_id: str
    open_cluster: Callable[[], Cluster]
    open_producer: Callable[[Refusals], Producer]

    def prepare(self, batches: Iterable[pa.RecordBatch], topic: str | None) -> Prepared | None:
        """Write rows to this topic, or to that of each row, and return what is open then.

        None, and no transaction, if there are no rows.

        Raises ConfigError, KafkaError, BrokerUnavailable; the transaction is aborted then.
        """
        deliveries: TracedDeliveries | None = None
        try:
            for rows in batches:
                if rows.num_rows:
                    deliveries = deliveries or self._begin()
                    deliveries.send(rows, topic)
            if deliveries is None:
                return None
            deliveries.finish()
            return self._prepared(deliveries.spans)
        except BaseException:
            if deliveries is not None:
                with suppress(KafkaException):
                    deliveries.producer.abort_transaction(ABORT_TIMEOUT_SECONDS)
            raise

    def _begin(self) -> TracedDeliveries:
        refusals = Refusals()
        producer = self.open_producer(refusals)
        try:
            self._initialise(producer, refusals)
            producer.begin_transaction()
        except KafkaException as exc:
            error = exc.args[0]
            raise KafkaError(error.code(), f"transactional id '{self.transactional_id}': {error.str()}") from exc
        return TracedDeliveries(producer=producer, refusals=refusals)

    def _initialise(self, producer: Producer, refusals: Refusals) -> None:
        """Wait for the coordinator, but for none that refuses the login. Raises KafkaError, KafkaException."""
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

    def _prepared(self, spans: tuple[Span, ...]) -> Prepared:
        """Look up the producer's id and epoch in a batch of its own: the coordinator may tell of a later producer's."""
        with closing(self.open_cluster()) as cluster:
            log = PartitionLog(cluster=cluster, topic=spans[0].topic, partition=spans[0].partition)
            header = log.batch_at(spans[0].first).header
        return Prepared(
            transactional_id=self.transactional_id,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            spans=spans,
        )


@attrs.define(kw_only=True, eq=False, repr=False)
class TracedDeliveries(Deliveries):
    """Deliveries, and where they are."""

    _spans: dict[tuple[str, int], list[int]] = attrs.field(factory=dict, init=False)  # first, last, count

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return where records are, in order of topic and partition."""
        return tuple(
            Span(topic=topic, partition=partition, first=first, last=last, count=count)
            for (topic, partition), (first, last, count) in sorted(self._spans.items())
        )

    def delivered(self, error: ClientError | None, message: Message) -> None:
        """librdkafka has done with a record."""
        Deliveries.delivered(self, error, message)
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None or topic is None or partition is None or offset is None:
            return
        span = self._spans.setdefault((topic, partition), [offset, offset, 0])
        span[0] = min(span[0], offset)
        span[1] = max(span[1], offset)
        span[2] += 1
