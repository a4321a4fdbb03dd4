"""`python -m bench.spark`: Spark on the bucket of a broker, beside Spark's Kafka source on the same records.

Both brokers run during the whole run. What was measured of a shape is kept under bench/results/local until the run has
ended, so that a run that was broken off goes on with `--resume`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import click

from bench.brokers import OwnBroker
from bench.peers.kafka import DEFAULT, KafkaBroker, find_java
from bench.places import LOCAL_RESULTS
from bench.report import console
from bench.spark.avro import measure_avro
from bench.spark.costs import measure_costs, measure_plan
from bench.spark.data import Shape, fill
from bench.spark.decoder import measure_decoder
from bench.spark.further import Sides, measure_sql, measure_streams, measure_writer
from bench.spark.page import save_part, saved_part, together, write_page
from bench.spark.rounds import Contest
from bench.spark.session import Spark, running_spark
from bench.spark.sources import KAFKA, ON_US, QUERIES, BucketSource, KafkaSource, Query, ReadySource
from bench.spark.tables import Outcome, Table, decoder, further, read_bytes, speed, times
from tests.devtools.external.s3_processes import minio_server

ROWS_100 = 2_000_000
ROWS_SHARE_1024 = 3  # a topic of 1 KiB values has a third of the rows
DIRECTORY, MINIO = "directory", "minio"
PARTITIONS = (4, 64)
MANY_PARTITIONS = 16  # above, the Kafka source takes half a second or more for each, whatever is asked
ASKED_OF_MANY = ("count", "parquet", "hour")
SECONDS_PER_MILLION_ROWS = 5.0  # of a query on one source, on two cores: for the estimate alone


@click.command()
@click.option("--rows", default=ROWS_100, show_default=True, help="Of a topic of 100 B values; of 1 KiB, a third.")
@click.option(
    "--rounds", default=3, show_default=True, help="Of each query on each source, after one to warm up; at least."
)
@click.option(
    "--query", "names", multiple=True, type=click.Choice([query.name for query in QUERIES]), help="Only these."
)
@click.option("--partitions", multiple=True, type=int, default=PARTITIONS, show_default=True)
@click.option("--value-bytes", "sizes", multiple=True, type=int, default=(100, 1024), show_default=True)
@click.option("--bucket", type=click.Choice([DIRECTORY, MINIO]), default=DIRECTORY, show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), help="Where the brokers' directories are made.")
@click.option("--stream-seconds", default=30.0, show_default=True, help="Of each stream that is measured.")
@click.option("--resume", is_flag=True, help="Take what an earlier run has left of shapes that it had done.")
@click.option("--docs/--no-docs", default=False, help="Write docs/benchmarks/spark.md, JSON and plot to bench/results.")
def main(
    *,
    rows: int,
    rounds: int,
    names: Sequence[str],
    partitions: Sequence[int],
    sizes: Sequence[int],
    bucket: str,
    directory: Path | None,
    stream_seconds: float,
    resume: bool,
    docs: bool,
) -> None:
    """Alternate each query between the sources, and show medians, spread, and where the time goes."""
    if missing := find_java():
        raise click.ClickException(missing)
    began = time.monotonic()
    shapes = [
        Shape(value_bytes=size, partitions=count, rows=rows if size < 1024 else rows // ROWS_SHARE_1024)
        for size in sizes
        for count in partitions
    ]
    asked = {shape: _asked(shape, names) for shape in shapes}
    _estimate(asked, rounds)
    with _running(bucket, directory) as run:
        parts = [run.part(shape, queries, rounds, resume=resume) for shape, queries in asked.items()]
        parts.append(run.further(shapes[0], stream_seconds))
        version = run.spark.version
    parts.append(Outcome(decoded=list(measure_decoder())))
    outcome = together(parts)
    for title, table in (
        ("speed", speed),
        ("seconds", further),
        ("bytes", read_bytes),
        ("CPU us per row", times),
        ("decoder", decoder),
    ):
        _show(title, table(outcome))
    options = {
        **click.get_current_context().params,
        "spark": version,
        "seconds": round(time.monotonic() - began, 1),
        "bucket": "is a directory on the disk that Kafka is on" if bucket == DIRECTORY else "is MinIO",
    }
    click.echo(write_page(outcome, options) if docs else write_page(outcome, options, _results()))
    for shape in shapes:
        _part_path(shape).unlink()


def _asked(shape: Shape, names: Sequence[str]) -> Sequence[Query]:
    """Return the queries of these names; without any all of them, or few where there are many partitions."""
    names = names or (ASKED_OF_MANY if shape.partitions > MANY_PARTITIONS else ())
    return [query for query in QUERIES if not names or query.name in names]


def _estimate(asked: Mapping[Shape, Sequence[Query]], rounds: int) -> None:
    rows = sum(shape.all_rows for shape in asked)
    passes = sum(shape.all_rows * (2 + 2 * len(queries) * (rounds + 1)) for shape, queries in asked.items())
    seconds = passes / 1e6 * SECONDS_PER_MILLION_ROWS
    click.echo(f"{rows:,} rows in {len(asked)} topics: about {seconds / 60:.0f} min", err=True)


@attrs.frozen(kw_only=True, eq=False)
class _Run:
    """The running processes."""

    spark: Spark
    kafka: KafkaSource
    on_us: KafkaSource
    bucket: BucketSource

    def further(self, shape: Shape, stream_seconds: float) -> Outcome:
        """Measure writes, streams and SQL; SQL is of a shape that was measured."""
        sides = Sides(spark=self.spark, kafka=self.kafka.broker, ours=self.bucket.broker, store=self.bucket.store)
        found = []
        for measured in (
            measure_writer(sides),
            measure_avro(sides),
            measure_streams(sides, stream_seconds),
            measure_sql(sides, shape.topic),
        ):
            for one in measured:
                click.echo(one, err=True)
                found.append(one)
        return Outcome(further=found)

    def part(self, shape: Shape, queries: Sequence[Query], rounds: int, *, resume: bool) -> Outcome:
        """All of one shape; kept in a file."""
        path = _part_path(shape)
        if resume and path.exists():
            click.echo(f"{shape}: from {path}", err=True)
            return saved_part(path)
        for source in (self.kafka, self.bucket):
            click.echo(f"{shape}: writing {shape.all_rows:,} rows for {source.name}", err=True)
            fill(source.broker.address, shape)
            source.broker.flush()
        ready = ReadySource(broker=self.bucket.broker)
        contest = Contest(spark=self.spark, sources=[self.kafka, self.on_us, ready, self.bucket], queries=queries)
        results = []
        for result in contest.rounds(shape, rounds):
            results.append(result)
            click.echo(
                f"{shape}: {result.query}, round {result.round + 1}, {result.source}: "
                f"{result.seconds:.2f} s, {result.rows_per_second:,.0f} rows/s",
                err=True,
            )
        outcome = Outcome(
            results=results,
            planned=[measure_plan(self.bucket, shape, query) for query in queries],
            costs=[measure_costs(self.bucket, shape)],
        )
        save_part(outcome, path)
        return outcome


@contextmanager
def _running(bucket: str, directory: Path | None) -> Iterator[_Run]:
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaBroker(KAFKA, DEFAULT, directory).running())
        data_dir = Path(stack.enter_context(TemporaryDirectory(prefix="kafscale-bench-", dir=directory)))
        store: Mapping[str, str] = {"store": f"file:{data_dir / 'bucket'}"}
        own = OwnBroker(data_dir=data_dir)
        if bucket == MINIO:
            server = stack.enter_context(minio_server())
            key_id, secret = server.credentials.access_key_id, server.credentials.secret_access_key
            store = {
                "store": "s3://bench",
                "s3Endpoint": server.endpoint,
                "s3AccessKeyId": key_id,
                "s3SecretAccessKey": secret,
            }
            own = OwnBroker(
                options=["--store", "s3://bench", "--s3-endpoint", server.endpoint, "--s3-create-bucket"],
                data_dir=data_dir,
                environ={"AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": secret},
            )
        broker = stack.enter_context(own.running())
        yield _Run(
            kafka=KafkaSource(broker=kafka),
            on_us=KafkaSource(broker=broker, name=ON_US),
            bucket=BucketSource(broker=broker, store=store),
            spark=stack.enter_context(running_spark()),
        )


def _part_path(shape: Shape) -> Path:
    return _results() / f"spark-{shape.topic}-{shape.rows}.json"


def _results() -> Path:
    LOCAL_RESULTS.mkdir(parents=True, exist_ok=True)
    return LOCAL_RESULTS


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
