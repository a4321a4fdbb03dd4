"""Options and steps that the comparing commands have in common: the journal, and which loads are meant."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from bench.peers.journal import Journal
from bench.peers.kafka import find_java
from bench.peers.load import Load


def open_journal(path: Path, *, goes_on: bool) -> Journal:
    """Return an empty journal, or what is in the file. Raises ClickException."""
    if not goes_on:
        return Journal.begin(path)
    try:
        journal = Journal.read(path)
    except FileNotFoundError:
        raise click.ClickException(f"{path} is not there; run without --resume and --page first") from None
    return journal


def chosen(loads: Sequence[Load], wanted: Sequence[str]) -> Sequence[Load]:
    """Return those whose name begins with one of these texts, or all if there is no text."""
    return [load for load in loads if not wanted or any(load.name.startswith(text) for text in wanted)]


def check_ready(journal: Journal) -> None:
    """End brokers on SIGTERM, too. Raises ClickException if Kafka can't run here, or the journal is another's."""
    if problem := find_java():
        raise click.ClickException(problem)
    if not journal.is_of_this_machine:
        raise click.ClickException(f"{journal.path} was measured on another machine; begin anew, without --resume")
    signal.signal(signal.SIGTERM, end_by_exception)


def end_by_exception(number: int, frame: object) -> NoReturn:
    """Handle a signal by an exception, so that brokers are ended with the run."""
    sys.exit(128 + number)
