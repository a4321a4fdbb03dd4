"""`kafscale pipeline run|validate|status|prove|maintain|reset|migrate`: topics kept in Iceberg tables."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from kafscale.cli.options import (
    BOOTSTRAP,
    SPARK_SETTING,
    Bootstrap,
    Function,
    ListOption,
    json_option,
    number,
    with_settings,
)
from kafscale.cli.output import iso_time, say, show, show_json
from kafscale.cli.sql import store_options
from kafscale.config import BUCKET_OPTIONS, Address, Loaded, Settings
from kafscale.errors import ConfigError, KafScaleError
from kafscale.extras import missing_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafscale.spark.pipeline.batch import Outcome
    from kafscale.spark.pipeline.config import Pipeline
    from kafscale.spark.pipeline.inspection import MappingStatus, Tables
    from kafscale.spark.pipeline.reset import Reset
    from kafscale.spark.pipeline.runner import Lag, Observer
    from kafscale.spark.pipeline.tables import Care
    from kafscale.traces import Traces

MASTER_DEFAULT = "local[*, 4]"  # a task that fails is tried again, as on a cluster
T = TypeVar("T")
Given = tuple[tuple[str, str], ...]


class PipelineFailed(KafScaleError):
    """Raised at the end if mappings failed; each failure was reported before."""


@click.group("pipeline")
def command() -> None:
    """Keep Iceberg tables up to date.

    Tables get each record of their topics exactly once, from the bucket, without a broker.
    """


def spark_options(function: Function) -> Function:
    """Give a command `--master` and `--conf`."""
    function = click.option(
        "--conf",
        "conf",
        type=SPARK_SETTING,
        multiple=True,
        envvar="KAFSCALE_SPARK_CONF",
        help="A setting of Spark, NAME=VALUE, or NAME=@PATH to read a file; repeatable.  [KAFSCALE_SPARK_CONF]",
    )(function)
    return click.option(
        "--master",
        envvar="KAFSCALE_SPARK_MASTER",
        default=MASTER_DEFAULT,
        help=f"Where Spark runs.  [default: {MASTER_DEFAULT}, in this process; KAFSCALE_SPARK_MASTER]",
    )(function)


file_argument = click.argument("file", type=click.Path(path_type=Path))


@command.command("run")
@file_argument
@click.option("--once", is_flag=True, help="End when the tables have what is in the bucket now.")
@spark_options
def run_command(file: Path, *, once: bool, master: str, conf: Given) -> None:
    """Run the pipeline that FILE describes until a signal.

    A mapping that fails is reported on stderr, and the others go on. The exit code is then 1.
    """
    pipeline = _read(file)
    with ExitStack() as stack:
        spark = stack.enter_context(_session(pipeline, master, conf))
        from kafscale.spark.pipeline.runner import PipelineRun

        observers = stack.enter_context(_observing(pipeline))
        traces = stack.enter_context(_tracing(pipeline))
        run = PipelineRun(spark=spark, pipeline=pipeline, observers=observers, traces=traces)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: run.stop())
        failed = run.run(once=once)
    if failed:
        raise PipelineFailed(f"{len(failed)} of {len(pipeline.mappings)} mappings failed: {', '.join(failed)}")


@command.command("validate")
@file_argument
@click.option("--offline", is_flag=True, help="Check the file alone, and connect to nothing.")
@json_option
@spark_options
def validate_command(file: Path, *, offline: bool, as_json: bool, master: str, conf: Given) -> None:
    """Check FILE, and that its topics, schemas and tables exist and fit together."""
    pipeline = _read(file)
    from kafscale.spark.pipeline.document import MappingCheck

    if offline:
        if not as_json:
            click.echo(f"{file} is a pipeline, of {len(pipeline.mappings)} mapping(s); nothing was connected to")
            return
        found = "is a mapping; nothing was connected to"
        checks = [MappingCheck(mapping=mapping.id, what="file", found=found) for mapping in pipeline.mappings]
        show(MappingCheck, checks, as_json=True)
        return
    _check_pyspark()
    from kafscale.spark.pipeline.inspection import check

    checks = _looked(pipeline, master, conf, lambda tables: list(check(tables, pipeline)))
    show(MappingCheck, checks, as_json=as_json)
    wrong = [found for found in checks if not found.ok]
    if wrong:
        raise PipelineFailed(f"{wrong[0].mapping}: {wrong[0].what}: {wrong[0].found}")


@command.command("status")
@file_argument
@json_option
@spark_options
def status_command(file: Path, *, as_json: bool, master: str, conf: Given) -> None:
    """Show the progress of each mapping of FILE: offsets in its table, lag, last snapshot, dead letters."""
    pipeline = _read(file)
    _check_pyspark()
    from kafscale.spark.pipeline.inspection import status

    found = _looked(pipeline, master, conf, lambda tables: status(tables, pipeline))
    if as_json:
        show_json([*map(attrs.asdict, found)])
        return
    columns = ("mapping", "table", "batch", "offsets", "lag", "lag_bytes", "lag_seconds", "committed", "snapshot")
    show((*columns, "dead_letters"), [_status_row(mapping) for mapping in found])


def _status_row(status: MappingStatus) -> tuple[Any, ...]:
    offsets = [
        f"{topic}/{partition}:{offset}" for topic, ends in status.offsets.items() for partition, offset in ends.items()
    ]
    committed = None if status.committed_ms is None else iso_time(status.committed_ms)
    lag = (status.lag, status.lag_bytes, round(status.lag_seconds))
    newest = (committed, status.snapshot_id)
    return status.mapping, status.table, status.batch_id, offsets, *lag, *newest, status.dead_letters


@command.command("prove")
@file_argument
@click.option("--mapping", "mappings", cls=ListOption, help="Only the mapping of this name; repeatable.")
@json_option
@spark_options
def prove_command(file: Path, *, mappings: tuple[str, ...], as_json: bool, master: str, conf: Given) -> None:
    """Derive the tables of FILE again from the bucket, and compare them row by row.

    Nothing is changed. The exit code is 1 if a table differs.
    """
    pipeline = _read(file)
    unknown = set(mappings) - {mapping.id for mapping in pipeline.mappings}
    if unknown:
        raise ConfigError(f"{file} has no mapping '{min(unknown)}'")
    with _session(pipeline, master, conf) as spark:
        from kafscale.spark.pipeline.proof import Proof, prove

        proofs = list(prove(spark, pipeline, mappings))
    show(Proof, proofs, as_json=as_json)
    wrong = [proof for proof in proofs if not proof.is_proven]
    if wrong:
        raise PipelineFailed(f"{wrong[0].mapping}: {wrong[0].found}")


@command.command("maintain")
@file_argument
@json_option
@spark_options
def maintain_command(file: Path, *, as_json: bool, master: str, conf: Given) -> None:
    """Compact the tables of FILE, expire old snapshots and delete orphaned files."""
    pipeline = _read(file)
    with _session(pipeline, master, conf) as spark:
        from kafscale.spark.pipeline.tables import Care, maintain

        done = list(maintain(spark, pipeline))
    show(Care, done, as_json=as_json)
    problems = [f"{care.table}: {care.problem}" for care in done if care.problem]
    if problems:
        raise PipelineFailed("; ".join(problems))


@command.command("reset")
@file_argument
@click.option("--topic", "topics", cls=ListOption, required=True, help="Topic to reset; repeatable.")
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Read from the first record even if it is the same topic; its records are then read again.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@json_option
@spark_options
def reset_command(
    file: Path, *, topics: tuple[str, ...], from_beginning: bool, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Let the mappings of FILE continue with the present records of a topic, and show where.

    A topic that was deleted and created again is read from its beginning. If records were deleted before they were
    read, the remaining ones are read. Everything else continues at the offsets of the tables, whose rows stay.
    """
    pipeline = _read(file)
    with _session(pipeline, options["master"], options["conf"]) as spark:
        from kafscale.spark.pipeline.reset import carry_out, locked, plan

        with locked(spark, pipeline):
            resets = plan(spark, pipeline, topics, from_beginning=from_beginning)
            if not dry_run:
                carry_out(spark, pipeline, resets)
    columns = ("mapping", "topic", "topic_id", "offsets", "new_topic_id", "new_offsets", "outcome")
    show(columns, [_reset_row(reset, dry_run=dry_run) for reset in resets], as_json=as_json)


