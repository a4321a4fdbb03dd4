"""docs/benchmarks/README.md, made from the JSON files of bench/results and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.claims.files import Done, saved
from bench.claims.report import cells, figure_names
from bench.places import RESULTS, link, page_directory

_HEAD = """# Benchmarks: what the sources claim, and what is so here

Each row is a claim of a project that KafScale learns from, with its own figure, and an experiment: the feature on
against off, in one run on one machine, alternating in rounds, with medians. Simulated time is the same everywhere.
`make bench-claims` writes this page from the JSON files of `bench/results`; `python -m bench.claims k1 l2` runs some,
`make bench-memory` the last.
"""
FIGURES = "claims-figures.md"


def write_page(directory: Path = RESULTS) -> Path:
    """Make the page, and the tables beside the results, from the results in a directory. Returns the page's path."""
    found = saved(directory)
    (directory / FIGURES).write_text(render_figures(found))
    path = page_directory(directory) / "README.md"
    path.write_text(render(found, directory))
    return path


def render(rows: Sequence[Done], directory: Path = RESULTS) -> str:
    """Return the page as Markdown; the experiments and their figures are in `directory`."""
    figures = link(page_directory(directory) / "README.md", directory / FIGURES)
    return "\n".join([_HEAD, *_summary(rows, figures), "", *_machines(rows)])


def render_figures(rows: Sequence[Done]) -> str:
    """Return the experiments of all rows as Markdown, with the figures of each variant."""
    return "\n".join(["# The experiments of the claims\n", *(line for done in rows for line in _row(done))])


def _summary(rows: Sequence[Done], figures: str) -> Iterator[str]:
    yield "| row | source | claim | figure there | here | holds |"
    yield "|---|---|---|---|---|---|"
    for done in rows:
        claim, row = done.claim, done.claim.row.upper()
        verdict = "yes" if done.finding.is_shown else "**no**"
        cells_of_row = [claim.source, claim.claim, claim.source_figure, done.finding.ours, verdict]
        yield f"| [{row}]({figures}#{claim.row}) | {' | '.join(cells_of_row)} |"


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


def _row(done: Done) -> Iterator[str]:
    row, variants = done.claim.row, done.finding.variants
    names = figure_names(variants)
    yield f"## {row.upper()}"
    yield ""
    yield done.about
    yield ""
    yield f"| {' | '.join(['variant', *names])} |"
    yield f"|---|{'---:|' * len(names)}"
    for variant in variants:
        yield f"| {' | '.join([variant.name, *cells(variant, names)])} |"
    yield ""
    if done.finding.plot is not None:
        yield f"![{done.finding.plot.title}](claim-{row}.svg)"
        yield ""
    load = done.machine["load_average"]
    assert isinstance(load, list)
    yield f"It took {done.seconds:.0f} s, at a load average of {load[0]:.1f}."
    yield ""
