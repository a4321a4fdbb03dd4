"""Streams over a bucket that a broker process writes: checkpoints, a killed driver, new partitions, limits."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kafscale.spark.bucket.position import TOPIC_IDS
from tests.devtools.external.spark import flush, kill_driver, run_driver, store_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

DRIVER = Path(__file__).with_name("stream_driver.py")


def create(broker, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result()


def add_partitions(broker, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(name, partitions)])[name].result()


def produce(broker, topic: str, partition: int, offsets: range) -> None:
    """Into the bucket, in batches of ten at most."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 10})
    for offset in offsets:
        producer.produce(topic, b"%d" % offset, partition=partition)
    producer.flush()
    flush(broker)


class Stream:
    """A query into Parquet that can be started again on its checkpoint."""

    def __init__(self, spark, directory: Path, **options: str) -> None:
        self.spark = spark
        self.options = {"startingOffsets": "earliest", **options}
        self.checkpoint, self.output = directory / "checkpoint", directory / "output"

    def start(self, *, available_now: bool = False):
        source = self.spark.readStream.format("kafscale").options(**self.options).load()
        sink = source.select("partition", "offset", "value").writeStream.format("parquet")
        sink = sink.trigger(availableNow=True) if available_now else sink
        return sink.options(path=str(self.output), checkpointLocation=str(self.checkpoint)).start()

    def run(self) -> None:
        """Until nothing is left."""
        query = self.start()
        query.processAllAvailable()
        query.stop()

    def run_once(self) -> None:
        """By Trigger.AvailableNow."""
        assert self.start(available_now=True).awaitTermination(120)

    def rows(self) -> list[tuple[int, int]]:
        frame = self.spark.read.parquet(str(self.output))
        return sorted((row.partition, row.offset) for row in frame.collect())

    @property
    def offsets(self) -> dict[str, dict[str, int]]:
        """Of the last batch that was planned, from the checkpoint."""
        last = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return json.loads(last.read_text().splitlines()[-1])


def every(partition: int, count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(count)]


def test_a_stream_resumes_from_its_checkpoint_and_finds_new_partitions(spark, broker, tmp_path):
    create(broker, "orders", 1)
    produce(broker, "orders", 0, range(50))
    stream = Stream(spark, tmp_path, store=store_of(broker), subscribe="orders")
    query = stream.start()
    query.processAllAvailable()
    assert stream.rows() == every(0, 50)
    add_partitions(broker, "orders", 2)
    produce(broker, "orders", 1, range(20))
    query.processAllAvailable()
    query.stop()
    assert {**stream.offsets, TOPIC_IDS: None} == {"orders": {"0": 50, "1": 20}, TOPIC_IDS: None}
    assert list(stream.offsets[TOPIC_IDS]) == ["orders"]
    produce(broker, "orders", 0, range(50, 70))
    stream.run()
    assert stream.rows() == [*every(0, 70), *every(1, 20)]


def test_available_now_reads_all_there_is_and_a_limit_a_batch_at_a_time(spark, broker, tmp_path):
    create(broker, "limited", 1)
    produce(broker, "limited", 0, range(50))
    stream = Stream(spark, tmp_path, store=store_of(broker), subscribe="limited")
    stream.options["maxOffsetsPerTrigger"] = "20"
    asks_again = tuple(map(int, spark.version.split(".")[:2])) >= (4, 2)
    for count in (50, 50) if asks_again else (20, 40, 50, 50):
        stream.run_once()
        assert stream.rows() == every(0, count)
    del stream.options["maxOffsetsPerTrigger"]
    produce(broker, "limited", 0, range(50, 90))
    stream.run_once()
    assert stream.rows() == every(0, 90)


def test_limits_cut_batches_and_lose_nothing(spark, broker, tmp_path):
    create(broker, "cut", 1)
    produce(broker, "cut", 0, range(60))
    stream = Stream(spark, tmp_path, store=store_of(broker), subscribe="cut", maxBytesPerTrigger="500")
    stream.run()
    assert stream.rows() == every(0, 60)
    assert len(list((stream.checkpoint / "offsets").glob("[0-9]*"))) > 1


def test_a_batch_that_was_not_committed_is_repeated(spark, broker, tmp_path):
    """As after a crash between the plan of a batch and its end."""
    create(broker, "repeated", 1)
    produce(broker, "repeated", 0, range(10))
    stream = Stream(spark, tmp_path, store=store_of(broker), subscribe="repeated", startingOffsets="latest")
    stream.run()
    for commit in (stream.checkpoint / "commits").glob("*0*"):
        commit.unlink()
    produce(broker, "repeated", 0, range(10, 15))
    stream.run()
    assert stream.rows() == [(0, offset) for offset in range(10, 15)]


def test_a_driver_that_is_killed_loses_and_repeats_nothing(spark, broker, tmp_path):
    create(broker, "killed", 2)
    for partition in (0, 1):
        produce(broker, "killed", partition, range(150))
    stream = Stream(spark, tmp_path, store=store_of(broker), subscribe="killed")
    with run_driver(DRIVER, stream.options["store"], "killed", str(stream.checkpoint), str(stream.output)) as driver:
        assert driver.stdout is not None
        assert next(line for line in driver.stdout if int(line) >= 1)
        kill_driver(driver)
    stream.run()
    assert stream.rows() == [*every(0, 150), *every(1, 150)]
