"""The tables of a run: what the terminal and the page show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import attrs

from bench.spark.costs import Costs, Planned, mib
from bench.spark.decoder import Decoded
from bench.spark.rounds import Further, Pair, Result, spread
from bench.spark.sources import BUCKET, KAFKA, ON_US, QUERIES, READY

TITLES = {query.name: query.title for query in QUERIES}


@attrs.frozen(kw_only=True)
class Outcome:
    """All that a run has found."""

    results: Sequence[Result] = ()
    planned: Sequence[Planned] = ()
    costs: Sequence[Costs] = ()
    decoded: Sequence[Decoded] = ()
    further: Sequence[Further] = ()

    def pairs(self) -> Mapping[tuple[str, str], Pair]:
        """Return the pairs by shape and query, in the order in which they were measured."""
        return {
            key: Pair(
                ours=self._rounds(key, BUCKET),
                theirs=self._rounds(key, KAFKA),
                on_us=self._rounds(key, ON_US),
                ready=self._rounds(key, READY),
            )
            for key in dict.fromkeys((result.shape, result.query) for result in self.results)
        }

    def _rounds(self, key: tuple[str, str], source: str) -> Sequence[Result]:
        return [result for result in self.results if (result.shape, result.query, result.source) == (*key, source)]


@attrs.frozen
class Table:
    """Headings, and rows of cells. The first `text_count` columns are words, the others numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_count: int = 1

    def markdown(self) -> Iterator[str]:
        """Yield its lines."""
        yield f"| {' | '.join(self.headings)} |"
        yield f"|{'---|' * self.text_count}{'---:|' * (len(self.headings) - self.text_count)}"
        for row in self.rows:
            yield f"| {' | '.join(row)} |"


def speed(outcome: Outcome) -> Table:
    """Return the table of both sources beside each other."""
    headings = ["values, partitions", "query", "rows/s", "MiB/s", "spread", "Kafka rows/s", "Kafka MiB/s", "spread",
                "times as fast", "best rounds", "rows at hand", "broker CPU s", "Kafka broker CPU s",
                "Kafka source on KafScale rows/s"]  # fmt: skip
    return Table(headings, [[*key_cells(key), *_speed_cells(pair)] for key, pair in outcome.pairs().items()], 2)


def key_cells(key: tuple[str, str]) -> Sequence[str]:
    """Shape and query, for people."""
    shape, query = key
    return [shape, TITLES[query]]


def _speed_cells(pair: Pair) -> Iterator[str]:
    for results in (pair.ours, pair.theirs):
        yield f"{median(result.rows_per_second for result in results):,.0f}"
        yield f"{median(result.mib_per_second for result in results):,.1f}"
        yield f"{spread([result.seconds for result in results]):.0%}"
    yield f"{pair.ratio:.2f}"
    yield f"{pair.best_ratio:.2f}"
    yield "-" if pair.most is None else f"{pair.most:.2f}"
    for results in (pair.ours, pair.theirs):
        yield f"{median(result.broker_cpu_seconds for result in results):.2f}"
    yield f"{median(on_u.rows_per_second for on_u in pair.on_us):,.0f}" if pair.on_us else "-"


def further(outcome: Outcome) -> Table:
    """Return the table of writes, streams and SQL: seconds, and how many times as long theirs took."""
    found = {(measured.what, measured.source): median(measured.seconds) for measured in outcome.further}
    rows = []
    for what in dict.fromkeys(measured.what for measured in outcome.further):
        ours, theirs, on_us = (found[what, source] for source in (BUCKET, KAFKA, ON_US))
        ratios = [f"{theirs / seconds:.2f}" if seconds else "-" for seconds in (ours, found.get((what, READY)))]
        rows.append([what, f"{ours:.2f}", f"{theirs:.2f}", f"{on_us:.2f}", *ratios])
    headings = ["seconds", "kafscale", "Kafka source", "Kafka source on KafScale", "times as fast", "rows at hand"]
    return Table(headings, rows)


def read_bytes(outcome: Outcome) -> Table:
    """Return the table of what the planner says."""
    return Table(
        ["values, partitions", "query", "MiB read", "MiB needed", "MiB there"],
        [
            [*key_cells((plan.shape, plan.query)), mib(plan.read_bytes), mib(plan.needed_bytes), mib(plan.all_bytes)]
            for plan in outcome.planned
        ],
        2,
    )


def times(outcome: Outcome) -> Table:
    """CPU microseconds per row by step; of the processes of Spark, what they used beyond the steps before."""
    headings = ["values, partitions", "plan ms", "GET", "decode", "Python, rest", "JVM, rows out of Arrow",
                "JVM, sum", "JVM, Parquet", "Kafka: JVM, rows", "Kafka: JVM, sum", "Kafka: JVM, Parquet",
                "Kafka: broker"]  # fmt: skip
    pairs = outcome.pairs()
    rows = [
        [cost.shape, f"{cost.plan_seconds * 1e3:.0f}", *(f"{cell:.2f}" for cell in _time_cells(cost, pairs))]
        for cost in outcome.costs
        if {(cost.shape, query) for query in ("noop", "sum", "parquet")} <= pairs.keys()
    ]
    return Table(headings, rows)


def _time_cells(costs: Costs, pairs: Mapping[tuple[str, str], Pair]) -> Iterator[float]:
    noop, *others = (pairs[costs.shape, query] for query in ("noop", "sum", "parquet"))
    get, decode = (seconds / costs.rows * 1e6 for seconds in (costs.get_seconds, costs.decode_seconds))
    yield get
    yield decode
    yield max(0.0, _per_row([our.python_cpu_seconds for our in noop.ours], costs) - get - decode)
    for results, further in ((noop.ours, [other.ours for other in others]), (noop.theirs, [e.theirs for e in others])):
        base = _per_row([result.jvm_cpu_seconds for result in results], costs)
        yield base
        for query in further:
            yield max(0.0, _per_row([costs_of_run.jvm_cpu_seconds for costs_of_run in query], costs) - base)
    yield _per_row([result.broker_cpu_seconds for result in noop.theirs], costs)


def _per_row(seconds: Sequence[float], costs: Costs) -> float:
    return median(seconds) / costs.rows * 1e6


def decoder(outcome: Outcome) -> Table:
    """The decoder alone."""
    return Table(
        ["codec", "batches of", "values of", "million records/s", "MiB/s"],
        [
            [decoding.codec, f"{decoding.batch_bytes >> 10} KiB", f"{decoding.value_bytes} B",
             f"{decoding.records_per_second / 1e6:.2f}", f"{decoding.mib_per_second:,.0f}"]
            for decoding in outcome.decoded
        ],
        3,
    )  # fmt: skip
