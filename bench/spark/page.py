"""docs/benchmarks/spark.md, and its JSON and its plot in bench/results, from one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import cattrs

from bench.bars import Bar, Bars
from bench.places import RESULTS, link, page_directory
from bench.report import machine
from bench.spark import tables
from bench.spark.further import SQL_ROUNDS, STREAM_PER_SECOND, WRITE_ROUNDS
from bench.spark.rounds import MAX_ROUNDS, SHORT_SECONDS, Pair
from bench.spark.tables import Outcome, Table
from kafscale import __version__

FIGURES = "spark-figures.md"
WANTED_OF_OTHERS = 2.0
WANTED = {"count": 4.0, "hour": 4.0, "where": 4.0, "where-noon": 4.0}  # of the Kafka source's speed

_HEAD = f"""# Spark on the bucket, beside Spark's Kafka source

One run on one machine, one Spark (`local[2]`), the same records in Apache Kafka and in a KafScale bucket. `make
bench-spark` writes this page. Each query runs on both sources in turn, and by Spark's Kafka source on a KafScale
broker, after a warm-up round; short queries repeat until {SHORT_SECONDS:.0f} s have passed, {MAX_ROUNDS} rounds at
most. Figures are medians, from `load()` to the result; the spread is from least to most. Records are spread over a
day, in uncompressed batches of 16 KiB. Wanted: twice as fast, four times in counts and by time. "Rows at hand" is a
Python source that reads and decodes nothing: no source gets below it. "Best rounds" compares the fastest round of
each, since Kafka's source sometimes waits three seconds. With 64 partitions three queries stand for all.
"""

_READ = """By timestamps both sources get `startingTimestamp` and `endingTimestamp`. By `where`, the condition is on
the column `timestamp`: `pushFilters` uses the indexes, the Kafka source reads the whole topic.
"""

_FURTHER = f"""Seconds; medians of {WRITE_ROUNDS} rounds in turns, and of {SQL_ROUNDS} processes. Sinks write to
brokers, ours idempotently. Streams of {STREAM_PER_SECOND} records/s have a trigger of a second, or begin when the
micro-batch before has ended; ours reads with `freshness=broker` (`wal`). SQL processes include Python's start; the
second statement is the additional time. Avro is decoded by `valueFormat=avro` and by Spark's `from_avro`.
"""

_TIMES = """CPU microseconds per row, of one core, all columns. GET and decode are measured without Spark; the rest of
Python is the workers' start and their way to the JVM. For a query that writes nowhere the JVM takes rows out of
Arrow; for the others, what they use on top.
"""

_DECODER = """One core, uncompressed size of what a GET brings, all columns except headers. Values of random words
compress to about half.
"""


def write_page(outcome: Outcome, options: Mapping[str, object], directory: Path = RESULTS) -> Path:
    """Write JSON and plot to `directory`, and the page; returns the path of the page."""
    content = {"version": __version__, "machine": machine(), "options": dict(options), **cattrs.unstructure(outcome)}
    (directory / "spark.json").write_text(json.dumps(content, indent=1, default=str) + "\n")
    (directory / "spark.svg").write_text(plot(outcome).svg())
    (directory / FIGURES).write_text("\n".join(["# Where the time of Spark's reads goes", *further_lines(outcome)]))
    path = page_directory(directory) / "spark.md"
    path.write_text("\n".join(page_lines(outcome, options, path, directory)))
    return path


def page_lines(outcome: Outcome, options: Mapping[str, object], path: Path, directory: Path) -> Iterator[str]:
    """Yield the lines of the page at `path`; plot and further tables are in `directory`."""
    here = machine()
    yield _HEAD
    yield (
        f"Measured on {here['cpus']} cores of {here['cpu']} with {here['memory_gib']} GiB, Linux {here['kernel']}, "
        f"Python {here['python']}, Spark {options['spark']}, KafScale {__version__}: "
        f"at least {options['rounds']} rounds, {options['seconds']:.0f} s in all, the bucket {options['bucket']}. "
        f"Load average at the end: {here['load_average']}."
    )
    yield ""
    yield f"![Ratios]({link(path, directory / 'spark.svg')})"
    yield ""
    yield from tables.speed(outcome).markdown()
    yield from _section("Writing, streams and SQL", _FURTHER, tables.further(outcome))
    figures = link(path, directory / FIGURES)
    yield f"\n[What is not as fast as wanted, bytes read, where the time goes, the decoder alone]({figures}).\n"


def further_lines(outcome: Outcome) -> Iterator[str]:
    """Yield the lines of the tables that few readers want."""
    yield from _short(outcome)
    yield from _section("Bytes read and needed", _READ, tables.read_bytes(outcome))
    yield from _section("Where the time goes", _TIMES, tables.times(outcome))
    yield from _section("The decoder alone", _DECODER, tables.decoder(outcome))
    yield ""


def _section(title: str, text: str, table: Table) -> Iterator[str]:
    if table.rows:
        yield from ("", f"## {title}", "", text)
        yield from table.markdown()


def _short(outcome: Outcome) -> Iterator[str]:
    """Name what is not as fast as is wanted."""
    cells = [
        [*tables.key_cells(key), f"{pair.ratio:.2f}", f"{WANTED.get(key[1], WANTED_OF_OTHERS):g}", _most(pair)]
        for key, pair in outcome.pairs().items()
        if pair.ratio < WANTED.get(key[1], WANTED_OF_OTHERS)
    ]
    cells += [
        ["", row[0], row[-2], f"{WANTED_OF_OTHERS:g}", row[-1]]
        for row in tables.further(outcome).rows
        if row[-2] != "-" and float(row[-2]) < WANTED_OF_OTHERS
    ]
    if cells:
        yield from ("", "## Not as fast as is wanted", "")
        yield from Table(["values, partitions", "what", "times as fast", "wanted", "rows at hand"], cells, 2).markdown()


def _most(pair: Pair) -> str:
    return "-" if pair.most is None else f"{pair.most:.2f}"


def plot(outcome: Outcome) -> Bars:
    """Return how many times as fast as the Kafka source, a bar for each query."""
    return Bars(
        title="times as fast as Spark's Kafka source",
        bars=[Bar(": ".join(tables.key_cells(key)), pair.ratio) for key, pair in outcome.pairs().items()],
        label_width=400,
        most_ratio=8,
    )


def save_part(outcome: Outcome, path: Path) -> None:
    """Save what was measured of one shape, for a later run that resumes."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(cattrs.unstructure(outcome)))


def saved_part(path: Path) -> Outcome:
    """Return what `save_part` has written."""
    return cattrs.structure(json.loads(path.read_text()), Outcome)


def together(parts: list[Outcome]) -> Outcome:
    """Join the outcomes of several shapes."""
    return Outcome(
        **{
            field.name: tuple(value for part in parts for value in getattr(part, field.name))
            for field in attrs.fields(Outcome)
        }
    )
