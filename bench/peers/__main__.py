"""`python -m bench.peers`: KafScale beside Apache Kafka, under loads of ours and of unmodified clients.

Round by round and load by load the brokers take turns, each with an empty topic. They run during a whole round, since a
JVM needs to warm up. Before and after each measurement the disk is given the time to write what is left.

Each result is written at once; a run that was cut goes on with `--resume`, which measures what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from bench.brokers import Startable
from bench.options import RunOptions, common_options
from bench.peers.before import show_beside_before, with_before
from bench.peers.command import check_ready, chosen, open_journal
from bench.peers.journal import FILE_NAME
from bench.peers.loads import all_loads
from bench.peers.names import DISK, ENDPOINT
from bench.peers.page import show_targets, write_page
from bench.peers.plan import missing, pairs_of, turns_of
from bench.peers.run import PeersRun
from bench.peers.startables import all_startables
from bench.peers.targets import TARGETS, target_rows
from bench.places import LOCAL_RESULTS, RESULTS
from bench.report import show


@click.command()
@click.option("--load", "wanted", multiple=True, metavar="TEXT", help="Only loads whose name begins with TEXT.")
@click.option("--broker", "names", multiple=True, metavar="NAME", help="Only these brokers.")
@click.option("--rows", is_flag=True, help="Only what the table of what must be reached needs.")
@click.option(
    "--resume", is_flag=True, help="Go on with what is there: measure what is missing, also with other options."
)
@click.option("--page", "page_only", is_flag=True, help="Measure nothing; make the page from what is there.")
@click.option(
    "--steal-max",
    "steal_max_percent",
    type=float,
    metavar="PERCENT",
    help="Measure again, twice at most, what the machine's host took more of the cores from.",
)
@click.option(
    "--before",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    metavar="CHECKOUT",
    help="Another checkout, with a .venv, whose broker takes turns with this one's.",
)
@click.option("--docs", is_flag=True, help="Write to bench/results and docs/benchmarks, not to bench/results/local.")
@common_options
def main(
    *,
    wanted: Sequence[str],
    names: Sequence[str],
    rows: bool,
    resume: bool,
    page_only: bool,
    docs: bool,
    steal_max_percent: float | None,
    before: Path | None,
    options: RunOptions,
) -> None:
    """Alternate each load between the brokers, and show medians, spread, and what must be reached."""
    directory = RESULTS if docs else LOCAL_RESULTS
    journal = open_journal(directory / FILE_NAME, goes_on=resume or page_only)
    if not page_only:
        check_ready(journal)
        run = PeersRun(
            options=options,
            startables=_startables(names, options, before),
            journal=journal,
            steal_max_percent=steal_max_percent,
        )
        pairs = with_before(pairs_of(TARGETS, all_loads())) if rows else None
        turns = turns_of(chosen(all_loads(), wanted), [*run.startables, DISK], options.rounds, pairs)
        run.take(missing(turns, journal.done))
    show(journal.findings.results, "peers: medians of the rounds")
    show_targets(target_rows(TARGETS, journal.findings.results))
    show_beside_before(journal.findings.results)
    click.echo(write_page(journal.findings, directory))


def _startables(names: Sequence[str], options: RunOptions, before: Path | None) -> Mapping[str, Startable]:
    return {each.name: each for each in all_startables(options, before) if not names or each.name in (*names, ENDPOINT)}


if __name__ == "__main__":
    main()
