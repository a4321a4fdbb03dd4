"""A Spark session that takes conditions to the source, and a broker with three topics in its bucket."""

import json
from collections.abc import Iterator

import pytest

BASE_MS = 1_700_000_000_000
COUNT = 240  # of a topic, a second apart, in four segments of each of two partitions
PARTITIONS = 2


@pytest.fixture(scope="module")
def spark() -> Iterator[object]:
    from kafscale.spark.sql.failures import keep_pyspark_quiet
    from tests.devtools.external.spark import end_jvm, start_spark

    session = start_spark(**{"spark.sql.python.filterPushdown.enabled": "true"})
    keep_pyspark_quiet()
    yield session
    session.stop()
    end_jvm()  # those that come need jars


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The option `store`. Its broker has ended, so nothing but the bucket is read."""
    from tests.devtools.external.spark import store_of
    from tests.devtools.processes.process import broker_process

    with broker_process() as broker:
        for topic in ("orders", "order-lines.v1", "payments"):
            fill(broker, topic)
        broker.stop()
        yield store_of(broker)


def fill(broker, topic: str) -> None:
    """Record n is in partition n % 2, a second behind n - 1, and its value is JSON."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    from tests.devtools.external.spark import flush

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})  # the records are old
    admin.create_topics([new])[topic].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for segment in range(4):
        for number in range(segment * COUNT // 4, (segment + 1) * COUNT // 4):
            producer.produce(
                topic,
                key=f"key {number % 10}".encode(),
                value=json.dumps(
                    {"number": number, "status": "paid" if number % 3 else "open", "of": {"topic": topic}}
                ),
                partition=number % PARTITIONS,
                timestamp=BASE_MS + number * 1000,
            )
        producer.flush()
        flush(broker)
