"""How far a long command has come: a bar on a terminal's stderr, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager

import click

from kafscale.cli.options import Parsed
from kafscale.config import parse_duration
from kafscale.config.units import MIB

READING_MIN_BYTES = 16 * MIB  # are read in some tenths of a second


@contextmanager
def counting(what: str, *, is_wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a count whose end is not known, if it is wanted. The function that is given takes how many it is now."""
    if not is_wanted:
        yield lambda _: None
        return
    with _bar("[progress.description]{task.description} {task.completed:,}", what, None) as report:
        yield report


@contextmanager
def counting_down(what: str, total_count: int) -> Iterator[Callable[[int], None]]:
    """Show how many of a known number are left. The function that is given takes how many that is now."""
    with _bar("[progress.description]{task.description} {task.remaining:,.0f}", what, total_count) as report:
        yield lambda left_count: report(total_count - left_count)


@contextmanager
def measuring(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show how many bytes of a known total are done. The function that is given takes their number."""
    text = f"[progress.description]{{task.description}} {{task.percentage:>3.0f}} % of {total_bytes / MIB:,.0f} MiB"
    with _bar(text, what, total_bytes) as report:
        yield report


@contextmanager
def reading(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many bytes are read, where their total becomes known, and grows, while they are.

    The function that is given takes both. There is no bar before there is much to read.
    """
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
            bar[:] = [lambda _done, _total: None]  # for who reports later


@contextmanager
def _bar(text: str, what: str, total: int | None, *, has_bytes: bool = False) -> Iterator[Callable[..., None]]:
    """Show a bar. The function that is given takes how much is done, and how much there is if that has changed."""
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


LOOK_SECONDS = 0.5


def _seconds(text: str) -> float:
    return parse_duration(text) / 1_000_000


timeout_option = click.option(
    "--timeout",
    "timeout_seconds",
    type=Parsed("DURATION", _seconds),
    default="10m",
    help="Wait no longer than this.  [default: 10m]",
)


async def wait_until_none_is_left(
    look: Callable[[], Awaitable[int]], timeout_seconds: float, *, otherwise: Callable[[int], str]
) -> None:
    """Call `look` until it returns 0. If that takes too long, fail with what `otherwise` says of its last number."""
    import trio

    left_count = first_count = await look()
    with trio.move_on_after(timeout_seconds), counting_down("partitions left:", first_count) as report:
        while left_count:
            report(left_count)
            await trio.sleep(LOOK_SECONDS)
            left_count = await look()
    if left_count:
        raise click.ClickException(f"{otherwise(left_count)}, after {timeout_seconds:g} s")
