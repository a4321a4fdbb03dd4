"""The options that all benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from bench.brokers import Peer

F = TypeVar("F", bound=Callable[..., Any])


def parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Sequence[str]], list[Any]]:
    """The callback of a repeatable option: makes values of its texts, and tells why one is refused."""

    def convert(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> list[Any]:
        try:
            return [parse(text) for text in texts]
        except ValueError as exc:
            raise click.BadParameter(str(exc)) from exc

    return convert


def common_options(function: F) -> F:
    """Rounds, seconds, peers, and what is passed on to `kafscale serve`."""
    for decorate in (
        click.argument("broker_options", nargs=-1, type=click.UNPROCESSED),
        click.option("--directory", type=click.Path(path_type=Path), help="Where the brokers' directories are made."),
        click.option("--peer", "peers", multiple=True, metavar="NAME=HOST:PORT", callback=parsed(Peer.parse)),
        click.option("--rounds", default=1, show_default=True, help="Of all points; the brokers alternate."),
        click.option("--warm-up", "warm_up_seconds", default=2.0, show_default=True, help="Seconds per point."),
        click.option("--seconds", default=5.0, show_default=True, help="Per point."),
    ):
        function = decorate(function)
    return function