def _reset_row(reset: Reset, *, dry_run: bool) -> tuple[Any, ...]:
    outcome = "stays as it is" if not reset.changes else "would be reset" if dry_run else "reset"
    before, after = (
        (
            position.topic_ids.get(reset.topic),
            [f"{index}:{offset}" for (name, index), offset in sorted(position.offsets.items()) if name == reset.topic],
        )
        for position in (reset.before, reset.after)
    )
    return reset.mapping.id, reset.topic, *before, *after, outcome


@attrs.frozen
class Terminal:
    """Reports a pipeline's progress on stderr; `clock` is in seconds."""

    clock: Callable[[], float] = time.monotonic
    _lags: dict[str, tuple[int, float]] = attrs.field(factory=dict, init=False)  # and their times

    def batch_done(self, mapping: str, outcome: Outcome, row_count: int, lag: int) -> None:
        if outcome.commit_seconds is None:
            click.echo(f"{mapping}: batch {outcome.batch.batch_id} was in the table already", err=True)
            return
        letters = f", {outcome.dead_letter_count} dead letters" if outcome.dead_letter_count else ""
        click.echo(
            f"{mapping}: batch {outcome.batch.batch_id}, {row_count} records{letters}, {outcome.added_bytes} bytes "
            f"committed in {outcome.commit_seconds:.1f} s, lag {lag}{self._estimate(mapping, lag)}",
            err=True,
        )

    def _estimate(self, mapping: str, lag: int) -> str:
        now = self.clock()
        lag_before, time_before = self._lags.get(mapping, (0, now))
        self._lags[mapping] = lag, now
        if not 0 < lag < lag_before:
            return ""
        seconds = lag * (now - time_before) / (lag_before - lag)
        return f", about {seconds:.0f} s left" if seconds < 120 else f", about {seconds / 60:.0f} min left"

    def lag_measured(self, mapping: str, lag: Lag) -> None: ...

    def mapping_failed(self, mapping: str, error: Exception) -> None:
        click.echo(f"{mapping}: failed: {_one_line(error)}", err=True)

    def mapping_restarts(self, mapping: str, error: Exception, delay_seconds: float) -> None:
        click.echo(f"{mapping}: starts again in {delay_seconds:.0f} s: {_one_line(error)}", err=True)

    def maintained(self, care: Care) -> None:
        if care.problem:
            click.echo(f"{care.table}: maintenance failed and will be tried again: {care.problem}", err=True)
            return
        click.echo(
            f"{care.table}: {care.compacted_files} files compacted, {care.expired_files} expired, "
            f"{care.orphan_files} orphans deleted",
            err=True,
        )


