"""The tables on the terminal, and the files of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import attrs
from rich.console import Console
from rich.table import Table

from bench.claims.claim import Claim, Figure, Finding
from bench.report import RESULTS, WIDTH, machine
from kafscale import __version__


def show(claim: Claim, finding: Finding) -> None:
    """The variants of one experiment, one a line."""
    table = Table(title=f"{claim.row.upper()}: {claim.claim}")
    table.add_column("variant")
    names = list(dict.fromkeys(name for variant in finding.variants for name in variant.figures))
    for name in names:
        table.add_column(name, justify="right")
    for variant in finding.variants:
        table.add_row(variant.name, *(_cell(variant.figures.get(name, "")) for name in names))
    _console().print(table)


def show_summary(done: Sequence[tuple[Claim, Finding]]) -> None:
    """All rows: the source's figure beside ours."""
    table = Table(title="claims")
    for heading in ("row", "source", "claim", "figure there", "here", "holds"):
        table.add_column(heading, overflow="fold")
    for claim, finding in done:
        verdict = "yes" if finding.is_shown else "NO"
        table.add_row(claim.row.upper(), claim.source, claim.claim, claim.source_figure, finding.ours, verdict)
    _console().print(table)


def save(claim: Claim, finding: Finding, directory: Path = RESULTS) -> Path:
    """Write `claim-k2.json`, and `claim-k2.svg` if there is a plot. Returns the former."""
    directory.mkdir(exist_ok=True)
    content = {
        "version": __version__,
        "machine": machine(),
        "claim": attrs.asdict(claim, filter=lambda field, _: field.name != "run"),
        "finding": attrs.asdict(finding),
    }
    path = directory / f"claim-{claim.row}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    if finding.plot is not None:
        path.with_suffix(".svg").write_text(finding.plot.svg())
    return path


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _cell(value: Figure) -> str:
    if isinstance(value, str):
        return value
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}"
