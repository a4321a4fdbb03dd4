"""A consumer in a rack of its own reads from the broker there: segments, and in `s3-wal` what is not flushed, too."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.devtools.external.s3_processes import minio_server
from tests.devtools.processes.process import BrokerProcess
from tests.devtools.processes.several_processes import bootstrap_of, broker_processes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

TOPIC = "orders"
COUNT, VALUE = 4_000, b"v" * 10_000  # 40 MB, of which the last part is not in the bucket
LATER_COUNT = 100
TAIL_SECONDS = 20.0
TAIL_RECORDS_PER_SECOND = 50
DELIVERED_SECONDS = 5.0  # on a busy machine; what is aimed at is printed


def kafscale(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "kafscale", *arguments], check=True, timeout=60, capture_output=True)


def bytes_out(broker: BrokerProcess) -> float:
    page = urllib.request.urlopen(f"http://{broker.admin}/metrics").read().decode()
    found = re.search(rf'kafscale_topic_fetched_bytes_total{{topic="{TOPIC}"}} (\S+)', page)
    return 0.0 if found is None else float(found[1])


def produce(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        producer.produce(TOPIC, VALUE, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


@contextmanager
def brokers_in_racks(*options: str) -> Iterator[Sequence[BrokerProcess]]:
    """Run a broker in zone-a and one in zone-b for the block."""
    with minio_server() if shutil.which("minio") else nullcontext() as server:
        with broker_processes(2, *options, store=server) as brokers:
            for broker, rack in zip(brokers, ("zone-a", "zone-b"), strict=True):
                broker.options = (*broker.options, "--rack", rack)
                broker.restart()
            yield brokers


def create_on(broker: BrokerProcess, partition_count: int) -> None:
    """Create the topic with all partitions at broker 1, which is given."""
    kafscale("topics", "create", TOPIC, "--partitions", str(partition_count), "--bootstrap", broker.bootstrap)
    kafscale("partitions", "move", TOPIC, "--to", "1", "--bootstrap", broker.bootstrap)


def test_librdkafka_reads_flushed_records_from_the_broker_in_its_rack() -> None:
    with brokers_in_racks() as brokers:
        one, two = brokers
        create_on(one, 1)
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


@pytest.mark.parametrize("partition_count", [1, 100])
def test_librdkafka_reads_the_unflushed_tail_from_the_broker_in_its_rack(partition_count: int) -> None:
    with brokers_in_racks("--durability", "s3-wal") as brokers:
        one, two = brokers
        create_on(one, partition_count)
        acknowledged: dict[tuple[int, int], float] = {}
        delivered: dict[tuple[int, int], float] = {}
        stopping = threading.Event()
        reader = threading.Thread(
            target=follow, args=(bootstrap_of(brokers), partition_count, delivered, stopping), daemon=True
        )
        reader.start()
        time.sleep(5)
        gets = store_gets(two)
        produce_steadily(bootstrap_of(brokers), partition_count, acknowledged)
        gets = store_gets(two) - gets
        deadline = time.monotonic() + 60
        while len(delivered) < len(acknowledged) and time.monotonic() < deadline:
            time.sleep(0.1)
        quiet_gets = store_gets(two)
        time.sleep(10)
        quiet_gets = store_gets(two) - quiet_gets
        stopping.set()
        reader.join()
        time.sleep(2)
        idle_gets = store_gets(two)
        time.sleep(5)
        idle_gets = store_gets(two) - idle_gets
    seconds = sorted(delivered[each] - at for each, at in acknowledged.items())
    p99 = seconds[len(seconds) * 99 // 100]
    print(
        f"\n{partition_count} partitions, {len(seconds)} records: from the acknowledgement to the delivery "
        f"p50 {statistics.median(seconds) * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, most {seconds[-1] * 1000:.0f} ms; "
        f"GETs a second {gets / TAIL_SECONDS:.1f} under load, {quiet_gets / 10:.1f} while consumers wait, "
        f"{idle_gets / 5:.1f} idle"
    )
    assert delivered.keys() == acknowledged.keys()
    assert p99 < DELIVERED_SECONDS
    assert quiet_gets / 10 < 8
    assert idle_gets < 5


def test_a_consumer_of_the_tail_in_another_rack_continues_after_the_leader_is_killed() -> None:
    with brokers_in_racks("--durability", "s3-wal") as brokers:
        create_on(brokers[0], 4)
        acknowledged: dict[tuple[int, int], float] = {}
        delivered: dict[tuple[int, int], float] = {}
        stopping = threading.Event()
        reader = threading.Thread(target=follow, args=(bootstrap_of(brokers), 4, delivered, stopping), daemon=True)
        reader.start()
        killer = threading.Timer(TAIL_SECONDS / 2, brokers[0].kill)
        killer.start()
        produce_steadily(bootstrap_of(brokers), 4, acknowledged)
        deadline = time.monotonic() + 60
        while len(delivered) < len(acknowledged) and time.monotonic() < deadline:
            time.sleep(0.1)
        stopping.set()
        reader.join()
        killer.join()
    assert delivered.keys() == acknowledged.keys()


def produce_steadily(bootstrap: str, partition_count: int, acknowledged: dict[tuple[int, int], float]) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True, "socket.timeout.ms": 3000}
    )

    def told(error: KafkaError | None, message: Message) -> None:
        assert error is None
        acknowledged[message.partition(), message.offset()] = time.monotonic()

    ends = time.monotonic() + TAIL_SECONDS
    number = 0
    while time.monotonic() < ends:
        producer.produce(TOPIC, b"v" * 100, partition=number % partition_count, on_delivery=told)
        number += 1
        producer.poll(1 / TAIL_RECORDS_PER_SECOND)
    assert producer.flush(60) == 0


def follow(
    bootstrap: str, partition_count: int, delivered: dict[tuple[int, int], float], stopping: threading.Event
) -> None:
    """Read all partitions until the end; each record once, in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "client.rack": "zone-b"})
    next_offsets: dict[int, int] = defaultdict(int)
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(partition_count)])
    while not stopping.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            index, offset = message.partition(), message.offset()
            assert offset == next_offsets[index]
            next_offsets[index] += 1
            delivered[index, offset] = time.monotonic()
    consumer.close()


def store_gets(broker: BrokerProcess) -> float:
    page = urllib.request.urlopen(f"http://{broker.admin}/metrics").read().decode()
    found = re.findall(r'kafscale_store_operations_total{operation="(?:get|get_range)",outcome="\w+"} (\S+)', page)
    return sum(map(float, found))