def _one_line(error: Exception) -> str:
    """Return the message of an expected error; else its type, and of a Java error the beginning and root cause."""
    if isinstance(error, KafScaleError):
        return " ".join(str(error).split())
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines[2:] if line.startswith("Caused by: ")]
    return f"{type(error).__name__}: {' '.join([*lines[:2], *causes[-1:]])}"


def _read(file: Path) -> Pipeline:
    try:
        from kafscale.spark.pipeline.document import read_pipeline
    except ImportError as exc:
        raise missing_extra("iceberg", exc) from exc
    return read_pipeline(file)


def _check_pyspark() -> None:
    from kafscale.spark.session import check_pyspark

    check_pyspark()


def _looked(pipeline: Pipeline, master: str, conf: Given, look: Callable[[Tables], T]) -> T:
    """Call `look`, without Spark if it can do without, as Spark takes 20 s to start."""
    from kafscale.spark.pipeline.inspection import DirectoryTables, NeedsSpark, SparkTables

    tables = None if conf else DirectoryTables.of(pipeline)
    if tables is not None:
        try:
            return look(tables)
        except NeedsSpark as exc:
            say(f"kafscale: starting Spark, because {exc}", err=True)
    with _session(pipeline, master, conf) as spark:
        return look(SparkTables(spark, pipeline))


