"""The options that all benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import attrs
import click

from bench.brokers import Peer


def parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Sequence[str]], list[Any]]:
    """The callback of a repeatable option: makes values of its texts, and tells why one is refused."""

    def convert(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> list[Any]:
        try:
            return [parse(text) for text in texts]
        except ValueError as exc:
            raise click.BadParameter(str(exc)) from exc

    return convert


@attrs.frozen(kw_only=True)
class RunOptions:
    """Duration, repetitions and places of a measurement, its peers, and options for `kafscale serve`."""

    seconds: float
    warm_up_seconds: float
    rounds: int
    peers: Sequence[Peer] = ()
    directory: Path | None = None
    broker_options: Sequence[str] = ()


def common_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give the command the options of `RunOptions`, as its argument `options`."""
    names = [field.name for field in attrs.fields(RunOptions)]

    @wraps(function)
    def command(**arguments: Any) -> None:
        function(options=RunOptions(**{name: arguments.pop(name) for name in names}), **arguments)

    decorated: Callable[..., None] = command
    for decorate in (
        click.argument("broker_options", nargs=-1, type=click.UNPROCESSED),
        click.option("--directory", type=click.Path(path_type=Path), help="Where the brokers' directories are made."),
        click.option("--peer", "peers", multiple=True, metavar="NAME=HOST:PORT", callback=parsed(Peer.parse)),
        click.option("--rounds", default=1, show_default=True, help="Of all points; the brokers alternate."),
        click.option("--warm-up", "warm_up_seconds", default=2.0, show_default=True, help="Seconds per point."),
        click.option("--seconds", default=5.0, show_default=True, help="Per point."),
    ):
        decorated = decorate(decorated)
    return decorated
