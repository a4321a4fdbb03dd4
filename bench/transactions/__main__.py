"""`python -m bench.transactions`: transactions of KafScale beside Apache Kafka, by a generator of ours and librdkafka.

Round by round and load by load the brokers take turns, each with an empty topic, as in `bench.peers`. Each result is
written at once; a run that was cut goes on with `--resume`, which measures what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from bench.brokers import Startable
from bench.options import RunOptions, common_options
from bench.peers.before import show_beside_before
from bench.peers.command import check_ready, chosen, open_journal
from bench.peers.kafka import DEFAULT, KafkaBroker
from bench.peers.names import BEFORE, KAFKA_DEFAULT, OWN
from bench.peers.page import show_targets
from bench.peers.plan import missing, turns_of
from bench.peers.run import PeersRun
from bench.peers.startables import kafka_durable, own_brokers
from bench.peers.targets import target_rows
from bench.places import LOCAL_RESULTS, RESULTS
from bench.report import show
from bench.transactions.loads import all_loads
from bench.transactions.page import FILE_NAME, write_page
from bench.transactions.targets import TARGETS


@click.command()
@click.option("--load", "wanted", multiple=True, metavar="TEXT", help="Only loads whose name begins with TEXT.")
@click.option("--broker", "names", multiple=True, metavar="NAME", help="Only these brokers.")
@click.option("--resume", is_flag=True, help="Continue the run: measure missing results, also with other options.")
@click.option("--page", "page_only", is_flag=True, help="Measure nothing; make the page from the results so far.")
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
    resume: bool,
    page_only: bool,
    docs: bool,
    before: Path | None,
    options: RunOptions,
) -> None:
    """Alternate each load between the brokers, and show medians, spread, and what must be reached."""
    directory = RESULTS if docs else LOCAL_RESULTS
    journal = open_journal(directory / FILE_NAME, goes_on=resume or page_only)
    if not page_only:
        check_ready(journal)
        own = [own_broker for own_broker in own_brokers(options, before) if own_broker.name in (OWN, BEFORE)]
        kafka = [kafka_durable(options.directory), KafkaBroker(KAFKA_DEFAULT, DEFAULT, options.directory)]
        brokers: Sequence[Startable] = [*own, *kafka, *options.peers]
        startables = {broker.name: broker for broker in brokers if not names or broker.name in names}
        run = PeersRun(options=options, startables=startables, journal=journal, keeps_brokers=True)
        run.take(missing(turns_of(chosen(all_loads(), wanted), list(startables), options.rounds), journal.done))
    results = journal.findings.results
    show(results, "transactions: medians of the rounds")
    show_targets(target_rows(TARGETS, results))
    show_beside_before(results)
    click.echo(write_page(journal.findings, directory))


if __name__ == "__main__":
    main()
