"""`kafscale pipeline run|validate|status|prove|maintain|reset|migrate`: topics kept in Iceberg tables."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from kafscale.cli.migrate import command as migrate_command
from kafscale.cli.options import SPARK_SETTING, ListOption, json_option
from kafscale.cli.output import iso_time, say, show, show_json
from kafscale.config import Address
from kafscale.errors import ConfigError, KafScaleError, StartupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafscale.spark.bucket.position import Position
    from kafscale.spark.pipeline.batch import Outcome
    from kafscale.spark.pipeline.config import Pipeline
    from kafscale.spark.pipeline.directory_tables import DirectoryTables
    from kafscale.spark.pipeline.maintenance import Care
    from kafscale.spark.pipeline.reset import Reset
    from kafscale.spark.pipeline.runner import Lag, Observer

MASTER_DEFAULT = "local[*, 4]"  # a task that fails is tried again, as on a cluster
Function = Callable[..., Any]
T = TypeVar("T")
Settings = tuple[tuple[str, str], ...]


class PipelineFailed(KafScaleError):
    """Mappings have failed; each was told when it did."""


@click.group("pipeline")
def command() -> None:
    """Keep Iceberg tables up to date with topics, each record exactly once, without touching a broker."""


command.add_command(migrate_command)


def spark_options(function: Function) -> Function:
    """Add the options `--master` and `--conf` to a command."""
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
@click.option("--once", is_flag=True, help="End when what is in the bucket now is in the tables.")
@spark_options
def run_command(file: Path, *, once: bool, master: str, conf: Settings) -> None:
    """Run the pipeline that FILE describes until it is told to end.

    A mapping that fails is told on stderr, and the others go on; the exit code is 1 then.
    """
    pipeline = _read(file)
    with ExitStack() as stack:
        spark = stack.enter_context(_session(pipeline, master, conf))
        from kafscale.spark.pipeline.runner import PipelineRun

        observer = stack.enter_context(_observing(pipeline))
        run = PipelineRun(spark=spark, pipeline=pipeline, observer=observer)
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
def validate_command(file: Path, *, offline: bool, as_json: bool, master: str, conf: Settings) -> None:
    """Check FILE, and that topics, schemas and tables which it names are there and go together."""
    pipeline = _read(file)
    from kafscale.spark.pipeline.document import Check

    if offline:
        if as_json:
            found = "is a mapping; nothing was connected to"
            show(Check, [Check(mapping=each.id, what="file", found=found) for each in pipeline.mappings], as_json=True)
        else:
            click.echo(f"{file} is a pipeline, of {len(pipeline.mappings)} mapping(s); nothing was connected to")
        return
    from kafscale.spark.pipeline.inspection import SparkTables, check

    checks = _without_spark(pipeline, conf, lambda tables: list(check(tables, pipeline)))
    if checks is None:
        with _session(pipeline, master, conf) as spark:
            checks = list(check(SparkTables(spark, pipeline), pipeline))
    show(Check, checks, as_json=as_json)
    wrong = [each for each in checks if not each.ok]
    if wrong:
        raise PipelineFailed(f"{wrong[0].mapping}: {wrong[0].what}: {wrong[0].found}")


@command.command("status")
@file_argument
@json_option
@spark_options
def status_command(file: Path, *, as_json: bool, master: str, conf: Settings) -> None:
    """Show how far each mapping of FILE is: offsets in its table, lag, last snapshot, dead letters."""
    pipeline = _read(file)
    from kafscale.spark.pipeline.inspection import SparkTables, status

    found = _without_spark(pipeline, conf, lambda tables: status(tables, pipeline))
    if found is None:
        with _session(pipeline, master, conf) as spark:
            found = status(SparkTables(spark, pipeline), pipeline)
    if as_json:
        show_json([attrs.asdict(each) for each in found])
        return
    rows = [
        StatusRow(
            mapping=each.mapping,
            table=each.table,
            batch=each.batch_id,
            offsets=[
                f"{topic}/{partition}:{offset}"
                for topic, ends in each.offsets.items()
                for partition, offset in ends.items()
            ],
            lag=each.lag,
            lag_bytes=each.lag_bytes,
            lag_seconds=round(each.lag_seconds),
            committed=None if each.committed_ms is None else iso_time(each.committed_ms),
            snapshot=each.snapshot_id,
            dead_letters=each.dead_letters,
        )
        for each in found
    ]
    show(StatusRow, rows)


@attrs.frozen(kw_only=True)
class StatusRow:
    """One mapping, as it is shown."""

    mapping: str
    table: str
    batch: int | None
    offsets: list[str]
    lag: int
    lag_bytes: int
    lag_seconds: int
    committed: str | None
    snapshot: int | None
    dead_letters: int


@command.command("prove")
@file_argument
@click.option("--mapping", "mappings", cls=ListOption, help="Only the mapping of this name; repeatable.")
@json_option
@spark_options
def prove_command(file: Path, *, mappings: tuple[str, ...], as_json: bool, master: str, conf: Settings) -> None:
    """Derive the tables of FILE again from the bucket, and compare them row by row.

    Nothing is changed. The exit code is 1 if a table is not what follows from the bucket.
    """
    pipeline = _read(file)
    unknown = set(mappings) - {each.id for each in pipeline.mappings}
    if unknown:
        raise ConfigError(f"{file} has no mapping '{min(unknown)}'")
    with _session(pipeline, master, conf) as spark:
        from kafscale.spark.pipeline.proof import Proof, prove

        proofs = list(prove(spark, pipeline, mappings))
    show(Proof, proofs, as_json=as_json)
    wrong = [each for each in proofs if not each.is_proven]
    if wrong:
        raise PipelineFailed(f"{wrong[0].mapping}: {wrong[0].found}")


@command.command("maintain")
@file_argument
@json_option
@spark_options
def maintain_command(file: Path, *, as_json: bool, master: str, conf: Settings) -> None:
    """Compact the tables of FILE, expire their old snapshots and delete files that none of them knows."""
    pipeline = _read(file)
    with _session(pipeline, master, conf) as spark:
        from kafscale.spark.pipeline.maintenance import Care, maintain

        done = list(maintain(spark, pipeline))
    show(Care, done, as_json=as_json)
    problems = [f"{each.table}: {each.problem}" for each in done if each.problem]
    if problems:
        raise PipelineFailed("; ".join(problems))


@command.command("reset")
@file_argument
@click.option("--topic", "topics", cls=ListOption, required=True, help="Which topic; repeatable.")
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Begin at the first record also where it is the topic of before: what was read comes once more.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@json_option
@spark_options
def reset_command(
    file: Path, *, topics: tuple[str, ...], from_beginning: bool, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Let the mappings of FILE go on with what there is of a topic now, and show where that is.

    A topic that was deleted and created again is read from its beginning; of one whose records were deleted before
    they were read, those that are left are. All else goes on where the tables are, and rows in them stay.
    """
    pipeline = _read(file)
    with _session(pipeline, options["master"], options["conf"]) as spark:
        from kafscale.spark.pipeline.reset import carry_out, locked, plan

        with locked(spark, pipeline):
            resets = plan(spark, pipeline, topics, from_beginning=from_beginning)
            if not dry_run:
                carry_out(spark, pipeline, resets)
    show(ResetRow, [ResetRow.of(each, dry_run=dry_run) for each in resets], as_json=as_json)


