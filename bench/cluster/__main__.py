"""`python -m bench.cluster`: several brokers on one bucket: scaling, moves, kills, cost, and what the controller takes.

Each result is written at once; a run that was cut goes on with `--resume`, which measures what is missing.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import click
from rich.table import Table

from bench.cluster import beside, controller, killing, moving, scaling, simulated
from bench.cluster.findings import FILE_NAME, Failure, Findings, Row, now
from bench.cluster.jobs import HEADINGS, Job, turns
from bench.cluster.page import tables_of, target_cells, write_page
from bench.options import RunOptions, common_options
from bench.peers.command import end_by_exception
from bench.peers.kafka import find_java
from bench.places import LOCAL_RESULTS, RESULTS
from bench.report import console

GROUPS = (scaling, moving, simulated, killing, beside, controller)
SHOWN_ERROR_LENGTH = 300


@click.command()
@click.option("--group", "groups", multiple=True, metavar="TEXT", help="Only groups whose name begins with TEXT.")
@click.option("--load", "loads", multiple=True, metavar="TEXT", help="Only loads whose name begins with TEXT.")
@click.option("--system", "systems", multiple=True, metavar="TEXT", help="Only systems whose name begins with TEXT.")
@click.option("--rows", is_flag=True, help="Only what the table of what must be reached needs.")
@click.option("--resume", is_flag=True, help="Continue the run: measure missing results, also with other options.")
@click.option("--again", is_flag=True, help="Continue the run, and measure the selected results again.")
@click.option("--page", "page_only", is_flag=True, help="Measure nothing; make the page from the results so far.")
@click.option("--docs", is_flag=True, help="Write to bench/results and docs/benchmarks, not to bench/results/local.")
@common_options
def main(
    *,
    groups: Sequence[str],
    loads: Sequence[str],
    systems: Sequence[str],
    rows: bool,
    resume: bool,
    again: bool,
    page_only: bool,
    docs: bool,
    options: RunOptions,
) -> None:
    """Measure group by group, and show what must be reached."""
    directory = RESULTS if docs else LOCAL_RESULTS
    path = directory / FILE_NAME
    goes_on = page_only or ((resume or again) and path.exists())
    findings = Findings.read(path) if goes_on else Findings.begin()
    if not page_only:
        signal.signal(signal.SIGTERM, end_by_exception)
        jobs = [
            job
            for job in chain.from_iterable(group.jobs() for group in GROUPS)
            if _begins(job.group, groups)
            and _begins(job.load, loads)
            and _begins(job.system, systems)
            and (job.is_row or not rows)
        ]
        for round, job in list(turns(_possible(jobs), options.rounds, () if again else findings.done)):
            _take(job, round, options, findings, path)
    for group in dict.fromkeys(row.group for row in findings.rows):
        for headings, *cells in tables_of(findings, group):
            _show(group, headings, cells)
    _show("what must be reached", HEADINGS, target_cells(findings))
    click.echo(write_page(findings, directory))


def _begins(name: str, wanted: Sequence[str]) -> bool:
    return not wanted or name.startswith(tuple(wanted))


def _possible(jobs: Sequence[Job]) -> Sequence[Job]:
    """Leave out what can't run here, and say so."""
    problem = find_java()
    if problem is None or not any(job.needs_java for job in jobs):
        return jobs
    click.echo(f"Apache Kafka is left out: {problem}", err=True)
    return [job for job in jobs if not job.needs_java]


def _take(job: Job, round: int, options: RunOptions, findings: Findings, path: Path) -> None:
    at, load_average = now()
    named = {"group": job.group, "load": job.load, "system": job.system}
    click.echo(f"round {round + 1}, {job.group}: {job.load}, {job.system}", err=True)
    try:
        figures = job.measure(options)
    except Exception as exc:  # a failure is reported, and tried again by the next run; keep the other results
        told = f"{type(exc).__name__}: {exc}"
        click.echo(f"FAILED: {told[:SHOWN_ERROR_LENGTH]}", err=True)
        findings.add(Failure(**named, round=round, error=told), path)
        return
    findings.add(Row(**named, round=round, at=at, load_average=load_average, figures=figures), path)
    click.echo("  " + ", ".join(f"{name} {value:,.4g}" for name, value in figures.items()), err=True)


def _show(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in cells:
        table.add_row(*row)
    console().print(table)


if __name__ == "__main__":
    main()
