"""Records that a broker with `--durability s3-wal` has acknowledged and not flushed, read by Spark from the bucket."""

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.spark import store_of, wait_for_topic
from tests.devtools.processes.process import BrokerProcess, broker_process

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

NEVER = ["--durability", "s3-wal", "--flush-interval", "1h", "--s3-wal-flush-objects", "0"]
OFTEN = ["--durability", "s3-wal", "--flush-interval", "1s", "--flush-objects-per-minute", "100000"]
OFTEN_ON_DISK = ["--durability", "wal", "--flush-interval", "1s", "--flush-objects-per-minute", "100000"]
RECORDS_PER_SECOND = 200


@pytest.fixture(scope="module")
def unflushed() -> Iterator[BrokerProcess]:
    with broker_process(*NEVER) as running:
        yield running


class Load:
    """Produces numbered values, as long as it is told, and notes which were acknowledged."""

    def __init__(self, broker: BrokerProcess, topic: str, partitions: int) -> None:
        self.acknowledged: set[tuple[int, int, bytes]] = set()
        self.failed = 0
        self.broker, self.topic, self.partitions = broker, topic, partitions
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5, "enable.idempotence": True})
        number = 0
        while not self._stopping.wait(1 / RECORDS_PER_SECOND):
            producer.produce(self.topic, b"%d" % number, partition=number % self.partitions, on_delivery=self._note)
            producer.poll(0)
            number += 1
        producer.flush(60)

    def _note(self, error, message) -> None:
        if error is None:
            self.acknowledged.add((message.partition(), message.offset(), message.value()))
        else:
            self.failed += 1


def create(broker: BrokerProcess, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()


def load(spark, broker: BrokerProcess, topic: str, **options: str):
    frame = spark.read.format("kafscale").options(store=store_of(broker), subscribe=topic, **options)
    return frame.load().selectExpr("partition", "offset", "value")


def test_all_that_was_acknowledged_is_read_at_once(spark, unflushed):
    create(unflushed, "orders", 3)
    producer = Producer({"bootstrap.servers": unflushed.bootstrap, "linger.ms": 0})
    for number in range(1000):
        producer.produce("orders", b"%d" % number, partition=number % 3)
    producer.flush()
    assert load(spark, unflushed, "orders").count() == 1000
    assert sorted(int(row.value) for row in load(spark, unflushed, "orders").collect()) == list(range(1000))
    wait_for_topic(unflushed, "orders")
    assert load(spark, unflushed, "orders", freshness="segments").count() == 0


def test_transactions_that_were_not_flushed_count_as_they_ended(spark, unflushed):
    create(unflushed, "payments", 1)
    producer = Producer({"bootstrap.servers": unflushed.bootstrap, "transactional.id": "payer"})
    producer.init_transactions()
    for number, end in enumerate(
        [producer.commit_transaction, producer.abort_transaction, producer.commit_transaction]
    ):
        producer.begin_transaction()
        producer.produce("payments", b"%d" % number)
        producer.flush()
        end()
    producer.begin_transaction()
    producer.produce("payments", b"open")
    producer.flush()
    assert [row.value for row in load(spark, unflushed, "payments").collect()] == [b"0", b"2"]
    uncommitted = load(spark, unflushed, "payments", isolationLevel="read_uncommitted")
    assert [row.value for row in uncommitted.collect()] == [b"0", b"1", b"2", b"open"]
    producer.abort_transaction()


@pytest.mark.parametrize("freshness", ["bucket", "broker"])
def test_a_stream_has_all_records_once_while_the_broker_flushes_and_is_killed(spark, tmp_path, freshness):
    with broker_process(*(OFTEN if freshness == "bucket" else OFTEN_ON_DISK)) as broker:
        create(broker, "readings", 2)
        asked = {"freshness": freshness, "kafka.bootstrap.servers": broker.bootstrap}
        query = (
            spark.readStream.format("kafscale")
            .options(store=store_of(broker), subscribe="readings", startingOffsets="earliest", **asked)
            .load()
            .selectExpr("partition", "offset", "value")
            .writeStream.format("parquet")
            .options(path=str(tmp_path / "output"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        with Load(broker, "readings", 2) as written:
            for _ in range(2):
                time.sleep(8)
                broker.kill()
                broker.start()
            time.sleep(4)
        query.processAllAvailable()
        query.stop()
        rows = {(row.partition, row.offset, bytes(row.value)) for row in _output(spark, tmp_path)}
        assert len(_output(spark, tmp_path)) == len(rows)
        assert rows == written.acknowledged
        assert not written.failed


def _output(spark, directory):
    return spark.read.parquet(str(directory / "output")).collect()
