"""`kafscale sql`: statements of Spark SQL over topics, from the command line, a file, or a terminal."""

from __future__ import annotations

import difflib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

from kafscale.cli.decoding import VALUE_FORMATS
from kafscale.cli.options import (
    ADDRESS,
    SECONDS,
    SPARK_SETTING,
    Function,
    Parsed,
    number,
    take,
    value_or_file,
    with_settings,
)
from kafscale.cli.output import fit, open_output, reading, say, show_cells
from kafscale.config import BUCKET_OPTIONS, Address, Loaded, Settings, parse_size
from kafscale.errors import ConfigError, KafScaleError
from kafscale.extras import missing_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafscale.spark.catalogs import CatalogOptions
    from kafscale.spark.duckdb.engine import Engines, QueryAnswer
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.server import ServedTopics

PREFIX = "KAFSCALE_SQL_"
MASTER_DEFAULT = "local[*]"
MAX_SCAN_DEFAULT = "10GiB"  # as KAFSQL has it


@attrs.frozen(kw_only=True)
class SparkOptions:
    master: str
    conf: Sequence[tuple[str, str]]
    catalogs: Sequence[CatalogOptions]
    max_scan_bytes: int
    value_format: str | None
    registry: str | None
    source_options: Sequence[tuple[str, str]]


def option(flag: str, *names: str, help: str, **details: Any) -> Callable[[Function], Function]:
    """Declare an option that is also an environment variable, named in its help."""
    variable = PREFIX + flag.removeprefix("--").upper().replace("-", "_")
    note = f"default: {details['default']}; {variable}" if "default" in details else variable
    return click.option(flag, *names, envvar=variable, help=f"{help}  [{note}]", **details)


def parse_catalog(text: str) -> CatalogOptions:
    """Read KEY=VALUE,KEY=VALUE by the names of `CatalogOptions`. Raises ValueError."""
    from kafscale.spark.catalogs import TYPES, CatalogOptions

    fields = {field.name for field in attrs.fields(CatalogOptions)} - {"properties"}
    given: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        name = key.strip().replace("-", "_")
        if name not in fields or not value:
            allowed = ", ".join(sorted(name.replace("_", "-") for name in fields))
            raise ValueError(  # doesn't repeat the value, which may be a secret
                f"'{key}' is not a setting of a catalog; allowed: KEY=VALUE, separated by commas, with the keys "
                f"{allowed}"
            )
        given[name] = value.strip().lower() == "true" if name == "s3_path_style" else value_or_file(value.strip())
    if "type" not in given:
        raise ValueError(f"'{text}' has no type; allowed: type={', type='.join(TYPES)}")
    return CatalogOptions(**given)


_OPTIONS = (
    option("--master", default=MASTER_DEFAULT, metavar="URL", help="Spark's master."),
    option(
        "--catalog",
        "catalogs",
        type=Parsed("KEY=VALUE,…", parse_catalog),
        multiple=True,
        help="A catalog of Iceberg tables, as name=lake,type=hadoop,warehouse=/data/lake; repeatable. "
        "password=@PATH and the like read a file.",
    ),
    option(
        "--conf", type=SPARK_SETTING, multiple=True, help="A setting of Spark; NAME=@PATH reads a file; repeatable."
    ),
    option(
        "--max-scan-bytes",
        type=Parsed("SIZE", parse_size),
        default=MAX_SCAN_DEFAULT,
        help="Refuse a read of a topic that needs more bytes of the bucket; 0 for no limit.",
    ),
    option(
        "--value-format",
        type=click.Choice(VALUE_FORMATS),
        help="Format of values that begin with a schema id of --registry. Adds a column decoded, with value and error.",
    ),
    option("--registry", metavar="URL", help="Schema registry; several separated by commas."),
    option(
        "--option",
        "source_options",
        type=SPARK_SETTING,
        multiple=True,
        help="Option of Spark's reader for all topics, such as includeHeaders=true; NAME=@PATH reads a file; "
        "repeatable.",
    ),
)


def spark_options(function: Function) -> Function:
    """Give a command `--config`, and the options of the store and of `SparkOptions`."""
    for add_option in reversed(_OPTIONS):
        function = add_option(function)
    return with_settings(only=("data_dir", *BUCKET_OPTIONS))(function)


def source_options(settings: Settings, options: SparkOptions) -> dict[str, str]:
    if (options.value_format is None) != (options.registry is None):
        raise ConfigError("--value-format and --registry belong together; give both or neither")
    chosen = {**store_options(settings), "valueFormat": options.value_format, "schemaRegistryUrl": options.registry}
    return {**{name: value for name, value in chosen.items() if value is not None}, **dict(options.source_options)}


def store_options(settings: Settings) -> dict[str, str]:
    store = settings.store
    if store.scheme == "file" and store.path is not None:
        store = attrs.evolve(store, path=store.path.absolute())
    chosen = {
        "store": str(store),
        "namespace": settings.namespace,
        "s3Endpoint": settings.s3_endpoint,
        "s3Region": settings.s3_region,
        "s3PathStyle": "true" if settings.s3_path_style else None,
        "s3CaFile": None if settings.s3_ca_file is None else str(settings.s3_ca_file.absolute()),
    }
    return {name: value for name, value in chosen.items() if value is not None}


