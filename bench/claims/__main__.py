"""Runs the rows that are named, or all; see `bench.claims`. Exits with 1 if one does not hold."""

from __future__ import annotations

import sys

import click

from bench.claims.claim import Claim, Finding, known_rows, load
from bench.claims.report import save, show, show_summary


@click.command()
@click.argument("rows", nargs=-1, type=click.Choice(known_rows(), case_sensitive=False))
def main(rows: tuple[str, ...]) -> None:
    """Run the experiments of these ROWS, such as k1; without any, all."""
    done: list[tuple[Claim, Finding]] = []
    for row in rows or known_rows():
        claim = load(row)
        finding = claim.run()
        show(claim, finding)
        save(claim, finding)
        done.append((claim, finding))
    show_summary(done)
    sys.exit(0 if all(finding.is_shown for _, finding in done) else 1)


if __name__ == "__main__":
    main()
