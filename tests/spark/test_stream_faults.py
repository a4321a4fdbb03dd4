"""Streams while brokers and drivers are killed: each record once, whatever is killed when."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafscale.spark.source.options import Given, ReadOptions, StreamOptions
from kafscale.spark.source.planning import Planner
from kafscale.spark.source.progress import StreamProgress
from kafscale.store.paths import parse_segment_key
from tests.devtools.external.spark import flush, kill_driver, run_driver, store_of
from tests.devtools.processes.process import BrokerProcess, broker_process

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

DRIVER = Path(__file__).with_name("batch_driver.py")
PARTITIONS = 3
KILLS = 3
START_TIMEOUT_SECONDS = 120.0  # Spark keeps the machine busy
RECORDS_BETWEEN_KILLS = 300
UNANSWERED_MAX_COUNT = 200
BUSY = (  # segments are flushed and merged all the time, and deleted some time later
    *("--flush-interval", "50ms"),
    *("--flush-objects-per-minute", "1000000"),
    *("--segment-merge-bytes", "64KiB"),
    *("--segment-delete-delay", "10s"),
)


Row = tuple[int, int, bytes]


def create(broker: BrokerProcess, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()


class Load(threading.Thread):
    """Produces numbers, each once; `acknowledged` says what came where. While one waits for some, it has more to do."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1})
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.grown = threading.Condition()
        self.wanted_count = 0
        self.is_ended = False

    def run(self) -> None:
        number = 0
        while not self.is_ended:
            if number < self.wanted_count and len(self.producer) < UNANSWERED_MAX_COUNT:
                value = b"%d" % number
                self.producer.produce(self.topic, value, partition=number % PARTITIONS, on_delivery=self.on_delivery)
                number += 1
            self.producer.poll(0.001)
        assert not self.producer.flush(120)

    def on_delivery(self, error, message) -> None:
        if error is None:
            with self.grown:
                self.acknowledged[message.partition(), message.offset()] = message.value()
                self.grown.notify_all()

    def wait_for(self, more: int) -> None:
        with self.grown:
            count = len(self.acknowledged) + more
            self.wanted_count = count + more
            assert self.grown.wait_for(lambda: len(self.acknowledged) >= count, timeout=120)

    def end(self) -> None:
        self.is_ended = True
        self.join()


def remove_newest_indexes(bucket: Path, topic: str) -> int:
    """As a kill leaves a bucket between the uploads of the two halves of a segment."""
    newest: dict[int, tuple[int, int, Path]] = {}
    for path in bucket.glob(f"default/{topic}/**/*.index"):
        key = parse_segment_key(str(path.relative_to(bucket)))
        assert key is not None
        found = (key.base_offset, key.generation, path)
        newest[key.partition] = max(found, newest.get(key.partition, found))
    for _, _, path in newest.values():
        path.unlink()
    return len(newest)


class Ours:
    """A stream as Spark drives it, without Spark."""

    def __init__(self, **options: str) -> None:
        given = Given(options)
        self.progress = StreamProgress(planner=Planner.of(ReadOptions.of(given)), options=StreamOptions.of(given))
        self.position = self.progress.initial()
        self.rows: list[Row] = []

    def read_all(self) -> None:
        while (end := self.progress.latest()) != self.position:
            for split in self.progress.splits(self.position, end):
                for records in self.progress.planner.reader(["partition", "offset", "value"]).read(split):
                    self.rows += [tuple(row.values()) for row in records.to_pylist()]
            self.position = end


class Sparks:
    """A stream into Parquet."""

    def __init__(self, spark, directory: Path, **options: str) -> None:
        self.spark, self.output = spark, str(directory / "output")
        source = spark.readStream.format("kafscale").options(**options).load()
        sink = source.select("partition", "offset", "value").writeStream.format("parquet")
        self.query = sink.options(path=self.output, checkpointLocation=str(directory / "checkpoint")).start()

    def read_all(self) -> None:
        self.query.processAllAvailable()

    @property
    def rows(self) -> list[Row]:
        self.query.stop()
        rows = self.spark.read.parquet(self.output).collect()
        return [(row.partition, row.offset, bytes(row.value)) for row in rows]


@pytest.mark.faults
def test_our_side_of_a_stream_over_a_broker_that_is_killed_under_load():
    follow_through_kills(Ours)


@pytest.mark.spark
def test_a_stream_over_a_broker_that_is_killed_under_load(spark, tmp_path):
    follow_through_kills(partial(Sparks, spark, tmp_path))


def follow_through_kills(stream: Callable[..., Ours | Sparks]) -> None:
    """Every record that was acknowledged is read once, and no offset twice."""
    with broker_process(*BUSY) as broker:
        create(broker, "busy")
        load = Load(broker, "busy")
        load.start()
        load.wait_for(RECORDS_BETWEEN_KILLS)
        flush(broker)
        following = stream(store=store_of(broker), subscribe="busy", startingOffsets="earliest")
        removed_count = 0
        for _ in range(KILLS):
            load.wait_for(RECORDS_BETWEEN_KILLS)
            following.read_all()
            load.wait_for(RECORDS_BETWEEN_KILLS)
            broker.kill()
            removed_count += remove_newest_indexes(broker.data_dir / "bucket", "busy")
            following.read_all()
            broker.start(START_TIMEOUT_SECONDS)
        load.wait_for(RECORDS_BETWEEN_KILLS)
        load.end()
        flush(broker)
        following.read_all()
        rows = following.rows
    assert removed_count
    found = {(partition, offset): value for partition, offset, value in rows}
    assert len(found) == len(rows), "a record came twice"
    assert len(set(found.values())) == len(found), "a value has two offsets"
    assert {place: found.get(place) for place in load.acknowledged} == load.acknowledged
    for partition in range(PARTITIONS):
        offsets = sorted(offset for of, offset in found if of == partition)
        assert offsets == list(range(len(offsets)))


@pytest.mark.spark
def test_a_driver_that_is_killed_in_its_batches_writes_each_record_once(spark, broker, tmp_path):
    create(broker, "batches")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 5})
    expected = []
    for number in range(300):
        producer.produce("batches", b"%d" % number, partition=number % PARTITIONS)
        expected.append((number % PARTITIONS, number // PARTITIONS, b"%d" % number))
    producer.flush()
    flush(broker)
    arguments = [store_of(broker), "batches", str(tmp_path / "checkpoint"), str(tmp_path / "output")]
    rng = random.Random(7)
    for _ in range(KILLS):
        with run_driver(DRIVER, *arguments) as driver:
            assert driver.stdout is not None
            for _ in range(rng.randint(1, 3)):  # batches, of which the last one is being written
                assert driver.stdout.readline().strip().isdecimal()
            kill_driver(driver)
    with run_driver(DRIVER, *arguments) as driver:
        assert driver.stdout is not None
        assert driver.stdout.read().split()[-1] == "done"
    rows = spark.read.parquet(str(tmp_path / "output")).select("partition", "offset", "value").collect()
    assert sorted((one.partition, one.offset, bytes(one.value)) for one in rows) == sorted(expected)