@contextmanager
def spark_session(options: SparkOptions, *, app_name: str, **conf: str) -> Iterator[SparkSession]:
    """Give a session that stops at the end. The user's settings win over `conf`. Raises StartupError."""
    from kafscale.spark.session import SessionOptions, start_session
    from kafscale.spark.sql.failures import keep_pyspark_quiet

    session = start_session(
        SessionOptions(
            master=options.master, app_name=app_name, conf={**conf, **dict(options.conf)}, catalogs=options.catalogs
        )
    )
    keep_pyspark_quiet()
    try:
        yield session
    finally:
        session.stop()


def scan_limit(options: SparkOptions) -> int | None:
    """Return the most bytes that a scan may read; None for no limit."""
    return options.max_scan_bytes or None


LISTEN_DEFAULT = "127.0.0.1:10000"  # Hive's port
REFRESH_DEFAULT = "30s"


@click.command("serve")
@option(
    "--listen", type=ADDRESS, default=LISTEN_DEFAULT, help="Address for clients of JDBC and ODBC. There is no password."
)
@option(
    "--refresh-interval",
    "refresh_seconds",
    type=SECONDS,
    default=REFRESH_DEFAULT,
    help="How often to look for new and deleted topics; records are seen at once.",
)
@spark_options
def serve_command(listen: Address, refresh_seconds: float, loaded: Loaded, **options: Any) -> None:
    """Answer SQL over topics to programs that speak JDBC or ODBC, by Spark's own Thrift server.

    It is not a sandbox: every client can read and write what this process can, and run code in it.
    """
    from kafscale.spark.sql.server import ServedTopics, settings, warehouse
    from kafscale.spark.sql.topics import Topics

    spark = take(options, SparkOptions)
    source = source_options(loaded.settings, spark)
    with (
        warehouse() as path,
        spark_session(spark, app_name="kafscale sql serve", **settings(listen, str(path))) as session,
    ):
        topics = Topics(spark=session, options=source, max_scan_bytes=scan_limit(spark))
        served = ServedTopics(topics=topics, warehouse=path)
        served.start()
        click.echo(f"kafscale sql is ready: jdbc:hive2://{listen}")
        _refresh_until_stopped(served, refresh_seconds)


def _refresh_until_stopped(served: ServedTopics, interval_seconds: float) -> None:
    stopped = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: stopped.set())
    while not stopped.wait(interval_seconds):
        try:
            served.refresh()
        except KafScaleError as exc:
            click.echo(f"kafscale: can't list the topics, keeping the old list: {exc}", err=True)


FORMATS = ("table", "csv", "json", "parquet")
ENGINES = ("auto", "spark", "duckdb")
MAX_ROWS_DEFAULT = 1000
DUCKDB_MAX_DEFAULT = "256MiB"  # read in about the time in which Spark starts


class StatementGroup(click.Group):
    """A group whose arguments belong to `query`, unless they begin with the name of a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands:
            nearest = difflib.get_close_matches(args[0], self.commands, n=1, cutoff=0.75)
            if nearest:
                raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{nearest[0]}'?", ctx)
        return super().parse_args(ctx, args if args[:1] and args[0] in self.commands else ["query", *args])


@click.group("sql", cls=StatementGroup)
def command() -> None:
    """Query topics with Spark SQL."""


@command.command("query")
@click.argument("statement", required=False)
@option("--format", type=click.Choice(FORMATS), default="table", help="Format of rows.")
@option(
    "--output", type=click.Path(path_type=Path), metavar="PATH", help="File for rows, or for parquet a new directory."
)
@option(
    "--max-rows", type=number(1), default=MAX_ROWS_DEFAULT, help="Most rows of a table; other formats have all rows."
)
@option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    help="Spark, or an embedded DuckDB, which starts at once; auto uses DuckDB for statements that read little and "
    "have the same answer in both, and says which it uses.",
)
@option(
    "--duckdb-max-bytes",
    type=Parsed("SIZE", parse_size),
    default=DUCKDB_MAX_DEFAULT,
    help="With --engine auto, statements that read more of the bucket than this go to Spark.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each row, like --format json.")
@spark_options
def query_command(
    statement: str | None,
    loaded: Loaded,
    *,
    format: str,
    output: Path | None,
    max_rows: int,
    engine: str,
    duckdb_max_bytes: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Query topics with Spark SQL, from the bucket alone: each topic is a table.

    STATEMENT may be several, separated by semicolons. Without it, statements come from standard input, or on a
    terminal from a shell with history. `kafscale sql serve` answers other programs over JDBC.
    """
    spark = take(options, SparkOptions)
    if as_json:
        given_by = click.get_current_context().get_parameter_source("format")
        if format != "json" and given_by is ParameterSource.COMMANDLINE:
            raise ConfigError(f"--format: '{format}' contradicts --json; give one of them")
        format = "json"
    if format == "parquet" and output is None:
        raise ConfigError("--format: 'parquet' needs --output DIRECTORY")
    if engine == "duckdb" and (why := _spark_alone(spark)):
        raise ConfigError(f"--engine: 'duckdb', though {why}; allowed: without it, or --engine auto or spark")
    source = source_options(loaded.settings, spark)
    with _opened(output, format) as file, _engines(engine, duckdb_max_bytes, spark, source) as engines:
        results = Results(engines=engines, format=format, output=output, max_rows=max_rows, file=file)
        if statement is None and sys.stdin.isatty():
            _run_shell(results)
        else:
            _run_all(_read_statements() if statement is None else statement, results)


