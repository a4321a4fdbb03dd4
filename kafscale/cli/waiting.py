"""Waiting for brokers to do what they were told: how much is left is looked at again and again, and shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from kafscale.cli.connecting import Parsed
from kafscale.cli.progress import counting_down
from kafscale.config import parse_duration

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
