"""Output of commands: a table on a terminal, records on a narrow one, plain columns in a pipe, JSON for programs.

Rows are tuples, or instances of an attrs class; the columns are also the keys of the JSON objects. A terminal gets
control characters, such as those in a name, as escapes, and a bar on stderr for long work. A failed write raises
OutputLost, which names the file: an OSError could also be of a file that the command reads. `kafscale --help` imports
this module, so it imports nothing large.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import click

from kafscale.errors import KafScaleError
from kafscale.escaping import escaped, escaped_json, escaped_lines
from kafscale.process_variables import PROGRESS_VARIABLE

if TYPE_CHECKING:
    import attrs
    from rich.table import Table

    Columns = Sequence[str] | type[attrs.AttrsInstance]


def show(columns: Columns, rows: Sequence[Any], *, as_json: bool = False) -> None:
    """Print rows of these columns, or of one class, as a table, or as a JSON array."""
    if as_json:
        show_json(_documents(columns, rows))
        return
    names = _names(columns)
    titles = [name.replace("_", " ") for name in names]
    cells = [[_cell(document[name]) for name in names] for document in _documents(columns, rows)]
    show_cells(titles if sys.stdout.isatty() else [title.upper() for title in titles], cells)


def _names(columns: Columns) -> Sequence[str]:
    import attrs

    return [field.name for field in attrs.fields(columns)] if isinstance(columns, type) else columns


def _documents(columns: Columns, rows: Sequence[Any]) -> list[dict[str, Any]]:
    import attrs

    return [
        dict(zip(_names(columns), row, strict=True)) if isinstance(row, tuple) else attrs.asdict(row) for row in rows
    ]


def show_described(
    facts: Mapping[str, Any], tables: Mapping[str, tuple[Columns, Sequence[Any]]], *, as_json: bool, heading: str = ""
) -> None:
    """Print facts and tables as one JSON object; else `heading` and the tables that have rows."""
    if as_json:
        show_json({**facts, **{name: _documents(*table) for name, table in tables.items()}})
        return
    if heading:
        say(heading)
    for index, (columns, rows) in enumerate(tables.values()):
        if rows:
            if heading or index:
                click.echo()
            show(columns, rows)


def show_cells(titles: Sequence[str], cells: Sequence[Sequence[str]], file: IO[str] | None = None) -> None:
    """Print a table on a terminal, and plain columns elsewhere; to `file` instead of stdout."""
    if (file or sys.stdout).isatty():
        _show_table(titles, cells)
    else:
        _show_columns(titles, cells, file)


def show_json(value: Any) -> None:
    document = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(escaped_json(document) if sys.stdout.isatty() else document)


def say(text: str, *, err: bool = False) -> None:
    """Print a line that may contain foreign text, such as a broker's message."""
    click.echo(escaped_lines(text) if (sys.stderr if err else sys.stdout).isatty() else text, err=err)


def fit(lines: Iterable[str], file: IO[str]) -> Iterator[str]:
    """Return lines for a file, with escapes if it is a terminal."""
    return map(escaped_lines, lines) if file.isatty() else iter(lines)


def iso_time(timestamp_ms: int) -> str:
    """Format as ISO 8601; as a number if the year doesn't have four digits."""
    if not 0 <= timestamp_ms < 253_402_300_800_000:
        return str(timestamp_ms)
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _show_table(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console

    console = Console()
    lines = [[escaped(cell) for cell in line] for line in (titles, *cells)]
    widths = _fitting_widths(lines, console.width - 3 * len(titles) + 1)
    if widths is None:
        _show_records(lines)
    else:
        console.print(_table(lines, widths))


def _table(lines: Sequence[Sequence[str]], widths: Sequence[int]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    titles, *cells = lines
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, title in enumerate(titles):
        numeric = bool(cells) and all(row[index].lstrip("-").isdigit() or row[index] == "-" for row in cells)
        table.add_column(title, justify="right" if numeric else "left", width=widths[index])
    for row in cells:
        table.add_row(*map(Text, row))  # Text: a topic named [bold] is not markup
    return table


def _fitting_widths(lines: Sequence[Sequence[str]], available: int) -> list[int] | None:
    from rich.cells import cell_len

    columns = list(zip(*lines, strict=True))
    least = [max(max(map(cell_len, cell.split()), default=0) for cell in column) for column in columns]
    widths = [max(map(cell_len, column)) for column in columns]
    if sum(least) > available:
        return None
    while sum(widths) > available:
        widest = max(range(len(widths)), key=lambda index: (widths[index] > least[index], widths[index]))
        widths[widest] -= 1
    return widths


def _show_records(lines: Sequence[Sequence[str]]) -> None:
    titles, *rows = lines
    if not rows:
        click.echo("  ".join(titles))
    width = max(map(len, titles))
    for index, row in enumerate(rows):
        if index:
            click.echo()
        for title, cell in zip(titles, row, strict=True):
            click.echo(f"{title:<{width}}  {cell}")


def _show_columns(titles: Sequence[str], cells: Sequence[Sequence[str]], file: IO[str] | None) -> None:
    lines = [titles, *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(titles))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), file=file)


