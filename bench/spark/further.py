"""Loads other than reads of a whole topic: writes, the delay of a stream's rows, and the first two SQL statements.

Seconds of each by Spark's Kafka source and sink on Apache Kafka, by both on a broker of KafScale, and by ours there.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import attrs
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import RunningBroker
from bench.spark.data import Shape
from bench.spark.freshness import TOPIC, Load
from bench.spark.rounds import Further
from bench.spark.session import POM, Spark
from bench.spark.sources import BUCKET, KAFKA, ON_US, READY
from tests.devtools.external.spark import resolve_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITTEN_ROWS = 300_000
WRITE_ROUNDS = 3
STREAM_PER_SECOND = 200
STREAM_PARTITIONS = 3
WARM_SECONDS = 8.0
SQL_ROUNDS = 2
STATEMENT = "SELECT partition, count(*), sum(length(value)) FROM `{topic}` GROUP BY partition"

WRITER = f"write {WRITTEN_ROWS:,} rows of 100 B"
TRIGGERS = {"1 second": "stream", "0 seconds": "stream that waits for no trigger"}
BATCH = "its micro-batch, median"
FIRST_SQL, SECOND_SQL = "first SQL statement, with the start of its process", "second SQL statement"

# What the driver of a first SQL statement is without us: it prints how long its two statements took.
_KAFKA_SQL = """
import sys, time
began = time.perf_counter()
from pyspark.sql import SparkSession
jars, servers, topic, statement = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.jars", jars).getOrCreate()
options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
for _ in range(2):
    spark.read.format("kafka").options(**options).load().createOrReplaceTempView(topic.replace("-", "_"))
    spark.sql(statement).collect()
    print(time.perf_counter() - began, flush=True)
    began = time.perf_counter()