@attrs.frozen(kw_only=True)
class ResetRow:
    """One topic of one mapping, as it is shown."""

    mapping: str
    topic: str
    topic_id: str | None
    offsets: list[str]
    new_topic_id: str | None
    new_offsets: list[str]
    outcome: str

    @classmethod
    def of(cls, reset: Reset, *, dry_run: bool) -> ResetRow:
        """Return the row of what was done, or would be."""
        return cls(
            mapping=reset.mapping.id,
            topic=reset.topic,
            topic_id=reset.before.topic_ids.get(reset.topic),
            offsets=_offsets_of(reset.before, reset.topic),
            new_topic_id=reset.after.topic_ids.get(reset.topic),
            new_offsets=_offsets_of(reset.after, reset.topic),
            outcome="stays as it is" if not reset.changes else "would be reset" if dry_run else "reset",
        )


def _offsets_of(position: Position, topic: str) -> list[str]:
    """Return a topic's offsets in the form in which `status` shows them, but without the topic's name."""
    return [f"{index}:{offset}" for (name, index), offset in sorted(position.offsets.items()) if name == topic]


@attrs.frozen
class Pace:
    """How far a mapping was behind, and when."""

    lag: int
    at_seconds: float


@attrs.frozen
class Terminal:
    """Says on stderr what a pipeline does. `clock` is in seconds."""

    clock: Callable[[], float] = time.monotonic
    _paces: dict[str, Pace] = attrs.field(factory=dict, init=False)

    def batch_done(self, mapping: str, outcome: Outcome, row_count: int, lag: int) -> None:
        """Print one line for each batch."""
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
        """Say how long the rest will take, if it goes on as since the last batch."""
        before, self._paces[mapping] = self._paces.get(mapping), Pace(lag, self.clock())
        if before is None or not 0 < lag < before.lag:
            return ""
        seconds = lag * (self.clock() - before.at_seconds) / (before.lag - lag)
        return f", about {seconds:.0f} s left" if seconds < 120 else f", about {seconds / 60:.0f} min left"

    def lag_measured(self, mapping: str, lag: Lag) -> None:
        """Print nothing: it is for metrics."""

    def mapping_failed(self, mapping: str, error: Exception) -> None:
        """Print the error in one line."""
        click.echo(f"{mapping}: failed: {_one_line(error)}", err=True)

    def mapping_restarts(self, mapping: str, error: Exception, delay_seconds: float) -> None:
        """Print one line."""
        click.echo(f"{mapping}: starts again in {delay_seconds:.0f} s: {_one_line(error)}", err=True)

    def maintained(self, care: Care) -> None:
        """Print one line for each table."""
        if care.problem:
            click.echo(f"{care.table}: maintenance is left for the next time: {care.problem}", err=True)
            return
        click.echo(
            f"{care.table}: {care.compacted_files} files compacted, {care.expired_files} expired, "
            f"{care.orphan_files} orphans deleted",
            err=True,
        )


