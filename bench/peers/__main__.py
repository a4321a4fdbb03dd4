"""`python -m bench.peers`: KafScale beside Apache Kafka, under loads of ours and of unmodified clients.

Round by round and load by load the brokers take turns, each with an empty topic. They run during a whole round, since a
JVM needs to warm up. Before and after each measurement the disk is given the time to write what is left.

Each result is written at once; a run that was cut goes on with `--resume`, which measures what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from bench.brokers import Startable
from bench.options import RunOptions, common_options
from bench.peers.before import show_beside_before, with_before
from bench.peers.command import check_ready, chosen, open_journal
from bench.peers.comparison import comparison
from bench.peers.names import DISK, ENDPOINT
from bench.peers.page import show_targets
from bench.peers.plan import missing, pairs_of, turns_of
from bench.peers.run import PeersRun
from bench.peers.startables import all_startables, secured_startables
from bench.peers.targets import target_rows
from bench.places import LOCAL_RESULTS, RESULTS
from bench.report import show
from bench.secured.sasl_ssl import sasl_ssl


@click.command()
@click.option("--load", "wanted", multiple=True, metavar="TEXT", help="Only loads whose name begins with TEXT.")
@click.option("--broker", "names", multiple=True, metavar="NAME", help="Only these brokers.")
@click.option("--rows", is_flag=True, help="Only what the table of what must be reached needs.")
@click.option("--resume", is_flag=True, help="Continue the run: measure missing results, also with other options.")
@click.option("--page", "page_only", is_flag=True, help="Measure nothing; make the page from the results so far.")
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
@click.option("--tls", "is_secured", is_flag=True, help="The rows over SASL_SSL, beside Apache Kafka over the same.")
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
    is_secured: bool,
    steal_max_percent: float | None,
    before: Path | None,
    options: RunOptions,
) -> None:
    """Alternate each load between the brokers, and show medians, spread, and what must be reached."""
    if is_secured and options.peers:
        raise click.UsageError("--tls measures brokers that it starts itself; leave out --peer")
    directory = RESULTS if docs else LOCAL_RESULTS
    compared = comparison(is_secured=is_secured)
    journal = open_journal(directory / compared.file_name, goes_on=resume or page_only)
    if not page_only:
        check_ready(journal)
        pairs = with_before(pairs_of(compared.targets, compared.loads)) if rows or is_secured else None
        with _startables(options, before, is_secured=is_secured) as startables:
            run = PeersRun(
                options=options,
                startables={
                    name: startable for name, startable in startables.items() if not names or name in (*names, ENDPOINT)
                },
                journal=journal,
                steal_max_percent=steal_max_percent,
                keeps_brokers=is_secured,  # of which rounds are short
            )
            turns = turns_of(chosen(compared.loads, wanted), [*run.startables, DISK], options.rounds, pairs)
            run.take(missing(turns, journal.done))
    show(journal.findings.results, "peers: medians of the rounds")
    show_targets(target_rows(compared.targets, journal.findings.results))
    show_beside_before(journal.findings.results)
    click.echo(compared.write_page(journal.findings, directory))


@contextmanager
def _startables(options: RunOptions, before: Path | None, *, is_secured: bool) -> Iterator[Mapping[str, Startable]]:
    """The brokers by name; what secures them is there for the block."""
    if not is_secured:
        yield {all_startable.name: all_startable for all_startable in all_startables(options, before)}
        return
    with sasl_ssl() as security:
        yield {
            secured_startable.name: secured_startable
            for secured_startable in secured_startables(options, security, before)
        }


if __name__ == "__main__":
    main()
