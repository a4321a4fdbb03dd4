"""Progress of long commands: a bar on a terminal's stderr, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager

import click

from kafscale.cli.options import SECONDS
from kafscale.config.units import MIB

READING_MIN_BYTES = 16 * MIB  # takes some tenths of a second


@contextmanager
def counting(what: str, *, is_wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a count without a known end, if it is wanted. Yields a function that takes the current count."""
    if not is_wanted:
        yield lambda _: None
        return
    with _bar("[progress.description]{task.description} {task.completed:,}", what, None) as report:
        yield report


@contextmanager
def counting_down(what: str, total_count: int) -> Iterator[Callable[[int], None]]:
    """Show how many of a known number are left. Yields a function that takes that number."""
    with _bar("[progress.description]{task.description} {task.remaining:,.0f}", what, total_count) as report:
        yield lambda left_count: report(total_count - left_count)


@contextmanager
def measuring(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show how many bytes of a known total are done. Yields a function that takes that number."""
    text = f"[progress.description]{{task.description}} {{task.percentage:>3.0f}} % of {total_bytes / MIB:,.0f} MiB"
    with _bar(text, what, total_bytes) as report:
        yield report


@contextmanager
def reading(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many bytes are read of a total that grows meanwhile. Yields a function that takes both numbers.

    There is no bar for a total below READING_MIN_BYTES.
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
            bar[:] = [lambda _done, _total: None]  # for later reports


@contextmanager
def _bar(text: str, what: str, total: int | None, *, has_bytes: bool = False) -> Iterator[Callable[..., None]]:
    """Show a bar. Yields a function that takes how much is done, and the total if it has changed."""
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


timeout_option = click.option(
    "--timeout",
    "timeout_seconds",
    type=SECONDS,
    default="10m",
    help="Longest time to wait.  [default: 10m]",
)


async def wait_until_none_is_left(
    look: Callable[[], Awaitable[int]], timeout_seconds: float, *, otherwise: Callable[[int], str]
) -> None:
    """Call `look` until it returns 0. Fail with `otherwise` of its last number if that takes too long."""
    import trio

    left_count = first_count = await look()
    with trio.move_on_after(timeout_seconds), counting_down("partitions left:", first_count) as report:
        while left_count:
            report(left_count)
            await trio.sleep(LOOK_SECONDS)
            left_count = await look()
    if left_count:
        raise click.ClickException(f"{otherwise(left_count)}, after {timeout_seconds:g} s")
