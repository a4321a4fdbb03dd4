"""A consumer in a rack of its own reads what is in the bucket from the broker there, and the rest from the leader."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.devtools.process import BrokerProcess
from tests.devtools.process_cluster import bootstrap_of, broker_processes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

TOPIC = "orders"
COUNT, VALUE = 4_000, b"v" * 10_000  # 40 MB, of which the last part is not in the bucket
LATER_COUNT = 100


def kafscale(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "kafscale", *arguments], check=True, timeout=60, capture_output=True)


def bytes_out(broker: BrokerProcess) -> float:
    page = urllib.request.urlopen(f"http://{broker.admin}/metrics").read().decode()
    found = re.search(rf'kafscale_topic_bytes_out_total{{topic="{TOPIC}"}} (\S+)', page)
    return 0.0 if found is None else float(found[1])


def produce(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        producer.produce(TOPIC, VALUE, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def test_librdkafka_reads_from_its_own_rack() -> None:
    with broker_processes(2) as brokers:
        for broker, rack in zip(brokers, ("zone-a", "zone-b"), strict=True):
            broker.options = (*broker.options, "--rack", rack)
            broker.restart()
        one, two = brokers
        kafscale("topics", "create", TOPIC, "--partitions", "1", "--bootstrap", one.bootstrap)
        kafscale("partitions", "move", TOPIC, "--to", "1", "--bootstrap", one.bootstrap)
        produce(bootstrap_of(brokers), COUNT)
        kafscale("flush", "--admin", str(one.admin))
        produce(bootstrap_of(brokers), LATER_COUNT)
        offsets = list(read(bootstrap_of(brokers)))
        assert offsets == list(range(COUNT + LATER_COUNT))
        assert bytes_out(two) > COUNT * len(VALUE) * 0.4
        assert bytes_out(one) < COUNT * len(VALUE) * 0.6


def read(bootstrap: str) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "client.rack": "zone-b",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 1 << 20,
        }
    )
    offsets = []
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            error = message.error()
            if error is None:
                offsets.append(message.offset())
            elif error.code() == KafkaError._PARTITION_EOF:
                if len(offsets) >= COUNT + LATER_COUNT:
                    return offsets
            else:
                raise AssertionError(error)
    finally:
        consumer.close()
