"""docs/benchmarks/peers.md, its JSON and its plot, from one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from bench.figures import Result
from bench.report import headings, machine, rows, write
from kafscale import __version__

DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"
WIDTH, BAR_HEIGHT, LABEL_WIDTH, MOST_RATIO = 860, 22, 430, 4.0
FONT = 'font-family="sans-serif" font-size="12"'
REACHED, MISSED = "#2ca02c", "#d62728"

_HEAD = """# KafScale beside Apache Kafka

One run on one machine, the same loads in turns: batches encoded beforehand, so that the client costs little, and
unmodified clients. `make bench-peers` runs them and writes this page. Medians of the rounds; the spread is from the
least to the most requests/s of a row's rounds.

Kafka durable has `log.flush.interval.messages=1`, and syncs each batch before it acknowledges, as KafScale always does;
Kafka default leaves that to the kernel. KafScale's bucket is a directory on the same disk, unless the name says
otherwise, so each byte is written twice.
"""


def write_page(
    results: Sequence[Result],
    targets: Sequence[Mapping[str, str]],
    options: Mapping[str, object],
    directory: Path = DOCS,
) -> Path:
    """Write the three files; returns the path of the page."""
    write(directory / "peers.json", results, {**options, "targets": targets})
    (directory / "peers.svg").write_text(plot(targets))
    path = directory / "peers.md"
    path.write_text("\n".join(_lines(results, targets, options)))
    return path


def _lines(
    results: Sequence[Result], targets: Sequence[Mapping[str, str]], options: Mapping[str, object]
) -> Iterator[str]:
    here = machine()
    yield _HEAD
    yield (
        f"Measured on {here['cpus']} cores of {here['cpu']} with {here['memory_gib']} GiB, Linux {here['kernel']}, "
        f"Python {here['python']}, KafScale {__version__}: {options['rounds']} rounds of {options['seconds']:g} s. "
        f"The disk takes {options['disk_mib_per_second']} MiB/s when each 4 MiB are synced."
    )
    yield ""
    yield "![Ratios](peers.svg)"
    yield ""
    if targets:
        yield from _table(list(targets[0]), [list(target.values()) for target in targets])
        yield ""
    yield "## All figures"
    yield ""
    yield from _table(headings(), list(rows(results)))
    yield ""


def _table(names: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in cells:
        yield f"| {' | '.join(row)} |"


def plot(targets: Sequence[Mapping[str, str]]) -> str:
    """How much better KafScale is, a bar for each target; the line is where both are equal."""
    height = BAR_HEIGHT * len(targets) + 50
    scale = (WIDTH - LABEL_WIDTH - 60) / MOST_RATIO
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, target in enumerate(targets):
        ratio = float(target["ratio"])
        better = (1 / ratio if ratio else MOST_RATIO) if target["wanted"].startswith("<=") else ratio
        colour = REACHED if target["reached"] == "yes" else MISSED
        label = escape(f"{target['load']}, {target['unit']}, against {target['peer']}")
        y, width = 30 + BAR_HEIGHT * number, min(better, MOST_RATIO) * scale
        parts += [
            f'<text x="{LABEL_WIDTH - 8}" y="{y + 14}" text-anchor="end">{label}</text>',
            f'<rect x="{LABEL_WIDTH}" y="{y + 2}" width="{width:.1f}" height="{BAR_HEIGHT - 6}" fill="{colour}"/>',
            f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{y + 14}">{better:.1f}x</text>',
        ]
    x = LABEL_WIDTH + scale
    parts.append(f'<line x1="{x}" x2="{x}" y1="20" y2="{height - 16}" stroke="black" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{WIDTH / 2}" y="16" text-anchor="middle">times as good as the peer</text>')
    return "\n".join([*parts, "</svg>", ""])
