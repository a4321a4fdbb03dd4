"""The tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bench.claims.claim import Variant
from bench.claims.files import Done
from bench.report import console


def show(done: Done) -> None:
    """The variants of one experiment, one a line."""
    table = Table(title=f"{done.claim.row.upper()}: {done.claim.claim} ({done.seconds:.0f} s)")
    table.add_column("variant")
    names = figure_names(done.finding.variants)
    for name in names:
        table.add_column(name, justify="right")
    for variant in done.finding.variants:
        table.add_row(variant.name, *cells(variant, names))
    console().print(table)


def show_summary(rows: Sequence[Done]) -> None:
    """All rows: the source's figure beside ours."""
    table = Table(title="claims")
    for heading in ("row", "source", "claim", "figure there", "here", "holds"):
        table.add_column(heading, overflow="fold")
    for done in rows:
        claim = done.claim
        verdict = "yes" if done.finding.is_shown else "NO"
        table.add_row(claim.row.upper(), claim.source, claim.claim, claim.source_figure, done.finding.ours, verdict)
    console().print(table)


def figure_names(variants: Sequence[Variant]) -> Sequence[str]:
    """The columns, in the order in which they first appear."""
    return list(dict.fromkeys(name for variant in variants for name in variant.figures))


def cells(variant: Variant, names: Sequence[str]) -> Sequence[str]:
    """Return its figures as text, in the order of the columns."""
    return [_cell(variant.figures[name]) if name in variant.figures else "" for name in names]


def _cell(value: float) -> str:
    if value != value:
        return "–"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}"
