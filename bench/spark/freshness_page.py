"""docs/benchmarks/freshness.md, and its JSON in bench/results, from one run of `bench.spark.freshness`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import cattrs

from bench.places import RESULTS, page_directory
from bench.report import machine
from bench.spark.tables import Table
from kafscale import __version__

NAME = "freshness"
P99_WANTED_SECONDS = 1.5
RATIO_WANTED = 1.3  # of a read of segments alone

_HEAD = """# How fresh Spark's reads are, and what that costs

One run on one machine, one Spark (`local[2]`) and one broker. `make bench-freshness` writes this page.
[Freshness](../how-to/spark.md#what-is-there-to-see) explains the option.
"""

_STREAMS = f"""Micro-batches of a second, records of 1,000 B, `linger.ms=5`; seconds are from a record's
acknowledgement until `foreachBatch` has it. The first {{warm:.0f}} s are not counted. Milliseconds are medians of
Spark's `durationMs`: of a micro-batch, of finding its end, of reading it. Wanted: p99 at most {P99_WANTED_SECONDS:g}
s in `s3-wal`.
"""

_READS = f"""`count(*), sum(length(value)), max(offset)` of {{rows:,}} records of 1,000 B, by each `freshness` in
turns, {{rounds}} times after a warm-up: when all is flushed, then while records come. Wanted: at most
{RATIO_WANTED:g} times the seconds of a plain read, `segments`, in `bucket`.
"""


@attrs.frozen(kw_only=True)
class Streamed:
    """The delay of the rows of a stream, and the medians of what its micro-batches took, by Spark's names."""

    bucket: str
    durability: str
    freshness: str
    per_second: int
    records_count: int
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    most_seconds: float
    phases_ms: Mapping[str, float]


@attrs.frozen(kw_only=True)
class Read:
    """Rounds of reading all of a topic. `per_second` is the rate at which records came meanwhile."""

    bucket: str
    per_second: int
    log_objects_count: int
    freshness: str
    rows_count: int
    seconds: Sequence[float]


@attrs.frozen(kw_only=True)
class Found:
    """All that a run has found."""

    streamed: Sequence[Streamed]
    reads: Sequence[Read]

    def ratio(self, read: Read) -> float:
        """Return how many times as long as a plain one a read takes, under the same load."""
        (plain,) = (
            other
            for other in self.reads
            if (other.bucket, other.per_second, other.freshness) == (read.bucket, read.per_second, "segments")
        )
        return median(read.seconds) / median(plain.seconds)


def streams_table(found: Found) -> Table:
    """Return the table of the streams."""
    headings = ["bucket", "durability", "freshness", "records", "p50 s", "p90 s", "p99 s", "most s", "batch ms",
                "where it ends ms", "read ms", "reached"]  # fmt: skip
    return Table(headings, [_stream_cells(stream) for stream in found.streamed], 3)


def _stream_cells(each: Streamed) -> Sequence[str]:
    seconds = (each.p50_seconds, each.p90_seconds, each.p99_seconds, each.most_seconds)
    phases = (each.phases_ms[name] for name in ("triggerExecution", "latestOffset", "addBatch"))
    return [
        each.bucket,
        each.durability,
        each.freshness,
        f"{each.records_count:,}",
        *(f"{value:.2f}" for value in seconds),
        *(f"{value:,.0f}" for value in phases),
        _reached(each.p99_seconds <= P99_WANTED_SECONDS) if each.durability == "s3-wal" else "–",
    ]


def reads_table(found: Found) -> Table:
    """Return the table of the whole reads."""
    headings = ["bucket", "freshness", "records/s meanwhile", "objects of the log", "rows", "seconds", "spread",
                "times a plain read", "reached"]  # fmt: skip
    return Table(headings, [_read_cells(found, read) for read in found.reads], 2)


def _read_cells(found: Found, each: Read) -> Sequence[str]:
    return [
        each.bucket,
        each.freshness,
        f"{each.per_second:,}",
        f"{each.log_objects_count:,}",
        f"{each.rows_count:,}",
        f"{median(each.seconds):.2f}",
        f"{min(each.seconds):.2f}–{max(each.seconds):.2f}",
        f"{found.ratio(each):.2f}",
        _reached(found.ratio(each) <= RATIO_WANTED) if each.freshness == "bucket" else "–",
    ]


def _reached(is_reached: bool) -> str:
    return "yes" if is_reached else "**no**"


def write_page(found: Found, options: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Write JSON to `directory`, and the page; returns the path of the page."""
    content = {"version": __version__, "machine": machine(), "options": dict(options), **cattrs.unstructure(found)}
    (directory / f"{NAME}.json").write_text(json.dumps(content, indent=1, default=str) + "\n")
    path = page_directory(directory) / f"{NAME}.md"
    path.write_text("\n".join(_lines(found, options)))
    return path


def _lines(found: Found, options: Mapping[str, Any]) -> Iterator[str]:
    here = machine()
    yield _HEAD
    yield (
        f"Measured on {here['cpus']} cores of {here['cpu']} with {here['memory_gib']} GiB, Linux {here['kernel']}, "
        f"Python {here['python']}, Spark {options['spark']}, KafScale {__version__}: {options['seconds']:.0f} s of "
        f"each stream at {options['per_second']} records/s to {options['partitions']} partitions. Load average at the "
        f"end: {here['load_average']}."
    )
    yield from ("", "## Streams", "", _STREAMS.format(warm=options["warm_seconds"]))
    yield from streams_table(found).markdown()
    least = min(read.rows_count for read in found.reads)
    yield from ("", "## Whole reads", "", _READS.format(rows=least, rounds=len(found.reads[0].seconds)))
    yield from reads_table(found).markdown()
    yield ""
