"""`python -m bench.spark.freshness`: how long after its acknowledgement a record is a row, and what it costs.

A broker with `--durability s3-wal` takes records at a steady rate. A stream reads them in micro-batches of a second,
and the time of a row is that at which its batch is there. Then whole reads of the topic, with the log and without, in
turns: when all is flushed, and while records come.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import attrs
import click
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.devtools.process import BrokerProcess, broker_process
from tests.devtools.spark import flush, start_spark, store_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "t"
STEP_SECONDS = 0.01
WARM_SECONDS = 15.0  # after which the stream is measured
VALUE_BYTES = 1000
RECORD_COUNT = 200_000  # of the whole reads
ROUNDS_COUNT = 7

_Place = tuple[int, int]


@attrs.define(eq=False)
class Load:
    """Records at a rate, and when each was acknowledged."""

    broker: BrokerProcess
    partition_count: int
    per_second: int
    acknowledged: dict[_Place, float] = attrs.field(factory=dict, init=False)

    def note(self, error: object, message: Any) -> None:
        """Take a delivery report."""
        assert error is None, error
        self.acknowledged[message.partition(), message.offset()] = time.monotonic()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Produce for the block."""
        stopping = threading.Event()
        thread = threading.Thread(target=self._run, args=[stopping])
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()

    def _run(self, stopping: threading.Event) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5})
        number, began = 0, time.monotonic()
        while not stopping.wait(STEP_SECONDS):
            while number < (time.monotonic() - began) * self.per_second:
                partition = number % self.partition_count
                producer.produce(TOPIC, b"x" * VALUE_BYTES, partition=partition, on_delivery=self.note)
                number += 1
            producer.poll(0)
        producer.flush(60)

    def one(self) -> None:
        """Produce a single record."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        producer.produce(TOPIC, b"x", partition=0, on_delivery=self.note)
        producer.flush(60)

    def fill(self, count: int) -> None:
        """Produce so many at once."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 20})
        for number in range(count):
            while True:
                try:
                    producer.produce(TOPIC, b"x" * VALUE_BYTES, partition=number % self.partition_count)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)


def measure_stream(spark: SparkSession, load: Load, seconds: float) -> Sequence[float]:
    """Return how late each row was, in order of that."""
    seen: dict[_Place, float] = {}

    def take(frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("partition", "offset").collect()
        now = time.monotonic()
        for row in rows:
            assert (row.partition, row.offset) not in seen, "a record came twice"
            seen[row.partition, row.offset] = now

    options = {"store": store_of(load.broker), "subscribe": TOPIC, "startingOffsets": "earliest"}
    with TemporaryDirectory() as directory:
        source = spark.readStream.format("kafscale").options(**options, warnOfAvailableNow="false").load()
        sink = source.writeStream.foreachBatch(take).option("checkpointLocation", directory)
        query = sink.trigger(processingTime="1 second").start()
        load.one()
        query.processAllAvailable()  # Spark's first batch takes many seconds
        with load.running():
            time.sleep(WARM_SECONDS + seconds)
        query.processAllAvailable()
        query.stop()
    assert seen.keys() == load.acknowledged.keys(), "rows are not what was acknowledged"
    warm = max(load.acknowledged.values()) - seconds
    return sorted(seen[place] - at for place, at in load.acknowledged.items() if at > warm)


def measure_reads(spark: SparkSession, broker: BrokerProcess) -> Mapping[str, float]:
    """Return the median seconds of a read of all values by `freshness`."""
    seconds: dict[str, list[float]] = {"segments": [], "bucket": []}
    for number in range(ROUNDS_COUNT + 1):
        for freshness, taken in seconds.items():
            options = {"store": store_of(broker), "subscribe": TOPIC, "freshness": freshness}
            frame = spark.read.format("kafscale").options(**options).load()
            began = time.perf_counter()
            frame.selectExpr("sum(length(value))", "max(offset)").collect()
            if number:  # the first one warms up
                taken.append(time.perf_counter() - began)
    return {freshness: statistics.median(taken) for freshness, taken in seconds.items()}


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="Of the stream that is measured.")
@click.option("--per-second", default=500, show_default=True)
@click.option("--partitions", default=3, show_default=True)
def main(seconds: float, per_second: int, partitions: int) -> None:
    """Measure, and print."""
    spark = start_spark(**{"spark.ui.showConsoleProgress": "false"})
    for name in ("stream", "reads"):
        with broker_process("--durability", "s3-wal") as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result()
            load = Load(broker, partitions, per_second)
            if name == "stream":
                late = measure_stream(spark, load, seconds)
                told = ", ".join(f"p{share} {late[len(late) * share // 100]:.3f} s" for share in (50, 90, 99))
                click.echo(f"{len(late)} records from acknowledgement to row: {told}, at most {late[-1]:.3f} s")
                continue
            load.fill(RECORD_COUNT)
            flush(broker)
            _tell("all flushed", measure_reads(spark, broker), broker)
            with load.running():
                time.sleep(WARM_SECONDS)
                _tell(f"at {per_second} records/s", measure_reads(spark, broker), broker)
    spark.stop()


def _tell(when: str, seconds: Mapping[str, float], broker: BrokerProcess) -> None:
    objects_count = len(list(Path(store_of(broker).removeprefix("file:")).rglob("*.wal")))
    ratio = seconds["bucket"] / seconds["segments"]
    click.echo(
        f"a read of all, {when} ({objects_count} objects of the log): segments {seconds['segments']:.3f} s, "
        f"bucket {seconds['bucket']:.3f} s, {ratio:.2f} times"
    )


if __name__ == "__main__":
    main()
