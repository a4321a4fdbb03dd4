"""How far a long command has come: a bar on a terminal's stderr, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafscale.config.units import MIB


@contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """Show a count whose end is not known. The function that is given takes how many it is now."""
    with _bar("[progress.description]{task.description} {task.completed:,}", what, None) as report:
        yield report


@contextmanager
def measuring(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show how many bytes of a known total are done. The function that is given takes their number."""
    text = f"[progress.description]{{task.description}} {{task.percentage:>3.0f}} % of {total_bytes / MIB:,.0f} MiB"
    with _bar(text, what, total_bytes) as report:
        yield report


@contextmanager
def _bar(text: str, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (SpinnerColumn(), TextColumn(text), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
