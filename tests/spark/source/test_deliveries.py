"""Rows that a producer takes, refuses, or takes later since its queue is full."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from kafscale.errors import ConfigError, KafkaError
from kafscale.spark.source.deliveries import Deliveries

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


def test_a_record_that_the_producer_refuses_fails_at_once():
    producer = FullProducer(refused=b"1")
    with pytest.raises(KafkaError) as caught:
        Deliveries(producer=producer).send(rows_of(*numbered(3)), "t")
    assert caught.value.code == 10
    assert producer.taken == []
