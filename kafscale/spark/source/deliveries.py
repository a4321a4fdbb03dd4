"""Delivers rows of Arrow batches to a broker by confluent-kafka's producer. Nothing here imports pyspark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import pyarrow as pa
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer

from kafscale.errors import ConfigError, KafkaError

ANY_PARTITION = -1
NO_HEADERS: Sequence[Any] = ()
POLL_SECONDS = 1.0  # while the queue is full, and between two looks at what was refused
COLUMNS: Mapping[str, Sequence[str]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}


# For a writer that is told of failures alone: to tell Python of each record that was delivered takes more time than all
# the rest. `delivered` is called all the same for those that were not.
FAILURES_ALONE: Mapping[str, Any] = {"delivery.report.only.error": True}


@attrs.define(eq=False, repr=False)
class Refusals:
    """The first refusal of a producer's connections that will not pass, as librdkafka retries all the same.

    `note` is its `error_cb`.
    """

    first: ClientError | None = None

    def note(self, error: ClientError) -> None:
        """Keep an error of a login, or of an untrusted certificate; other errors may pass."""
        untrusted = error.code() == ClientError._SSL and "verify failed" in error.str()
        if untrusted or error.code() == ClientError._AUTHENTICATION:
            self.first = self.first or error

    def check(self) -> None:
        """Raise KafkaError for the refusal, if any."""
        if self.first is not None:
            raise KafkaError(self.first.code(), f"no connection to the broker: {self.first.str()}")


@attrs.define(kw_only=True, eq=False, repr=False)
class Deliveries:
    """Records on their way, and the first that was not delivered."""

    producer: Producer
    refusals: Refusals = attrs.field(factory=Refusals)
    failure: ClientError | None = None

    def send(self, rows: pa.RecordBatch, topic: str | None) -> None:
        """Hand rows to the producer, in order, to this topic or to that of each row.

        Raises ConfigError for a row without a topic, KafkaError if a record was not delivered, now or before.
        """
        produce, delivered = self.producer.produce, self.delivered
        for key, value, headers, row_topic, partition in zip(*_columns(rows), strict=True):
            if (chosen := topic or row_topic) is None:
                raise ConfigError("a row has null as its topic: fill the column, or set the option topic")
            at = ANY_PARTITION if partition is None else partition
            named = [(header["key"], header["value"]) for header in headers or NO_HEADERS]
            try:
                produce(chosen, value, key, at, on_delivery=delivered, headers=named)
            except (BufferError, KafkaException) as exc:
                self._produce_later(exc, partial(produce, chosen, value, key, at, on_delivery=delivered, headers=named))
        self.producer.poll(0)
        self._raise_failure()

    def finish(self) -> None:
        """Wait for all records; librdkafka gives up after `message.timeout.ms`. Raises KafkaError."""
        while self.producer.flush(POLL_SECONDS):
            self.refusals.check()
        self._raise_failure()

    def delivered(self, error: ClientError | None, message: Message) -> None:
        """Note the end of a record, by librdkafka's callback."""
        self.failure = self.failure or error

    def _produce_later(self, refusal: Exception, produce: Callable[[], None]) -> None:
        """Retry a record while the producer's queue is full. Raises KafkaError."""
        while isinstance(refusal, BufferError):
            self.producer.poll(POLL_SECONDS)
            self._raise_failure()
            try:
                produce()
            except (BufferError, KafkaException) as exc:
                refusal = exc
            else:
                return
        self.failure = self.failure or refusal.args[0]
        self._raise_failure()

    def _raise_failure(self) -> None:
        self.refusals.check()
        if self.failure is not None:
            raise KafkaError(self.failure.code(), f"a record was not delivered: {self.failure.str()}")


def _columns(rows: pa.RecordBatch) -> Iterator[Sequence[Any]]:
    """Yield the columns of a sink in the order of `COLUMNS`, null where the frame lacks one."""
    for name in COLUMNS:
        yield rows[name].to_pylist() if name in rows.schema.names else [None] * rows.num_rows
