"""Rows that a producer takes, refuses, or takes later since its queue is full."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from kafscale.errors import ConfigError, KafkaError
from kafscale.spark.source.deliveries import Deliveries, Room

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


class FullProducer:
    """Has room for one record at a time, until it is polled; refuses and fails what it is told to."""

    def __init__(self, *, refused: bytes = b"", failed: bytes = b"") -> None:
        self.refused, self.failed = refused, failed
        self.taken: list[tuple] = []
        self.waiting: list[tuple] = []

    def produce(self, topic, value, key, partition, on_delivery, headers) -> None:
        if value == self.refused:
            raise KafkaException(ClientError(10))
        if self.waiting:
            raise BufferError
        self.waiting.append((topic, value, key, partition, list(headers)))
        self.on_delivery = on_delivery

    def poll(self, timeout: float) -> None:
        for record in self.waiting:
            if record[1] == self.failed:
                self.on_delivery(ClientError(29), None)
            else:
                self.taken.append(record)
        self.waiting.clear()

    def flush(self, timeout: float) -> int:
        self.poll(0)
        return len(self.waiting)


def rows_of(*rows: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows))


def numbered(count: int) -> Iterator[dict[str, object]]:
    return ({"value": b"%d" % number} for number in range(count))


def test_records_go_in_order_where_the_queue_is_full():
    producer = FullProducer()
    deliveries = Deliveries(producer=producer)
    deliveries.send(rows_of(*numbered(20)), "t")
    deliveries.finish()
    assert producer.taken == [("t", b"%d" % number, None, -1, []) for number in range(20)]


def test_every_column_is_used_and_others_are_not():
    producer = FullProducer()
    headers = pa.array([[{"key": "a", "value": b"1"}], None], pa.list_(HEADER))
    columns = {
        "other": [1, 2],
        "topic": ["t", None],
        "key": [b"k", None],
        "value": [None, b"v"],
        "partition": [3, None],
    }
    rows = pa.RecordBatch.from_arrays([*map(pa.array, columns.values()), headers], [*columns, "headers"])
    Deliveries(producer=producer).send(rows, "chosen")
    assert producer.taken == [("chosen", None, b"k", 3, [("a", b"1")]), ("chosen", b"v", None, -1, [])]
    with pytest.raises(ConfigError, match="a row has null as its topic"):
        Deliveries(producer=FullProducer()).send(rows, None)


def test_the_first_failure_is_told_at_the_next_rows_or_at_the_end():
    deliveries = Deliveries(producer=FullProducer(failed=b"1"))
    with pytest.raises(KafkaError, match="a record was not delivered") as caught:
        deliveries.send(rows_of(*numbered(3)), "t")
    assert caught.value.code == 29
    with pytest.raises(KafkaError):
        deliveries.finish()


def test_what_the_producer_refuses_fails_at_once():
    producer = FullProducer(refused=b"1")
    with pytest.raises(KafkaError) as caught:
        Deliveries(producer=producer).send(rows_of(*numbered(3)), "t")
    assert caught.value.code == 10
    assert producer.taken == []


class RoomyProducer(FullProducer):
    """Takes rows together as librdkafka does: where its queue is full, some are left out, and later ones taken."""

    def __init__(self, *, room: int, **details: bytes) -> None:
        super().__init__(**details)
        self.room = room
        self.calls: list[int] = []
        self.flushes = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def produce_batch(self, topic, messages, on_delivery) -> int:
        self.on_delivery = on_delivery
        taken = 0
        for message in messages:
            if message["value"] == self.refused:
                message["_error"] = ClientError(10)
            elif len(self.waiting) >= self.room:
                message["_error"] = ClientError(ClientError._QUEUE_FULL)
                self.waiting.pop()  # has room for the next one
            else:
                taken += 1
                self.waiting.append((topic, message["value"], message["key"], -1, []))
        self.calls.append(len(messages))
        return taken

    def flush(self, timeout: float) -> int:
        self.flushes += 1
        return super().flush(timeout)


def together(producer: RoomyProducer, size_bytes: int = 1 << 20) -> Deliveries:
    return Deliveries(producer=producer, room=Room(messages=producer.room, size_bytes=size_bytes))


def test_rows_that_go_together_never_find_the_queue_full():
    producer = RoomyProducer(room=10)
    deliveries = together(producer)
    deliveries.send(rows_of(*numbered(23)), "t")
    deliveries.send(rows_of(*numbered(4)), "t")
    deliveries.finish()
    values = [*range(23), *range(4)]
    assert producer.taken == [("t", b"%d" % number, None, -1, []) for number in values]
    assert producer.calls == [5, 5, 5, 5, 3, 4]


def test_rows_that_go_together_have_their_keys_and_one_topic():
    producer = RoomyProducer(room=10)
    deliveries = together(producer)
    schema = pa.schema(
        [("key", pa.string()), ("value", pa.string()), ("partition", pa.int32()), ("topic", pa.string())]
    )
    rows = [{"key": "k", "value": "v", "topic": "of a row"}, {"topic": "of a row"}]
    deliveries.send(pa.RecordBatch.from_pylist(rows, schema=schema), None)
    deliveries.finish()
    assert producer.calls == [2]
    assert producer.taken == [("of a row", "v", "k", -1, []), ("of a row", None, None, -1, [])]


def test_rows_of_partitions_of_their_own_go_one_by_one():
    """In `produce_batch` of confluent-kafka 2.16, the partition of a record has no effect."""
    producer = RoomyProducer(room=10)
    deliveries = together(producer)
    deliveries.send(rows_of({"value": b"v", "partition": None}, {"value": b"w", "partition": 3}), "t")
    deliveries.finish()
    assert producer.calls == []
    assert [partition for _, _, _, partition, _ in producer.taken] == [-1, 3]


@pytest.mark.parametrize(
    ("more", "taken"),
    [
        ({"headers": [{"key": "h", "value": b"1"}]}, [("h", b"1")]),
        ({"topic": "other"}, []),
    ],
)
def test_rows_with_headers_or_of_several_topics_go_one_by_one(more, taken):
    producer = RoomyProducer(room=10)
    deliveries = together(producer)
    headers = pa.list_(HEADER)
    rows = [{"value": b"v", "topic": "t", "headers": None}, {"value": b"w", "topic": "t", "headers": None, **more}]
    schema = pa.schema([("value", pa.binary()), ("topic", pa.string()), ("headers", headers)])
    deliveries.send(pa.RecordBatch.from_pylist(rows, schema=schema), None)
    deliveries.finish()
    assert producer.calls == []
    assert [(value, named) for _, value, _, _, named in producer.taken] == [(b"v", []), (b"w", taken)]


def test_a_queue_is_emptied_before_it_can_have_more_bytes_than_it_takes():
    producer = RoomyProducer(room=1000)
    deliveries = together(producer, size_bytes=4000)
    for number in range(6):
        deliveries.send(rows_of({"value": bytes([number]) * 900}), "t")
        producer.waiting.append(("t", None, None, -1, []))  # what `poll` has not had done
    assert producer.flushes >= 2


def test_what_is_refused_of_rows_that_go_together_fails_at_once():
    deliveries = together(RoomyProducer(room=100, refused=b"3"))
    with pytest.raises(KafkaError, match="a record was not delivered"):
        deliveries.send(rows_of(*numbered(9)), "t")


def test_the_room_is_that_of_the_settings():
    assert Room.of({}) == Room(messages=100_000, size_bytes=1 << 30)
    assert Room.of({"queue.buffering.max.messages": "5000", "queue.buffering.max.kbytes": 10}) == Room(
        messages=5000, size_bytes=10_240
    )
