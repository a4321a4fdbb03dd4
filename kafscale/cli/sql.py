"""`kafscale sql`: statements of Spark SQL over topics, from the command line, a file, or a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.connecting import take
from kafscale.cli.output import fit, say, show_cells
from kafscale.cli.sql_options import (
    SparkOptions,
    option,
    read_settings,
    scan_limit,
    source_options,
    spark_options,
    spark_session,
)
from kafscale.cli.sql_serve import serve_command
from kafscale.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kafscale.spark.sql.engine import Engine

FORMATS = ("table", "csv", "json", "parquet")
MAX_ROWS_DEFAULT = 1000


@attrs.frozen(kw_only=True)
class OutputOptions:
    """Where rows go, and how."""

    format: str
    output: Path | None
    max_rows: int

    def check(self) -> None:
        """Raises ConfigError."""
        if self.format == "parquet" and self.output is None:
            raise ConfigError("--format: 'parquet' is for files; allowed: with --output DIRECTORY")


class StatementGroup(click.Group):
    """What does not begin with the name of a subcommand is the statement of `query`, or its options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click."""
        return super().parse_args(ctx, args if args[:1] and args[0] in self.commands else ["query", *args])


@click.group("sql", cls=StatementGroup)
def command() -> None:
    """Query topics with Spark SQL, from the bucket alone."""


@command.command("query")
@click.argument("statement", required=False)
@option("--format", type=click.Choice(FORMATS), default="table", shown="table", help="How rows are written.")
@option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Where rows are written: a file, or for parquet a directory, which must not be there.",
)
@option(
    "--max-rows",
    type=click.IntRange(1),
    default=MAX_ROWS_DEFAULT,
    shown=str(MAX_ROWS_DEFAULT),
    help="How many rows a table has at most; other formats have all.",
)
@spark_options
def query_command(statement: str | None, config_file: str | None, **options: Any) -> None:
    """Query topics with Spark SQL, from the bucket alone: each topic is a table.

    STATEMENT may be several, with semicolons between. Without it, statements are read from standard input, which on a
    terminal is a shell with history. `kafscale sql serve` answers other programs, over JDBC.
    """
    output, spark = take(options, OutputOptions), take(options, SparkOptions)
    output.check()
    source = source_options(read_settings(options, config_file), spark)
    with _opened(output) as file, _engine(spark, source) as engine:
        results = Results(output, file)
        if statement is None and sys.stdin.isatty():
            _run_shell(engine, results)
        else:
            _run_all(engine, sys.stdin.read() if statement is None else statement, results)


command.add_command(serve_command)


@contextmanager
def _engine(options: SparkOptions, source: dict[str, str]) -> Iterator[Engine]:
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.topics import PUSHDOWN, Topics

    with spark_session(options, app_name="kafscale sql", **{PUSHDOWN: "true"}) as session:
        topics = Topics(spark=session, options=source, max_scan_bytes=scan_limit(options))
        yield Engine(topics=topics, catalogs=[each.name for each in options.catalogs])


def _run_shell(engine: Engine, results: Results) -> None:
    from kafscale.spark.sql.interrupts import run_interruptibly
    from kafscale.spark.sql.shell import Shell, history, history_path

    cancel = engine.topics.spark.sparkContext.cancelAllJobs

    def execute(statement: str) -> None:
        run_interruptibly(lambda: results.show(engine.frame(statement)), cancel)

    with history(history_path()):
        Shell(read=input, write=say, execute=execute).run()


def _run_all(engine: Engine, text: str, results: Results) -> None:
    from kafscale.spark.sql.tokens import split_statements

    statements, rest = split_statements(text + "\n;")
    for each in [*statements, *([rest] if rest.strip() else [])]:
        results.show(engine.frame(each))


def _opened(options: OutputOptions) -> AbstractContextManager[IO[str]]:
    """Open what text goes to. Raises ConfigError."""
    if options.output is None or options.format == "parquet":
        return nullcontext(sys.stdout)
    try:
        return options.output.open("w", encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"--output: '{options.output}' can't be written ({exc.strerror}); allowed: a file") from exc


@attrs.frozen
class Results:
    """Runs queries and writes their rows, one behind the other."""

    options: OutputOptions
    file: IO[str]

    def show(self, frame: DataFrame) -> None:
        """A command has no rows. Raises QueryError."""
        from kafscale.spark.sql.failures import spark_errors
        from kafscale.spark.sql.formats import csv_lines, json_lines, write_parquet

        if not frame.columns:
            return
        with spark_errors():
            if self.options.format == "parquet":
                write_parquet(frame, str(self.options.output))
            elif self.options.format == "table":
                self._show_table(frame)
            else:
                lines = csv_lines(frame) if self.options.format == "csv" else json_lines(frame)
                self.file.writelines(fit(lines, self.file))
        self.file.flush()

    def _show_table(self, frame: DataFrame) -> None:
        from kafscale.spark.sql.formats import first_cells

        cells = first_cells(frame, self.options.max_rows)
        if cells.columns == ["plan"]:
            plan = (row[0] or "" for row in cells.rows)  # of EXPLAIN: lines to be read as they are
            self.file.writelines(fit(plan, self.file))
            return
        shown = [["NULL" if cell is None else cell for cell in row] for row in cells.rows]
        show_cells(cells.columns, shown, file=self.file)
        if cells.has_more:
            click.echo(f"kafscale: these are the first {self.options.max_rows} rows; --max-rows shows more", err=True)
