"""One query after the other, each in turn on all sources, and what it took."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

import attrs

from bench.spark.data import Shape
from bench.spark.session import Spark
from bench.spark.sources import READY, Query, Source
from kafscale.config.units import MIB

# A query is repeated until it took so long on all sources together: chance weighs most on short ones.
SHORT_SECONDS = 5.0
MAX_ROUNDS = 15


@attrs.frozen(kw_only=True)
class Result:
    """One round of one query on one source. CPU seconds of the broker, of Spark's JVM and of its Python workers."""

    shape: str
    query: str
    source: str
    round: int
    rows: int
    value_bytes: int
    seconds: float
    broker_cpu_seconds: float
    jvm_cpu_seconds: float
    python_cpu_seconds: float

    @property
    def rows_per_second(self) -> float:
        """The rows per second of the topic, or of the hour."""
        return self.rows / self.seconds

    @property
    def mib_per_second(self) -> float:
        """The MiB of values per second."""
        return self.rows_per_second * self.value_bytes / MIB


@attrs.frozen(kw_only=True)
class Further:
    """Seconds that something else than a query took by one of the sources, a value for each round."""

    what: str
    source: str
    seconds: Sequence[float]


class Different(Exception):
    """The sources do not agree on a result."""


@attrs.frozen(kw_only=True, eq=False)
class Contest:
    """The sources have the same records of each shape. Round -1 warms up, and is not told."""

    spark: Spark
    sources: Sequence[Source]
    queries: Sequence[Query]

    def rounds(self, shape: Shape, count: int) -> Iterator[Result]:
        """All queries on all sources, `count` times, and short ones more often. Raises Different."""
        taken_seconds = defaultdict[str, float](float)
        for number in range(-1, max(count, MAX_ROUNDS)):
            for query in self.queries:
                if number >= count and taken_seconds[query.name] >= SHORT_SECONDS:
                    continue
                answers = []
                sources = [source for source in self.sources if not (query.by_where and source.name == READY)]
                for source in sources if number % 2 else reversed(sources):
                    answer, result = self._measure(shape, query, source, number)
                    answers.append(answer)
                    if number >= 0:
                        taken_seconds[query.name] += result.seconds
                        yield result
                if len(set(answers)) > 1:
                    raise Different(f"{query.title} of {shape}: {' and '.join(map(str, answers))}")

    def _measure(self, shape: Shape, query: Query, source: Source, number: int) -> tuple[object, Result]:
        before, broker_before = self.spark.used(), source.broker.usage().cpu_seconds or 0.0
        began = time.perf_counter()
        answer = query.run(query.frame(source, self.spark, shape))
        seconds = time.perf_counter() - began
        used = self.spark.used() - before
        return answer, Result(
            shape=str(shape),
            query=query.name,
            source=source.name,
            round=number,
            rows=answer[0] if isinstance(answer, tuple) else shape.all_rows,
            value_bytes=shape.value_bytes,
            seconds=seconds,
            broker_cpu_seconds=(source.broker.usage().cpu_seconds or 0.0) - broker_before,
            jvm_cpu_seconds=used.jvm_seconds,
            python_cpu_seconds=used.python_seconds,
        )


@attrs.frozen(kw_only=True)
class Pair:
    """The results of the sources under one query, over all rounds.

    `on_us` are those of the Kafka source on our broker, and `ready` those of one in Python that has its rows at hand.
    """

    ours: Sequence[Result]
    theirs: Sequence[Result]
    on_us: Sequence[Result] = ()
    ready: Sequence[Result] = ()

    @property
    def ratio(self) -> float:
        """Return how many times as fast as the Kafka source: medians."""
        return median(their.seconds for their in self.theirs) / median(our.seconds for our in self.ours)

    @property
    def best_ratio(self) -> float:
        """Return the same of the fastest round of each."""
        return min(their.seconds for their in self.theirs) / min(our.seconds for our in self.ours)

    @property
    def most(self) -> float | None:
        """Return how many times as fast a source in Python can be that does nothing; None where none was measured."""
        if not self.ready:
            return None
        return median(their.seconds for their in self.theirs) / median(ours.seconds for ours in self.ready)


def spread(values: Sequence[float]) -> float:
    """Return the spread from the least to the most, as a share of the median."""
    return (max(values) - min(values)) / median(values)
