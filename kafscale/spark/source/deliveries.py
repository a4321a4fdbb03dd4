"""Rows of Arrow batches on their way to a broker, by confluent-kafka's producer. Nothing here imports pyspark."""

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
ROOM_SECONDS = 0.05  # between two looks at how much of the queue is free
TOGETHER_COUNT = 2000  # rows that are handed over at once
QUEUE_MESSAGES, QUEUE_KBYTES = "queue.buffering.max.messages", "queue.buffering.max.kbytes"
QUEUE_DEFAULTS = {QUEUE_MESSAGES: 100_000, QUEUE_KBYTES: 1 << 20}
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
    """What a broker refuses of a producer's connections, and would again. librdkafka goes on trying all the same.

    `note` is its `error_cb`.
    """

    first: ClientError | None = None

    def note(self, error: ClientError) -> None:
        """Keep an error of a login, or of a certificate that is not trusted; others may pass."""
        untrusted = error.code() == ClientError._SSL and "verify failed" in error.str()
        if untrusted or error.code() == ClientError._AUTHENTICATION:
            self.first = self.first or error

    def check(self) -> None:
        """Raise KafkaError if there is one."""
        if self.first is not None:
            raise KafkaError(self.first.code(), f"no connection to the broker: {self.first.str()}")


@attrs.frozen(kw_only=True)
class Room:
    """What a producer's queue takes, by its settings."""

    messages: int
    size_bytes: int

    @classmethod
    def of(cls, configuration: Mapping[str, Any]) -> Room | None:
        """Make it of librdkafka's settings; None for a confluent-kafka that takes no rows together."""
        if not hasattr(Producer, "produce_batch"):
            return None
        messages, kibibytes = (int(configuration.get(name, default)) for name, default in QUEUE_DEFAULTS.items())
        return cls(messages=messages or QUEUE_DEFAULTS[QUEUE_MESSAGES], size_bytes=kibibytes << 10)


@attrs.define(kw_only=True, eq=False, repr=False)
class Deliveries:
    """Records on their way, and the first that was not delivered.

    room: that of the producer's queue, into which rows go many at a time. Where it is full, librdkafka leaves out those
    that it has no room for and takes later ones, so it is not let become full. It takes neither headers nor partitions
    of rows that way: those go one by one, and all do without a room.
    """

    producer: Producer
    refusals: Refusals = attrs.field(factory=Refusals)
    failure: ClientError | None = None
    room: Room | None = None
    _queued_bytes: int = attrs.field(default=0, init=False)  # since the queue was empty

    def send(self, rows: pa.RecordBatch, topic: str | None) -> None:
        """Hand rows to the producer, in their order, to this topic or to that of each row.

        Raises ConfigError for a row without a topic, KafkaError if a record was not delivered, of these or before.
        """
        of_all = topic or _only_topic(rows)
        if self.room is not None and of_all is not None and not _has_any(rows, "headers", "partition"):
            self._send_together(rows, of_all, self.room)
        else:
            self._send_each(rows, topic)
        self.producer.poll(0)
        self._raise_failure()

    def _send_together(self, rows: pa.RecordBatch, topic: str, room: Room) -> None:
        count = max(1, min(TOGETHER_COUNT, room.messages // 2))
        for start in range(0, rows.num_rows, count):
            part = rows.slice(start, count)
            keys, values, *_ = _columns(part)
            messages: list[dict[str, Any]] = [
                {"key": key, "value": value} for key, value in zip(keys, values, strict=True)
            ]
            self._wait_for_room(len(messages), _size_bytes(part), room)
            taken_count = self.producer.produce_batch(topic, messages, on_delivery=self.delivered)
            if taken_count != len(messages):
                refused = next((each["_error"] for each in messages if "_error" in each), None)
                self.failure = self.failure or refused or ClientError(ClientError._QUEUE_FULL)
                self._raise_failure()

    def _wait_for_room(self, message_count: int, size_bytes: int, room: Room) -> None:
        while (queued_count := len(self.producer)) and queued_count + message_count > room.messages:
            self.producer.poll(ROOM_SECONDS)
            self._raise_failure()
        if not queued_count:
            self._queued_bytes = 0
        elif self._queued_bytes + size_bytes > room.size_bytes // 2:
            self.finish()
            self._queued_bytes = 0
        self._queued_bytes += size_bytes

    def _send_each(self, rows: pa.RecordBatch, topic: str | None) -> None:
        produce, delivered = self.producer.produce, self.delivered
        for key, value, headers, row_topic, partition in zip(*_columns(rows), strict=True):
            if (chosen := topic or row_topic) is None:
                raise ConfigError("a row has null as its topic: fill the column, or set the option topic")
            at = ANY_PARTITION if partition is None else partition
            named = [(each["key"], each["value"]) for each in headers or NO_HEADERS]
            try:
                produce(chosen, value, key, at, on_delivery=delivered, headers=named)
            except (BufferError, KafkaException) as exc:
                self._produce_later(exc, partial(produce, chosen, value, key, at, on_delivery=delivered, headers=named))

    def finish(self) -> None:
        """Wait for all; librdkafka gives each up after `message.timeout.ms`. Raises KafkaError."""
        while self.producer.flush(POLL_SECONDS):
            self.refusals.check()
        self._raise_failure()

    def delivered(self, error: ClientError | None, message: Message) -> None:
        """librdkafka has done with a record."""
        self.failure = self.failure or error

    def _produce_later(self, refusal: Exception, produce: Callable[[], None]) -> None:
        """Try a record again for as long as the producer's queue is full. Raises KafkaError."""
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


def _has(rows: pa.RecordBatch, name: str) -> bool:
    return name in rows.schema.names


def _only_topic(rows: pa.RecordBatch) -> str | None:
    """Return the topic that all rows go to; None if they go to several, or to none."""
    if not _has(rows, "topic") or rows["topic"].null_count:
        return None
    found = rows["topic"].unique()
    return found[0].as_py() if len(found) == 1 else None


def _has_any(rows: pa.RecordBatch, *names: str) -> bool:
    """Tell whether a row has anything in one of these columns."""
    return any(_has(rows, name) and rows[name].null_count < rows.num_rows for name in names)


def _size_bytes(rows: pa.RecordBatch) -> int:
    """Return about how much room rows take in a queue."""
    sizes = [rows[name].nbytes for name in ("key", "value") if _has(rows, name)]
    return int(sum(sizes))


def _columns(rows: pa.RecordBatch) -> Iterator[Sequence[Any]]:
    """The columns of a sink, in the order of `COLUMNS`; what a frame does not have is null."""
    for name in COLUMNS:
        yield rows[name].to_pylist() if name in rows.schema.names else [None] * rows.num_rows