def _one_line(error: Exception) -> str:
    """The message of an error that was meant; of others the kind too, and of Java's stacks beginning and root."""
    if isinstance(error, KafScaleError):
        return " ".join(str(error).split())
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines[2:] if line.startswith("Caused by: ")]
    return f"{type(error).__name__}: {' '.join([*lines[:2], *causes[-1:]])}"


def _read(file: Path) -> Pipeline:
    try:
        from kafscale.spark.pipeline.document import read_pipeline
    except ImportError as exc:
        raise StartupError(f"this command needs {exc.name}: pip install 'kafscale[iceberg]'") from exc
    return read_pipeline(file)


def _without_spark(pipeline: Pipeline, conf: Settings, look: Callable[[DirectoryTables], T]) -> T | None:
    """Return what a look at the tables finds, if they can be looked at without Spark, which takes 20 s to start."""
    from kafscale.spark.pipeline.directory_tables import DirectoryTables, NeedsSpark

    tables = None if conf else DirectoryTables.of(pipeline)
    if tables is None:
        return None
    try:
        return look(tables)
    except NeedsSpark as exc:
        say(f"kafscale: Spark looks, because {exc}", err=True)
        return None


@contextmanager
def _session(pipeline: Pipeline, master: str, conf: Settings) -> Iterator[SparkSession]:
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
def _observing(pipeline: Pipeline) -> Iterator[Observer]:
    """The terminal, and Prometheus if the pipeline says where."""
    if pipeline.metrics is None:
        yield Terminal()
        return
    from kafscale.spark.pipeline.metrics import PipelineMetrics, serving

    metrics = PipelineMetrics()
    with serving(metrics, Address.parse(pipeline.metrics)) as address:
        click.echo(f"metrics at http://{address}/metrics", err=True)
        yield Observers((Terminal(), metrics))


@attrs.frozen
class Observers:
    """Tells several observers what happens."""

    each: tuple[Observer, ...]

    def batch_done(self, mapping: str, outcome: Outcome, row_count: int, lag: int) -> None:
        """See `Observer`."""
        for observer in self.each:
            observer.batch_done(mapping, outcome, row_count, lag)

    def lag_measured(self, mapping: str, lag: Lag) -> None:
        """See `Observer`."""
        for observer in self.each:
            observer.lag_measured(mapping, lag)

    def mapping_failed(self, mapping: str, error: Exception) -> None:
        """See `Observer`."""
        for observer in self.each:
            observer.mapping_failed(mapping, error)

    def mapping_restarts(self, mapping: str, error: Exception, delay_seconds: float) -> None:
        """See `Observer`."""
        for observer in self.each:
            observer.mapping_restarts(mapping, error, delay_seconds)

    def maintained(self, care: Care) -> None:
        """See `Observer`."""
        for observer in self.each:
            observer.maintained(care)
