"""Streams from topic to topic, and writes of DataFrames, that are there once and as a whole, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.spark import REPOSITORY, flush, run_driver, store_of
from tests.devtools.processes.process import BrokerProcess, broker_process

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

DRIVER = Path(__file__).with_name("copy_driver.py")
PARTITIONS = 3
RECORDS = 450
LIMIT = 30  # records of a batch
POLL_SECONDS = 60.0
KILLS = 3
START_TIMEOUT_SECONDS = 120.0  # Spark keeps the machine busy
BUSY = ("--flush-interval", "100ms")
PATIENT = {"spark.master": "local[2,8]"}  # a task may fail 7 times

Row = tuple[int, bytes, bytes]


def create(broker: BrokerProcess, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result()


def fill(broker: BrokerProcess, topic: str, count: int = RECORDS) -> list[Row]:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 5})
    rows = [(number % PARTITIONS, b"k%d" % (number % 7), b"%d" % number) for number in range(count)]
    for partition, key, value in rows:
        producer.produce(topic, value, key, partition=partition)
    assert producer.flush(60) == 0
    flush(broker)
    return sorted(rows)


def read(broker: BrokerProcess, topic: str, isolation_level: str = "read_committed") -> list[Row]:
    """All records, up to the end as of now, by partition in order of offset."""
    settings = {"group.id": "none", "isolation.level": isolation_level, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    rows: list[Row] = []
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        message = consumer.poll(POLL_SECONDS)
        assert message is not None
        if message.error() is None:
            rows.append((message.partition(), message.key(), message.value()))
        else:
            assert message.error().code() == ClientError._PARTITION_EOF
            at_end.add(message.partition())
    consumer.close()
    return sorted(rows, key=lambda row: row[0])


def copy_arguments(broker: BrokerProcess, directory: Path, *, ends: bool, **settings: str) -> str:
    return json.dumps(
        {
            "store": store_of(broker),
            "source": "source",
            "target": "target",
            "bootstrap": broker.bootstrap,
            "checkpoint": str(directory / "checkpoint"),
            "limit": str(LIMIT),
            "settings": settings,
            "ends": ends,
        }
    )


def processes_of(driver: subprocess.Popen[str], pattern: bytes = b"") -> list[int]:
    """All processes of a driver, or those whose command line has this."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(path.name)) == driver.pid and pattern in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def has_begun(driver: subprocess.Popen[str]) -> bool:
    """Wait until it has written a batch; false if its query fails, as it may where a worker takes 10 s to start."""
    assert driver.stdout is not None
    assert driver.stdout.readline().strip() == "started"
    return driver.stdout.readline().strip().isdecimal()


def finish(broker: BrokerProcess, directory: Path, **settings: str) -> None:
    """Run drivers until one has copied all there is; those before may fail."""
    for _ in range(10):
        with run_driver(DRIVER, copy_arguments(broker, directory, ends=True, **settings)) as driver:
            assert driver.stdout is not None
            if "failed" not in driver.stdout.read():
                return
    raise AssertionError("no run of the query has ended well")


def test_a_batch_that_spark_repeats_is_written_once(spark, broker, tmp_path):
    """As after a driver that died when a batch was written, and Spark's checkpoint did not say so yet."""
    create(broker, "repeated")
    (tmp_path / "lines").mkdir()
    for number in range(2):
        (tmp_path / "lines" / f"{number}.txt").write_text("".join(f"{number} {line}\n" for line in range(50)))

    def run() -> None:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "lines"))
        sink = lines.repartition(2).writeStream.format("kafscale").trigger(availableNow=True)
        options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "repeated", "transactional": "true"}
        assert sink.options(**options, checkpointLocation=str(tmp_path / "checkpoint")).start().awaitTermination(300)

    run()
    expected = sorted(f"{number} {line}".encode() for number in range(2) for line in range(50))
    assert sorted(value for _, _, value in read(broker, "repeated")) == expected
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert sorted(value for _, _, value in read(broker, "repeated")) == expected
    assert len(read(broker, "repeated", "read_uncommitted")) == 150


def test_a_stream_is_copied_once_while_drivers_are_killed_at_random(tmp_path):
    rng = random.Random(11)
    with broker_process(*BUSY) as broker:
        create(broker, "source", "target")
        expected = fill(broker, "source")
        kills = 0
        while kills < KILLS:
            with run_driver(DRIVER, copy_arguments(broker, tmp_path, ends=False)) as driver:
                if has_begun(driver):
                    time.sleep(rng.uniform(0, 1.5))  # anywhere in the batches that follow
                    kills += driver.poll() is None
        finish(broker, tmp_path)
        assert sorted(read(broker, "target")) == expected
        assert batches_are_in_order(read(broker, "target"))
        assert len(read(broker, "target", "read_uncommitted")) >= RECORDS


