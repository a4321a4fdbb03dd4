"""Counters, gauges and histograms as plain attributes, and their exposition in Prometheus' text format.

A component increments its own metric objects, without a lock or lookup, and its method `register` names and exposes
them. Values that can be read at scrape time are registered as callbacks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import attrs

from kafscale.escaping import escaped_lines

LATENCY_BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LABEL_SETS_MAX_COUNT = 20_000  # per family; past it new label sets share one "other" series, so a scrape stays bounded


@attrs.define(eq=False, repr=False)
class Counter:
    value: float = 0


@attrs.define(eq=False, repr=False)
class Histogram:
    bounds: tuple[float, ...] = LATENCY_BUCKETS_SECONDS
    counts: list[int] = attrs.field(init=False)
    total: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, or `count` equal ones."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


Labels = tuple[str, ...]
Sample = tuple[Labels, float]


@attrs.define(eq=False, repr=False)
class CounterFamily:
    name: str
    help: str
    labels: Labels
    children: dict[Labels, Counter] = attrs.field(factory=dict, init=False)

    def of(self, *values: str) -> Counter:
        """Return the counter with these label values; keep it where it is incremented often."""
        child = self.children.get(values)
        if child is None:
            if len(self.children) >= LABEL_SETS_MAX_COUNT:
                values = ("other",) * len(self.labels)
            child = self.children.setdefault(values, Counter())
        return child

    def remove(self, *values: str) -> None:
        """Forget a series, as when its topic is deleted."""
        self.children.pop(values, None)

    def lines(self) -> Iterator[str]:
        yield from _header(self.name, self.help, "counter")
        for values, child in list(self.children.items()):  # a pipeline's is scraped by another thread
            yield f"{self.name}{_labels(self.labels, values)} {_number(child.value)}"


@attrs.define(eq=False, repr=False)
class HistogramFamily:
    name: str
    help: str
    labels: Labels
    bounds: tuple[float, ...] = LATENCY_BUCKETS_SECONDS
    children: dict[Labels, Histogram] = attrs.field(factory=dict, init=False)

    def of(self, *values: str) -> Histogram:
        """Return the histogram with these label values; keep it where it is observed often."""
        child = self.children.get(values)
        if child is None:
            child = self.children[values] = Histogram(self.bounds)
        return child

    def lines(self) -> Iterator[str]:
        yield from _header(self.name, self.help, "histogram")
        names = (*self.labels, "le")
        for values, child in list(self.children.items()):
            cumulative = 0
            for bound, count in zip((*map(_number, child.bounds), "+Inf"), child.counts, strict=True):
                cumulative += count
                yield f"{self.name}_bucket{_labels(names, (*values, bound))} {cumulative}"
            yield f"{self.name}_sum{_labels(self.labels, values)} {_number(child.total)}"
            yield f"{self.name}_count{_labels(self.labels, values)} {cumulative}"


@attrs.frozen(eq=False, repr=False)
class Callback:
    name: str
    help: str
    labels: Labels
    samples: Callable[[], Iterable[Sample | None]]
    kind: str = "gauge"
    is_in_pieces: bool = False  # its samples may be read one by one while what they are read off changes

    def lines(self) -> Iterator[str | None]:
        """Yield lines, and None where other tasks may run."""
        yield from _header(self.name, self.help, self.kind)
        samples = self.samples()
        for sample in samples if self.is_in_pieces else list(samples):
            if sample is None:
                yield None
                continue
            values, value = sample
            yield f"{self.name}{_labels(self.labels, values)} {_number(value)}"


Family = TypeVar("Family", CounterFamily, HistogramFamily, Callback)


class Measured(Protocol):
    def register(self, metrics: Metrics) -> None:
        """Name and expose the component's metrics; once."""


@attrs.define(eq=False, repr=False)
class Metrics:
    """All metric families of one broker. Every name begins with `kafscale_` and is unique."""

    families: dict[str, CounterFamily | HistogramFamily | Callback] = attrs.field(factory=dict, init=False)

    def counter(self, name: str, help: str, *labels: str) -> CounterFamily:
        return self._add(CounterFamily(name, help, labels))

    def histogram(
        self, name: str, help: str, *labels: str, bounds: Sequence[float] = LATENCY_BUCKETS_SECONDS
    ) -> HistogramFamily:
        return self._add(HistogramFamily(name, help, labels, tuple(bounds)))

    def callback(
        self,
        name: str,
        help: str,
        *labels: str,
        samples: Callable[[], Iterable[Sample | None]],
        kind: str = "gauge",
        is_in_pieces: bool = False,
    ) -> None:
        """Register samples read at scrape time; `kind` is `gauge` or `counter`. If `is_in_pieces`, None lets other
        tasks run.
        """
        self._add(Callback(name, help, labels, samples, kind, is_in_pieces))

    def adopt_counter(self, name: str, help: str, counter: Counter) -> None:
        """Expose a component's counter."""
        self._add(CounterFamily(name, help, ())).children[()] = counter

    def adopt_histogram(self, name: str, help: str, histogram: Histogram) -> None:
        self._add(HistogramFamily(name, help, (), histogram.bounds)).children[()] = histogram

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Register an unlabelled value that is read at scrape time."""
        self.callback(name, help, samples=lambda: [((), read())])

    def count(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Register an unlabelled counter that is read at scrape time."""
        self.callback(name, help, samples=lambda: [((), read())], kind="counter")

    def counts(self, name: str, help: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Register counters by the values of one label, read at scrape time."""
        self.callback(
            name, help, label, samples=lambda: [((value,), number) for value, number in read().items()], kind="counter"
        )

    def _add(self, family: Family) -> Family:
        assert family.name.startswith("kafscale_"), family.name
        assert family.name not in self.families, family.name
        self.families[family.name] = family
        return family

    def expose(self) -> str:
        """Return the page in Prometheus' text format, version 0.0.4."""
        return "".join(f"{line}\n" for line in self.lines() if line is not None)

    def lines(self) -> Iterator[str | None]:
        """Yield the lines of the page, and None where other tasks may run."""
        for family in list(self.families.values()):
            yield from family.lines()


def _header(name: str, help: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escape(value: str) -> str:
    """Escape a label's value, which clients may have chosen."""
    value = escaped_lines(value).replace("\\", r"\\").replace('"', r"\"")
    return value.replace("\n", r"\n").replace("\t", r"\\t")


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) else repr(value)