class OutputLost(KafScaleError):
    """Raised when output can't be written; the message names the file and the reason."""


class ReaderGone(OutputLost):
    """Raised when the reader of a pipe has closed it, as `head` does."""


class Output(io.FileIO):
    """A file whose `write` raises OutputLost instead of OSError."""

    def __init__(self, file: int | Path, shown: str) -> None:
        super().__init__(file, "w", closefd=not isinstance(file, int))
        self._shown = shown

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError as exc:
            raise ReaderGone(f"the reader of {self._shown} has gone") from exc
        except OSError as exc:
            raise OutputLost(f"can't write to {self._shown}: {exc.strerror or exc}") from exc


def open_output(path: Path) -> IO[str]:
    return io.TextIOWrapper(io.BufferedWriter(Output(path, f"'{path}'")), encoding="utf-8")


def open_standard_files() -> None:
    """Make stdout an `Output`, and open /dev/null for standard files that are closed.

    Otherwise the next file to be opened gets the number of a closed one, and with it everything that is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    sys.stdout = _as_output(sys.stdout)


def _as_output(stdout: TextIO) -> TextIO:
    assert isinstance(stdout, io.TextIOWrapper)
    raw = Output(stdout.fileno(), "stdout")
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )


def discard_stdout() -> None:
    """Discard buffered and further output, so that the interpreter doesn't report an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


READING_MIN_BYTES = 16 << 20  # takes some tenths of a second


@contextmanager
def counting(what: str, *, is_wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a count without a known end. Yields a function that takes the current count."""
    if not is_wanted:
        yield lambda _: None
        return
    with _bar("[progress.description]{task.description} {task.completed:,}", what, None) as report:
        yield report


@contextmanager
def measuring(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show how many bytes of a known total are done. Yields a function that takes that number."""
    text = (
        f"[progress.description]{{task.description}} {{task.percentage:>3.0f}} % of {total_bytes / (1 << 20):,.0f} MiB"
    )
    with _bar(text, what, total_bytes) as report:
        yield report


@contextmanager
def reading(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress toward a total that grows. Yields a function that takes the bytes read and their total."""
    text = "[progress.description]{task.description}"
    with ExitStack() as stack:
        bar: list[Callable[[int, int], None]] = []

        def report(done_bytes: int, total_bytes: int) -> None:
            if not bar and total_bytes >= READING_MIN_BYTES:
                bar.append(stack.enter_context(_bar(text, what, total_bytes, has_bytes=True)))
            for show in bar:
                show(done_bytes, total_bytes)

        try:
            yield report
        finally:
            bar[:] = [lambda _done, _total: None]  # for later reports


@contextmanager
def _bar(text: str, what: str, total: int | None, *, has_bytes: bool = False) -> Iterator[Callable[..., None]]:
    """Yield a function that takes the amount done, and the total if it has changed."""
    if PROGRESS_VARIABLE in os.environ:
        yield partial(_print_progress, what, total)
        return
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    amount = [DownloadColumn(binary_units=True)] if has_bytes else []
    columns = (SpinnerColumn(), TextColumn(text), BarColumn(), *amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done, now=total: progress.update(task, completed=done, total=now)


def _print_progress(step: str, total: int | None, done: int, now_total: int | None = None) -> None:
    """Print the progress for the console, at most every PROGRESS_SECONDS."""
    global _printed_at
    now = time.monotonic()
    if now >= _printed_at + PROGRESS_SECONDS:
        _printed_at = now
        progress = {"step": step, "done": done, "total": total if now_total is None else now_total}
        print(json.dumps({"progress": progress}), file=sys.stderr, flush=True)


PROGRESS_SECONDS = 0.5
_printed_at = 0.0
LOOK_SECONDS = 0.5


async def wait_until_none_is_left(
    look: Callable[[], Awaitable[int]], timeout_seconds: float, *, otherwise: Callable[[int], str]
) -> None:
    """Call `look` until it returns 0. Fail with `otherwise` of its last number after the timeout."""
    import trio

    left_count = first_count = await look()
    text = "[progress.description]{task.description} {task.remaining:,.0f}"
    with trio.move_on_after(timeout_seconds), _bar(text, "partitions left:", first_count) as report:
        while left_count:
            report(first_count - left_count)
            await trio.sleep(LOOK_SECONDS)
            left_count = await look()
    if left_count:
        raise click.ClickException(f"{otherwise(left_count)}, after {timeout_seconds:g} s")