def test_a_stream_is_copied_once_while_workers_and_brokers_are_killed_at_random(tmp_path):
    rng = random.Random(12)
    with broker_process(*BUSY) as broker:
        create(broker, "source", "target")
        expected = fill(broker, "source")
        with run_driver(DRIVER, copy_arguments(broker, tmp_path, ends=True, **PATIENT)) as driver:
            has_begun(driver)
            for kill in range(3 * KILLS):
                time.sleep(rng.uniform(0, 1.0))
                if kill % 3 == 2:
                    broker.kill()
                    broker.start(START_TIMEOUT_SECONDS)
                elif workers := processes_of(driver, b"pyspark.daemon"):
                    with suppress(ProcessLookupError):
                        os.kill(rng.choice(workers), signal.SIGKILL)
        finish(broker, tmp_path, **PATIENT)
        assert sorted(read(broker, "target")) == expected


def test_a_driver_that_wakes_up_behind_another_one_on_its_checkpoint_writes_nothing(tmp_path):
    with broker_process(*BUSY) as broker:
        create(broker, "source", "target")
        expected = fill(broker, "source")
        with run_driver(DRIVER, copy_arguments(broker, tmp_path, ends=False)) as zombie:
            assert has_begun(zombie)
            processes = processes_of(zombie)
            for process in processes:
                os.kill(process, signal.SIGSTOP)
            finish(broker, tmp_path)
            for process in processes:
                os.kill(process, signal.SIGCONT)
            assert zombie.stdout is not None
            assert "failed" in zombie.stdout.read()
        assert sorted(read(broker, "target")) == expected


def batches_are_in_order(rows: list[Row]) -> bool:
    """Tell whether each partition has Spark's batches in their order, of `LIMIT` values each.

    Within a batch two tasks may share a partition of the source (`minPartitions`), and write side by side.
    """
    last = dict.fromkeys(range(PARTITIONS), 0)
    for partition, _, value in rows:
        batch = int(value) // LIMIT
        if batch < last[partition]:
            return False
        last[partition] = batch
    return True


def write(frame, broker: BrokerProcess, topic: str, **options: str) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "transactional": "true", **options}
    frame.write.format("kafscale").options(**options).mode("append").save()


def test_a_frame_is_written_whole_or_leaves_no_records(spark, broker):
    create(broker, "frames")
    fails = "IF(id = 99, CAST(raise_error('no more') AS STRING), CAST(id AS STRING))"
    frame = spark.range(100).repartition(3)
    with pytest.raises(Exception, match="no more"):
        write(frame.selectExpr(f"{fails} AS value"), broker, "frames", transactionalId="job")
    assert read(broker, "frames") == []
    write(frame.selectExpr("CAST(id AS STRING) AS value"), broker, "frames", transactionalId="job")
    assert sorted(int(value) for _, _, value in read(broker, "frames")) == list(range(100))


def test_a_batch_slower_than_the_transaction_timeout_is_not_written(spark, broker):
    from pyspark.sql.functions import udf

    create(broker, "slow")
    frame = spark.range(2).repartition(1).selectExpr("CAST(id AS STRING) AS value")
    slowly = udf(lambda value: time.sleep(5) or value)
    slow = frame.union(frame.select(slowly("value").alias("value")))  # a task each
    with pytest.raises(Exception, match=r"raise kafka\.transaction\.timeout\.ms"):
        write(slow, broker, "slow", transactionalId="slow", **{"kafka.transaction.timeout.ms": "1000"})
    assert read(broker, "slow") == []


def test_the_example_of_the_manual(spark, broker, tmp_path):
    create(broker, "orders", "loud-orders")
    fill(broker, "orders", 30)
    page = (REPOSITORY / "docs" / "how-to" / "spark.md").read_text()
    (code,) = re.findall(r"^## Exactly once\n.*?```python\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    for given, here in {
        "s3://my-bucket/kafka": store_of(broker),
        "broker:9092": broker.bootstrap,
        "/data/loud-orders-checkpoint": str(tmp_path / "checkpoint"),
    }.items():
        assert given in code
        code = code.replace(given, here)
    names = {"spark": spark}
    exec(code, names)
    query = names["query"]
    query.processAllAvailable()
    query.stop()
    assert sorted(int(value) for _, _, value in read(broker, "loud-orders")) == list(range(30))
