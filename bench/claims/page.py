"""docs/benchmarks/README.md, made from the JSON files of bench/results and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.claims.files import Done, saved
from bench.claims.report import cells, figure_names
from bench.places import RESULTS, link, page_directory

_HEAD = """# Benchmarks: what the sources claim, and what is so here

Each row is a behaviour that one of the projects which KafScale learns from claims, with its own figure, and an
experiment that shows it: the feature on against off, in one run on one machine. `make bench-claims` runs them all and
writes this page; `python -m bench.claims k1 l2` runs some. `make bench-memory` is the last section. The figures are in
the JSON files of `bench/results`.

Rows that depend on the machine alternate their variants in rounds, and tell medians. Where the text says that time is
simulated, the figures are the same everywhere.
"""


def write_page(directory: Path = RESULTS) -> Path:
    """Make the page anew from the results in a directory. Returns its path."""
    path = page_directory(directory) / "README.md"
    path.write_text(render(saved(directory), directory))
    return path


def render(rows: Sequence[Done], directory: Path = RESULTS) -> str:
    """The page as Markdown; the plots that it shows are in `directory`."""
    sections = (line for done in rows for line in _row(done, directory))
    return "\n".join([_HEAD, *_summary(rows), "", *_machines(rows), *sections])


def _summary(rows: Sequence[Done]) -> Iterator[str]:
    yield "| row | source | claim | figure there | here | holds |"
    yield "|---|---|---|---|---|---|"
    for done in rows:
        claim, row = done.claim, done.claim.row.upper()
        verdict = "yes" if done.finding.is_shown else "**no**"
        yield (
            f"| [{row}](#{claim.row}) | {claim.source} | {claim.claim} | {claim.source_figure} | {done.finding.ours} "
            f"| {verdict} |"
        )


def _machines(rows: Sequence[Done]) -> Iterator[str]:
    """Tell where it was run; all on one machine, as a rule."""
    for told in dict.fromkeys(_told(done) for done in rows):
        yield f"Measured on {told}."
        yield ""


def _told(done: Done) -> str:
    machine = done.machine
    return (
        f"{machine['cpus']} cores of {machine['cpu']} with {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, KafScale {done.version}"
    )


def _row(done: Done, directory: Path) -> Iterator[str]:
    row, variants = done.claim.row, done.finding.variants
    yield f"## {row.upper()}"
    yield ""
    yield done.about
    yield ""
    names = figure_names(variants)
    yield f"| {' | '.join(['variant', *names])} |"
    yield f"|---|{'---:|' * len(names)}"
    for variant in variants:
        yield f"| {' | '.join([variant.name, *cells(variant, names)])} |"
    yield ""
    if done.finding.plot is not None:
        plot = link(page_directory(directory) / "README.md", directory / f"claim-{row}.svg")
        yield f"![{done.finding.plot.title}]({plot})"
        yield ""
    load = done.machine["load_average"]
    assert isinstance(load, list)
    yield f"It took {done.seconds:.0f} s, at a load average of {load[0]:.1f}."
    yield ""
