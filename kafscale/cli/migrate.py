"""`kafscale pipeline migrate`: checkpoints of streams to and from Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.options import BOOTSTRAP, BUCKET_OPTIONS, SPARK_SETTING, Bootstrap, json_option, number, with_settings
from kafscale.cli.output import show
from kafscale.cli.sql import MASTER_DEFAULT, store_options
from kafscale.config import Loaded, Settings
from kafscale.errors import KafScaleError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TARGETS = ("kafscale", "kafka")
LAST_DEFAULT = 100_000
Given = tuple[tuple[str, str], ...]


class NotTheSame(KafScaleError):
    """The sources read different rows."""


@attrs.frozen(kw_only=True)
class MigrateOptions:
    to: str
    source: str
    target: str
    bootstrap: Bootstrap | None
    last: int
    dry_run: bool
    as_json: bool
    master: str
    conf: Given
    options: Given
    kafka_options: Given

    @property
    def for_kafka(self) -> Mapping[str, str]:
        return {"kafka.bootstrap.servers": ",".join(map(str, self.bootstrap or ())), **dict(self.kafka_options)}


COLUMNS = ("topic", "partition", "goes_on_at", "first_offset", "end_offset", "outcome")


@click.command("migrate")
@click.argument("source")
@click.argument("target")
@click.option("--to", type=click.Choice(TARGETS), required=True, help="The source that continues with TARGET.")
@click.option(
    "--bootstrap", type=BOOTSTRAP, help="Compare the sources row by row first, with brokers that have the same topics."
)
@click.option(
    "--last",
    type=number(0),
    default=LAST_DEFAULT,
    show_default=True,
    help="Number of offsets of each partition to compare, before the position of the query; 0 for all.",
)
@click.option("--dry-run", is_flag=True, help="Check and compare, and write nothing.")
@click.option(
    "--option",
    "options",
    type=SPARK_SETTING,
    multiple=True,
    help="An option of format(kafscale), such as freshness=segments; repeatable.",
)
@click.option(
    "--kafka-option",
    "kafka_options",
    type=SPARK_SETTING,
    multiple=True,
    help="An option of format(kafka), such as kafka.security.protocol=SSL; NAME=@PATH reads a file; repeatable.",
)
@click.option(
    "--conf", type=SPARK_SETTING, multiple=True, envvar="KAFSCALE_SPARK_CONF", help="A setting of Spark; repeatable."
)
@click.option("--master", default=MASTER_DEFAULT, show_default=True, envvar="KAFSCALE_SPARK_MASTER", help="Of Spark.")
@json_option
@with_settings(only=BUCKET_OPTIONS)
def command(loaded: Loaded, **given: Any) -> None:
    """Copy the checkpoint SOURCE of a stream to TARGET, from which the query continues with the other source.

    SOURCE stays as it is. The query must have ended between two batches. Partitions are shown with their positions. The
    exit code is 1 if the sources read different rows.
    """
    options = MigrateOptions(**given)
    with ExitStack() as stack:
        spark = _session(options)
        stack.callback(spark.stop)
        _run(spark, loaded.settings, options)


def _session(options: MigrateOptions) -> SparkSession:
    from kafscale.spark import catalogs
    from kafscale.spark.session import SessionOptions, start_session

    name = catalogs.KAFKA_SOURCE_JAR.rpartition(":")[2]
    is_given = any(name in value for _, value in options.conf)  # by spark.jars or spark.jars.packages
    needed = [f"{catalogs.KAFKA_SOURCE_JAR}:{version('pyspark')}"] if options.bootstrap and not is_given else []
    return start_session(
        SessionOptions(
            master=options.master, app_name="kafscale pipeline migrate", conf=dict(options.conf), packages=needed
        )
    )


def _run(spark: SparkSession, settings: Settings, options: MigrateOptions) -> None:
    from kafscale.spark.pipeline.migration import check_bucket, compare, migrate, read_checkpoint
    from kafscale.spark.source.options import Given as SourceOptions
    from kafscale.spark.source.options import ReadOptions
    from kafscale.spark.source.planning import Planner

    migration = read_checkpoint(spark, options.source)
    topics = sorted({topic for topic, _ in migration.offsets})
    of_source = {**store_options(settings), **dict(options.options)}
    read = ReadOptions.of(SourceOptions({**of_source, "subscribe": ",".join(topics)}))
    with closing(Planner.of(read)) as planner:
        logs = check_bucket(migration, planner)
    if options.bootstrap is not None:
        last = options.last or None
        found = compare(spark, migration.offsets, logs, of_source, options.for_kafka, last_count=last)
        if not found.is_same:
            raise NotTheSame(
                f"of {found.rows} rows in the bucket, {found.only_kafscale} are not at the brokers; "
                f"{found.only_kafka} rows of the brokers are not in the bucket: {'; '.join(found.shown)}"
            )
        click.echo(f"both sources read the same {found.rows} rows", err=True)
    if not options.dry_run:
        migrate(migration, options.target, options.to, logs)
    outcome = f"would be {options.to}'s" if options.dry_run else f"{options.to}'s"
    rows = [
        (*partition, offset, logs[partition].start_offset, logs[partition].end_offset, outcome)
        for partition, offset in sorted(migration.offsets.items())
    ]
    show(COLUMNS, rows, as_json=options.as_json)
