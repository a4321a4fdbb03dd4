"""Runs the rows that are named, or all; see `bench.claims`. Exits with 1 if one does not hold."""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

import click

from bench.claims.claim import known_rows, load
from bench.claims.files import Done, save
from bench.claims.page import write_page
from bench.claims.report import show, show_summary
from bench.places import RESULTS


@click.command()
@click.argument("rows", nargs=-1, type=click.Choice(known_rows(), case_sensitive=False))
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=RESULTS,
    help="Where JSON, plots and the page go. Default: bench/results, and the page to docs/benchmarks.",
)
def main(rows: tuple[str, ...], directory: Path) -> None:
    """Run the experiments of these ROWS, such as k1; without any, all that this machine has what they need for."""
    done: list[Done] = []
    failed_count = 0
    for row in rows or known_rows():
        claim = load(row)
        if missing := claim.find_missing():
            click.echo(f"{row.upper()} is left out: {missing}", err=True)
            continue
        started = time.monotonic()
        try:
            finding = claim.run()
        except Exception:  # the others are worth having all the same
            failed_count += 1
            click.echo(f"{row.upper()} failed:\n{traceback.format_exc()}", err=True)
            continue
        done.append(Done.of(claim, finding, seconds=time.monotonic() - started))
        show(done[-1])
        save(done[-1], directory)
    show_summary(done)
    write_page(directory)
    sys.exit(1 if failed_count or not all(outcome.finding.is_shown for outcome in done) else 0)


if __name__ == "__main__":
    main()
