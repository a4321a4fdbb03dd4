"""Spark's producer by columns, and a broker that is killed, or a Kafka whose connections are cut, again and again.

Each record is there once, and those of a partition are in order. FAULTS_SEED chooses the seed, which is printed.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.kafka import KafkaBroker, find_java
from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.producing.producer import ColumnProducer
from kafscale.spark.producing.settings import ProducerSettings
from kafscale.spark.producing.transaction import WriterTransaction
from kafscale.wire.client_rules import partition_of
from tests.devtools.processes.process import BrokerProcess
from tests.faults.ordeal import chosen_seed

PARTITION_COUNT = 3
KEY_COUNT = 500
ROWS_EACH = 4000
FAULT_COUNT = 6
SETTINGS = {"batch.size": "8192", "request.timeout.ms": "10000"}
TRANSACTION_TIMEOUT_MS = 600_000
TOPIC = "t"


@contextmanager
def faults(seed: int, fault: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Have faults at random moments; the function that is yielded tells whether there are more to come."""
    moments = random.Random(seed)
    is_over = threading.Event()

    def run() -> None:
        for _ in range(FAULT_COUNT):
            time.sleep(moments.uniform(0.02, 0.4))
            fault()
        is_over.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: not is_over.is_set()
    finally:
        thread.join()


def produce(bootstrap: str, has_more: Callable[[], bool], *, in_transaction: bool = False) -> int:
    """Produce while there are more faults to come, and a little longer. How many records that were.

    In one transaction, if that is wanted, which is committed.
    """
    settings = ProducerSettings.of({"bootstrap.servers": bootstrap, **SETTINGS})
    transaction = None
    if in_transaction:
        cluster = Cluster(bootstrap=settings.bootstrap)
        transaction = WriterTransaction(cluster=cluster, transactional_id="mine", timeout_ms=TRANSACTION_TIMEOUT_MS)
    count = 0
    with closing(ColumnProducer.of(settings, transaction)) as producer:
        more = True
        while more:
            more = has_more()
            numbers = range(count, count + ROWS_EACH)
            producer.send(
                pa.RecordBatch.from_pydict(
                    {
                        "key": [b"%d" % (each % KEY_COUNT) for each in numbers],
                        "value": [b"%d" % each for each in numbers],
                    }
                ),
                TOPIC,
            )
            producer._produce_gathered()
            count += ROWS_EACH
        producer.finish()
    if transaction is not None:
        with closing(transaction):
            spans = transaction.spans.values()
            assert sum(span.count for span in spans) == count
            assert all(span.last - span.first + 1 == span.count for span in spans)
            transaction.end(committed=True)
    return count


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITION_COUNT, 1)])[TOPIC].result(60)


def check(bootstrap: str, count: int) -> None:
    """Read all of it by another client."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True})
    with closing(consumer):
        for partition in range(PARTITION_COUNT):
            consumer.assign([TopicPartition(TOPIC, partition, 0)])
            found = []
            while True:
                messages = consumer.consume(10_000, 60)
                found += [int(each.value()) for each in messages if each.error() is None]
                if any(each.error() is not None for each in messages):
                    break
            wanted = [
                each for each in range(count) if partition_of(b"%d" % (each % KEY_COUNT), PARTITION_COUNT) == partition
            ]
            assert len(found) == len(wanted)
            assert found == wanted


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("durability", ["wal", "s3-wal"])
def test_a_broker_that_is_killed_loses_and_repeats_nothing(
    tmp_path: Path, durability: str, in_transaction: bool
) -> None:
    with BrokerProcess(directory=tmp_path, options=("--durability", durability)) as broker:
        create_topic(broker.bootstrap)

        def restart() -> None:
            broker.kill()
            broker.start()

        with faults(chosen_seed(), restart) as has_more:
            count = produce(broker.bootstrap, has_more, in_transaction=in_transaction)
        check(broker.bootstrap, count)


@pytest.mark.java
@pytest.mark.timeout(1200)  # it may wait for Maven
@pytest.mark.parametrize("in_transaction", [False, True])
def test_connections_to_kafka_that_are_cut_lose_and_repeat_nothing(in_transaction: bool) -> None:
    if (missing := find_java()) is not None:
        pytest.skip(missing)
    with Link.listening() as link:
        kafka = KafkaBroker("Kafka", {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{link.port}"})
        with kafka.running() as broker:
            link.target_port = broker.address.port
            bootstrap = f"127.0.0.1:{link.port}"
            create_topic(bootstrap)
            with faults(chosen_seed(), link.cut) as has_more:
                count = produce(bootstrap, has_more, in_transaction=in_transaction)
            assert link.cut_count > 0
            check(bootstrap, count)


class Link:
    """Passes on what is sent to a port, until it is cut: connections end then, with what was on its way."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener, self.port = listener, listener.getsockname()[1]
        self.target_port = 0
        self.cut_count = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []

    @classmethod
    @contextmanager
    def listening(cls) -> Iterator[Link]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            link = cls(listener)
            threading.Thread(target=link._accept, daemon=True).start()
            yield link
            listener.shutdown(socket.SHUT_RDWR)
            link.cut()

    def cut(self) -> None:
        pairs, self._pairs = self._pairs, []
        for each in (one for pair in pairs for one in pair):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # its peer was first
            self.cut_count += 1

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target_port))
            self._pairs.append((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        return
    finally:
        source.close()
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
