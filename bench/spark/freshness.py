"""`python -m bench.spark.freshness`: how long after its acknowledgement a record is a row, and what it costs.

A broker takes records at a steady rate. A stream reads them in micro-batches of a second, and the time of a row is that
at which its batch is there: of a broker with `--durability s3-wal` from the bucket, of one with `wal` from the broker.
Then whole reads of a topic in `s3-wal`, with what no segment has and without, in turns: when all is flushed, and while
records come.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import click
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.places import LOCAL_RESULTS, RESULTS
from bench.report import console
from bench.spark.freshness_page import Found, Read, Streamed, reads_table, streams_table, write_page
from bench.spark.session import SETTINGS
from bench.spark.tables import Table
from kafscale.spark.source.options import Given, bucket_options
from tests.devtools.external.s3_processes import minio_server
from tests.devtools.external.spark import flush, start_spark, store_of
from tests.devtools.processes.process import BrokerProcess, broker_process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DIRECTORY, MINIO = "directory", "minio"
STREAMS = {"s3-wal": "bucket", "wal": "broker"}  # which freshness by which durability
TOPIC = "t"
STEP_SECONDS = 0.01
WARM_SECONDS = 15.0  # after which the stream is measured
VALUE_BYTES = 1000
RECORD_COUNT = 200_000  # of the whole reads
ROUNDS_COUNT = 7

_Place = tuple[int, int]


class Bootstrapped(Protocol):
    """A broker that clients find."""

    @property
    def bootstrap(self) -> str: ...


@attrs.define(eq=False)
class Load:
    """Records at a rate, and when each was acknowledged."""

    broker: Bootstrapped
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
        """Produce a number of records at once."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 20})
        for number in range(count):
            while True:
                try:
                    producer.produce(TOPIC, b"x" * VALUE_BYTES, partition=number % self.partition_count)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)


@attrs.frozen(kw_only=True, eq=False)
class Running:
    """A broker, and the options by which Spark finds its bucket and it."""

    broker: BrokerProcess
    store: Mapping[str, str]

    def options(self, freshness: str) -> Mapping[str, str]:
        """Return what a source needs."""
        asked = {"kafka.bootstrap.servers": self.broker.bootstrap} if freshness == "broker" else {}
        return {**self.store, **asked, "subscribe": TOPIC, "freshness": freshness}

    def log_objects_count(self) -> int:
        """Return how many objects of the write-ahead log are in the bucket."""
        bucket = bucket_options(Given(self.store)).open()
        try:
            return sum(info.key.endswith(".wal") for info in bucket.list(""))
        finally:
            bucket.close()


@contextmanager
def running(bucket: str, durability: str, partitions: int) -> Iterator[Running]:
    """A broker whose bucket is a directory or in MinIO, with an empty topic."""
    if bucket == MINIO:
        with minio_server() as server:
            key_id, secret = server.credentials.access_key_id, server.credentials.secret_access_key
            found = {
                "store": "s3://bench",
                "s3Endpoint": server.endpoint,
                "s3AccessKeyId": key_id,
                "s3SecretAccessKey": secret,
            }
            environ = {"AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": secret}
            where = ("--store", "s3://bench", "--s3-endpoint", server.endpoint, "--s3-create-bucket")
            with broker_process("--durability", durability, *where, environ=environ) as broker:
                _create_topic(broker, partitions)
                yield Running(broker=broker, store=found)
        return
    with broker_process("--durability", durability) as broker:
        _create_topic(broker, partitions)
        yield Running(broker=broker, store={"store": store_of(broker)})