"""


@attrs.frozen(kw_only=True, eq=False)
class Sides:
    """The brokers, and where ours has its bucket, by options of the source."""

    spark: Spark
    kafka: RunningBroker
    ours: RunningBroker
    store: Mapping[str, str]

    def each(self) -> Iterator[tuple[str, str, RunningBroker]]:
        """Name, format and broker of each side."""
        return iter([(KAFKA, "kafka", self.kafka), (ON_US, "kafka", self.ours), (BUCKET, "kafscale", self.ours)])


def measure_writer(sides: Sides) -> Iterator[Further]:
    """Measure the same rows by each sink, in turns; the first round warms up."""
    taken: dict[str, list[float]] = {}
    for number in range(WRITE_ROUNDS + 1):
        for name, format, broker in sides.each():
            topic = f"bench-write-{format}-{number}"
            create_topic(broker, topic)
            rows = sides.spark.session.range(0, WRITTEN_ROWS, numPartitions=2).selectExpr(
                "CAST(CAST(id AS STRING) AS BINARY) AS key", "CAST(lpad(id, 100, 'v') AS BINARY) AS value"
            )
            began = time.perf_counter()
            writer = rows.write.format(format).option("kafka.bootstrap.servers", str(broker.address))
            writer.option("topic", topic).mode("append").save()
            if number:
                taken.setdefault(name, []).append(time.perf_counter() - began)
    for name, seconds in taken.items():
        yield Further(what=WRITER, source=name, seconds=seconds)


def measure_streams(sides: Sides, seconds: float) -> Iterator[Further]:
    """Measure how late the rows of streams are, one source after the other, and how long micro-batches take."""
    for source in (sides.kafka, sides.ours):
        create_topic(source, TOPIC, STREAM_PARTITIONS)
    for trigger, what in TRIGGERS.items():
        for name, format, broker in sides.each():
            late, batch_seconds = _lateness(sides, format, broker, trigger, seconds)
            yield Further(what=f"{what}, from acknowledgement to row, p50", source=name, seconds=[late[len(late) // 2]])
            yield Further(
                what=f"{what}, from acknowledgement to row, p99", source=name, seconds=[late[len(late) * 99 // 100]]
            )
            yield Further(what=f"{what}, {BATCH}", source=name, seconds=[batch_seconds])
        yield Further(what=f"{what}, {BATCH}", source=READY, seconds=[_ready_seconds(sides, trigger, seconds)])


@attrs.frozen(kw_only=True)
class _Client:
    bootstrap: str


def _lateness(
    sides: Sides, format: str, broker: RunningBroker, trigger: str, seconds: float
) -> tuple[Sequence[float], float]:
    """Return the seconds of each row, in order, of those that were acknowledged after the stream had become warm, and
    those of a micro-batch.
    """
    load = Load(_Client(bootstrap=str(broker.address)), STREAM_PARTITIONS, STREAM_PER_SECOND)
    seen: dict[tuple[int, int], float] = {}

    def take(frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("partition", "offset").collect()
        seen.update(dict.fromkeys(((row.partition, row.offset) for row in rows), time.monotonic()))

    options = {"kafka.bootstrap.servers": str(broker.address), "subscribe": TOPIC, "startingOffsets": "latest"}
    if format == "kafscale":
        options |= {**sides.store, "freshness": "broker", "warnOfAvailableNow": "false"}
    with TemporaryDirectory() as directory:
        source = sides.spark.session.readStream.format(format).options(**options).load()
        sink = source.writeStream.foreachBatch(take).option("checkpointLocation", directory)
        query: Any = sink.trigger(processingTime=trigger).start()
        query.processAllAvailable()  # it knows where it starts then
        load.one()
        query.processAllAvailable()
        with load.running():
            time.sleep(WARM_SECONDS + seconds)
            batch_seconds = _batch_seconds(query)
        query.processAllAvailable()
        query.stop()
    assert seen.keys() == load.acknowledged.keys(), "rows are not what was acknowledged"
    warm = max(load.acknowledged.values()) - seconds
    return sorted(seen[place] - at for place, at in load.acknowledged.items() if at > warm), batch_seconds


def _ready_seconds(sides: Sides, trigger: str, seconds: float) -> float:
    """Return what a micro-batch takes of a source that has its row at hand."""
    from bench.spark import ready

    def take(frame: DataFrame, batch_id: int) -> None:
        frame.select("partition", "offset").collect()

    sides.spark.session.dataSource.register(ready.ReadyDataSource)
    options = ready.options_of(Shape(value_bytes=1000, partitions=1, rows=1), 1, 0)
    with TemporaryDirectory() as directory:
        source = sides.spark.session.readStream.format(ready.FORMAT).options(**options).load()
        sink = source.writeStream.foreachBatch(take).option("checkpointLocation", directory)
        query: Any = sink.trigger(processingTime=trigger).start()
        while query.lastProgress is None and query.exception() is None:
            time.sleep(0.1)  # there is always more, so nothing says when the first batch is done
        time.sleep(WARM_SECONDS + seconds)
        batch_seconds = _batch_seconds(query)
        query.stop()
    return batch_seconds


def _batch_seconds(query: Any) -> float:
    """Return the median of the last batches that had rows."""
    took = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress if progress["numInputRows"]]
    batch_ms: float = statistics.median(took[len(took) // 3 :])
    return batch_ms / 1000


def measure_sql(sides: Sides, topic: str) -> Iterator[Further]:
    """Measure a statement in a process of its own, and a second one in the same."""
    with TemporaryDirectory(prefix="kafscale-bench-jars-") as directory:
        jars = ",".join(resolve_jars(POM, Path(directory)))
        for name, broker in ((KAFKA, sides.kafka), (ON_US, sides.ours)):
            statement = STATEMENT.format(topic=topic.replace("-", "_"))
            found = [
                _output_seconds(["-c", _KAFKA_SQL, jars, str(broker.address), topic, statement])
                for _ in range(SQL_ROUNDS)
            ]
            yield Further(what=FIRST_SQL, source=name, seconds=[first for first, _ in found])
            yield Further(what=SECOND_SQL, source=name, seconds=[second for _, second in found])
    statement = STATEMENT.format(topic=topic)
    command = ["-m", "kafscale", "sql", "--store", sides.store["store"]]
    firsts, boths = ([_run_seconds([*command, text]) for _ in range(SQL_ROUNDS)]
                     for text in (statement, f"{statement}; {statement}"))  # fmt: skip
    yield Further(what=FIRST_SQL, source=BUCKET, seconds=firsts)
    yield Further(what=SECOND_SQL, source=BUCKET, seconds=[max(0.0, both - min(firsts)) for both in boths])


def _output_seconds(arguments: Sequence[str]) -> tuple[float, float]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    first, second = map(float, done.stdout.split())
    return first, second


def _run_seconds(arguments: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return time.perf_counter() - began


def create_topic(broker: RunningBroker, topic: str, partitions: int = 4) -> None:
    """Create a topic, and wait until it is there."""
    admin = AdminClient({"bootstrap.servers": str(broker.address)})
    for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        made.result()