@contextmanager
def _session(pipeline: Pipeline, master: str, conf: Given) -> Iterator[SparkSession]:
    from kafscale.spark.session import SessionOptions, jvm_may_have_gone, start_session

    settings = {**pipeline.spark, **dict(conf)}
    spark = start_session(
        SessionOptions(
            master=master, app_name="kafscale pipeline", conf=settings, catalogs=[pipeline.catalog.uncached()]
        )
    )
    try:
        yield spark
    finally:
        with jvm_may_have_gone():
            spark.stop()


@contextmanager
def _observing(pipeline: Pipeline) -> Iterator[Sequence[Observer]]:
    """Give the terminal, and Prometheus if the pipeline has an address for it."""
    if pipeline.metrics is None:
        yield [Terminal()]
        return
    from kafscale.spark.pipeline.metrics import PipelineMetrics, serving

    metrics = PipelineMetrics()
    with serving(metrics, Address.parse(pipeline.metrics)) as address:
        click.echo(f"metrics at http://{address}/metrics", err=True)
        yield [Terminal(), metrics]


@contextmanager
def _tracing(pipeline: Pipeline) -> Iterator[Traces | None]:
    """Send spans for the block if the pipeline names a collector."""
    if pipeline.traces is None:
        yield None
        return
    try:
        from kafscale.traces import Traces
    except ModuleNotFoundError as exc:
        raise missing_extra("traces", exc, what="`traces` in a pipeline") from exc
    traces = Traces.open(pipeline.traces, {"service.name": "kafscale-pipeline"})
    try:
        yield traces
    finally:
        traces.close()


TARGETS = ("kafscale", "kafka")
MIGRATE_MASTER_DEFAULT = "local[*]"
LAST_DEFAULT = 100_000


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


@command.command("migrate")
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
@click.option(
    "--master", default=MIGRATE_MASTER_DEFAULT, show_default=True, envvar="KAFSCALE_SPARK_MASTER", help="Of Spark."
)
@json_option
@with_settings(only=BUCKET_OPTIONS)
def migrate_command(loaded: Loaded, **given: Any) -> None:
    """Copy the checkpoint SOURCE of a stream to TARGET, from which the query continues with the other source.

    SOURCE stays as it is. The query must have ended between two batches. Partitions are shown with their positions. The
    exit code is 1 if the sources read different rows.
    """
    options = MigrateOptions(**given)
    with ExitStack() as stack:
        spark = _migrating_session(options)
        stack.callback(spark.stop)
        _migrate(spark, loaded.settings, options)


def _migrating_session(options: MigrateOptions) -> SparkSession:
    from kafscale.spark import catalogs
    from kafscale.spark.session import SessionOptions, start_session

    _check_pyspark()
    name = catalogs.KAFKA_SOURCE_JAR.rpartition(":")[2]
    is_given = any(name in value for _, value in options.conf)  # by spark.jars or spark.jars.packages
    needed = [f"{catalogs.KAFKA_SOURCE_JAR}:{version('pyspark')}"] if options.bootstrap and not is_given else []
    return start_session(
        SessionOptions(
            master=options.master, app_name="kafscale pipeline migrate", conf=dict(options.conf), packages=needed
        )
    )


def _migrate(spark: SparkSession, settings: Settings, options: MigrateOptions) -> None:
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
