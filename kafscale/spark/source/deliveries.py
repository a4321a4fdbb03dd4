"""Rows of Arrow batches on their way to a broker, by confluent-kafka's producer. Nothing here imports pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer

from kafscale.errors import ConfigError, KafkaError

ANY_PARTITION = -1
POLL_SECONDS = 1.0  # while the queue is full
COLUMNS: Mapping[str, Sequence[str]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}


@attrs.define(kw_only=True, eq=False)
class Deliveries:
    """Records on their way, and the first that was not delivered."""

    producer: Producer
    failure: ClientError | None = None

    def send(self, row: Mapping[str, Any]) -> None:
        """Raises KafkaError if one before it failed."""
        while True:
            self._raise_failure()
            try:
                self.producer.produce(**row, on_delivery=self.delivered)
            except BufferError:
                self.producer.poll(POLL_SECONDS)
            except KafkaException as exc:
                self.failure = exc.args[0]
            else:
                self.producer.poll(0)
                return

    def finish(self) -> None:
        """Wait for all; librdkafka gives each up after `message.timeout.ms`. Raises KafkaError."""
        self.producer.flush()
        self._raise_failure()

    def delivered(self, error: ClientError | None, message: Message) -> None:
        """librdkafka has done with a record."""
        self.failure = self.failure or error

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise KafkaError(self.failure.code(), f"a record was not delivered: {self.failure.str()}")


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[dict[str, Any]]:
    """Iterate over rows in the form that `produce` takes. Raises ConfigError for a row without topic."""
    empty = [None] * batch.num_rows
    columns = {name: batch[name].to_pylist() if name in batch.schema.names else empty for name in COLUMNS}
    for key, value, headers, row_topic, partition in zip(*(columns[name] for name in COLUMNS), strict=True):
        if topic is None and row_topic is None:
            raise ConfigError("a row has null as its topic: fill the column, or set the option topic")
        yield {
            "topic": topic or row_topic,
            "key": key,
            "value": value,
            "partition": ANY_PARTITION if partition is None else partition,
            "headers": [(each["key"], each["value"]) for each in headers or ()],
        }