def _create_topic(broker: BrokerProcess, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result()


def measure_stream(
    spark: SparkSession, ours: Running, load: Load, seconds: float, *, bucket: str, durability: str
) -> Streamed:
    """Measure how late each row is, for some seconds after the stream has become warm."""
    seen: dict[_Place, float] = {}

    def take(frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("partition", "offset").collect()
        now = time.monotonic()
        for row in rows:
            assert (row.partition, row.offset) not in seen, "a record came twice"
            seen[row.partition, row.offset] = now

    options = {**ours.options(STREAMS[durability]), "startingOffsets": "earliest", "warnOfAvailableNow": "false"}
    with TemporaryDirectory() as directory:
        source = spark.readStream.format("kafscale").options(**options).load()
        sink = source.writeStream.foreachBatch(take).option("checkpointLocation", directory)
        query = sink.trigger(processingTime="1 second").start()
        load.one()
        query.processAllAvailable()  # Spark's first batch takes many seconds
        with load.running():
            time.sleep(WARM_SECONDS + seconds)
            took = [
                progress["durationMs"] for progress in query.recentProgress[-int(seconds) :] if progress["numInputRows"]
            ]
        query.processAllAvailable()
        query.stop()
    assert seen.keys() == load.acknowledged.keys(), "rows are not what was acknowledged"
    warm = max(load.acknowledged.values()) - seconds
    late = sorted(seen[place] - at for place, at in load.acknowledged.items() if at > warm)
    return Streamed(
        bucket=bucket,
        durability=durability,
        freshness=STREAMS[durability],
        per_second=load.per_second,
        records_count=len(late),
        p50_seconds=late[len(late) // 2],
        p90_seconds=late[len(late) * 90 // 100],
        p99_seconds=late[len(late) * 99 // 100],
        most_seconds=late[-1],
        phases_ms={
            phase: statistics.median(durations.get(phase, 0) for durations in took) if took else 0
            for phase in ("triggerExecution", "latestOffset", "queryPlanning", "addBatch")
        },
    )


def measure_reads(spark: SparkSession, ours: Running, *, bucket: str, per_second: int) -> Sequence[Read]:
    """Measure reads of all values by each `freshness`, in turns."""
    seconds: dict[str, list[float]] = {"segments": [], "bucket": [], "broker": []}
    rows: dict[str, int] = {}
    objects: list[int] = []
    for number in range(ROUNDS_COUNT + 1):
        for freshness, taken in seconds.items():
            frame = spark.read.format("kafscale").options(**ours.options(freshness)).load()
            began = time.perf_counter()
            (row,) = frame.selectExpr("count(*)", "sum(length(value))", "max(offset)").collect()
            if number:  # the first one warms up
                taken.append(time.perf_counter() - began)
                rows[freshness] = row[0]
        objects.append(ours.log_objects_count())
    return [
        Read(
            bucket=bucket,
            per_second=per_second,
            log_objects_count=round(statistics.median(objects)),
            freshness=freshness,
            rows_count=rows[freshness],
            seconds=taken,
        )
        for freshness, taken in seconds.items()
    ]


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="Of each stream that is measured.")
@click.option("--per-second", default=500, show_default=True)
@click.option("--partitions", default=3, show_default=True)
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    type=click.Choice([DIRECTORY, MINIO]),
    help="Only this one. Default: a directory, and MinIO where `minio` is on the PATH.",
)
@click.option("--docs/--no-docs", default=False, help="Write docs/benchmarks/freshness.md, and JSON to bench/results.")
def main(*, seconds: float, per_second: int, partitions: int, buckets: Sequence[str], docs: bool) -> None:
    """Measure, show, and write JSON and a page."""
    if not buckets:
        buckets = (DIRECTORY, MINIO) if shutil.which(MINIO) else (DIRECTORY,)
    spark = start_spark(**SETTINGS)
    version = spark.version
    streamed: list[Streamed] = []
    reads: list[Read] = []
    for bucket in buckets:
        for durability in STREAMS:
            with running(bucket, durability, partitions) as ours:
                load = Load(ours.broker, partitions, per_second)
                streamed.append(measure_stream(spark, ours, load, seconds, bucket=bucket, durability=durability))
            click.echo(streamed[-1], err=True)
        with running(bucket, "s3-wal", partitions) as ours:
            load = Load(ours.broker, partitions, per_second)
            load.fill(RECORD_COUNT)
            flush(ours.broker)
            reads += measure_reads(spark, ours, bucket=bucket, per_second=0)
            with load.running():
                time.sleep(WARM_SECONDS)
                reads += measure_reads(spark, ours, bucket=bucket, per_second=per_second)
    spark.stop()
    found = Found(streamed=streamed, reads=reads)
    _show("from acknowledgement to row", streams_table(found))
    _show("a read of all", reads_table(found))
    LOCAL_RESULTS.mkdir(parents=True, exist_ok=True)
    options = {**click.get_current_context().params, "buckets": buckets, "spark": version, "warm_seconds": WARM_SECONDS}
    click.echo(write_page(found, options, RESULTS if docs else LOCAL_RESULTS))


def _show(title: str, table: Table) -> None:
    from rich.table import Table as Shown

    shown = Shown(title=title)
    for number, heading in enumerate(table.headings):
        shown.add_column(heading, justify="left" if number < table.text_count else "right")
    for row in table.rows:
        shown.add_row(*row)
    console().print(shown)


if __name__ == "__main__":
    main()