command.add_command(serve_command)


def _spark_alone(options: SparkOptions) -> str | None:
    if options.conf:
        return "--conf is for Spark only"
    return None if options.master == MASTER_DEFAULT else "--master is for Spark only"


@contextmanager
def _engines(engine: str, max_bytes: int, options: SparkOptions, source: dict[str, str]) -> Iterator[Engines]:
    try:
        from kafscale.spark.duckdb.engine import EngineName, Engines
        from kafscale.spark.sql.topics import BucketTopics
    except ImportError as exc:
        raise missing_extra("sql", exc) from exc
    with ExitStack() as stack:
        engines = Engines(
            name=EngineName(engine),
            topics=BucketTopics(options=source, max_scan_bytes=scan_limit(options)),
            max_bytes=max_bytes,
            start_spark=lambda: stack.enter_context(_spark_engine(options, source)),
            say=lambda line: say(f"kafscale: {line}", err=True),
            spark_alone=_spark_alone(options),
            is_extended=any(name == "spark.sql.extensions" for name, _ in options.conf),
        )
        stack.callback(engines.close)
        yield engines


@contextmanager
def _spark_engine(options: SparkOptions, source: dict[str, str]) -> Iterator[Engine]:
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.topics import PUSHDOWN, Topics

    with spark_session(options, app_name="kafscale sql", **{PUSHDOWN: "true"}) as session:
        topics = Topics(spark=session, options=source, max_scan_bytes=scan_limit(options))
        yield Engine(topics=topics, catalogs=[catalog.name for catalog in options.catalogs])


def _run_shell(results: Results) -> None:
    from kafscale.spark.sql.failures import interruptible, run_interruptibly
    from kafscale.spark.sql.shell import Shell, history, history_path

    def execute(statement: str) -> None:
        run_interruptibly(lambda: results.answer(statement), results.engines.cancel)

    with history(history_path()), interruptible():
        Shell(read=input, write=say, execute=execute).run()


def _read_statements() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as exc:
        raise ConfigError(f"standard input is not UTF-8: {exc}") from exc


def _run_all(text: str, results: Results) -> None:
    from kafscale.spark.sql.tokens import split_statements

    statements, rest = split_statements(text + "\n;")
    for statement in [*statements, *([rest] if rest.strip() else [])]:
        results.answer(statement)


def _opened(output: Path | None, format: str) -> AbstractContextManager[IO[str]]:
    if output is None or format == "parquet":
        return nullcontext(sys.stdout)
    try:
        return open_output(output)
    except OSError as exc:
        raise ConfigError(f"--output: '{output}' can't be written: {exc.strerror}") from exc


@attrs.frozen(kw_only=True)
class Results:
    engines: Engines
    format: str
    output: Path | None
    max_rows: int
    file: IO[str]

    def answer(self, statement: str) -> None:
        """Raises ConfigError, QueryError, StartupError, StoreError."""
        from kafscale.spark.duckdb.scans import ScanReading

        with ExitStack() as bar:
            report = bar.enter_context(reading("reading")) if sys.stderr.isatty() else None
            answer = self.engines.answer(statement, ScanReading(report=report))
            try:
                self._show(answer, bar)
            finally:
                answer.close()

    def _show(self, answer: QueryAnswer, bar: ExitStack) -> None:
        """Show the rows, if the statement has any, without a bar beside them."""
        if not answer.columns:
            return
        if self.format == "parquet":
            answer.write_parquet(str(self.output))
        elif self.format == "table":
            self._show_table(answer, bar)
        else:
            lines = answer.csv_lines() if self.format == "csv" else answer.json_lines()
            self._end(bar)
            self.file.writelines(fit(lines, self.file))
        self.file.flush()

    def _end(self, bar: ExitStack) -> None:
        if self.file.isatty():
            bar.close()

    def _show_table(self, answer: QueryAnswer, bar: ExitStack) -> None:
        cells = answer.first_cells(self.max_rows)
        self._end(bar)
        if list(cells.columns) == ["plan"]:
            plan = (row[0] or "" for row in cells.rows)  # of EXPLAIN: lines to be read as they are
            self.file.writelines(fit(plan, self.file))
            return
        shown = [["NULL" if cell is None else cell for cell in row] for row in cells.rows]
        show_cells(cells.columns, shown, file=self.file)
        if cells.has_more:
            click.echo(f"kafscale: showing the first {self.max_rows} rows; --max-rows shows more", err=True)
