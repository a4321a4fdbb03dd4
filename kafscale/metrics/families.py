"""Counters, gauges and histograms as plain attributes, and their exposition.

A component increments its own metric objects, without a lock or lookup, and its method `register` names and exposes
them. Values that can be read at scrape time are registered as callbacks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

import attrs

from kafscale.metrics.formats import PageFormat, bound_text, labels_text, number_text

LATENCY_BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PREFIXES = ("kafscale_", "process_")  # of processes: the names that all of Prometheus' libraries use
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
Child = TypeVar("Child", Counter, Histogram)


@attrs.define(eq=False, repr=False)
class ChildFamily(Generic[Child]):
    """The series of one metric, by the values of its labels."""

    name: str
    help: str
    labels: Labels
    children: dict[Labels, Child] = attrs.field(factory=dict, init=False)

    def new(self) -> Child:
        raise NotImplementedError

    def of(self, *values: str) -> Child:
        """Return the series with these label values; keep it where it is counted often."""
        child = self.children.get(values)
        if child is None:
            if len(self.children) >= LABEL_SETS_MAX_COUNT:
                values = ("other",) * len(self.labels)
            child = self.children.setdefault(values, self.new())
        return child

    def remove(self, *values: str) -> None:
        """Forget a series, as when its topic is deleted."""
        self.children.pop(values, None)


@attrs.define(eq=False, repr=False)
class CounterFamily(ChildFamily[Counter]):
    kind: ClassVar = "counter"

    def new(self) -> Counter:
        return Counter()

    def lines(self, form: PageFormat = PageFormat.TEXT) -> Iterator[str]:
        yield from form.header(self.name, self.help, self.kind)
        for values, child in list(self.children.items()):  # a pipeline's is scraped by another thread
            yield f"{self.name}{labels_text(self.labels, values)} {number_text(child.value)}"


@attrs.define(eq=False, repr=False)
class HistogramFamily(ChildFamily[Histogram]):
    kind: ClassVar = "histogram"
    bounds: tuple[float, ...] = LATENCY_BUCKETS_SECONDS

    def new(self) -> Histogram:
        return Histogram(self.bounds)

    def lines(self, form: PageFormat = PageFormat.TEXT) -> Iterator[str]:
        yield from form.header(self.name, self.help, self.kind)
        names = (*self.labels, "le")
        for values, child in list(self.children.items()):
            cumulative = 0
            for bound, count in zip((*map(bound_text, child.bounds), "+Inf"), child.counts, strict=True):
                cumulative += count
                yield f"{self.name}_bucket{labels_text(names, (*values, bound))} {cumulative}"
            yield f"{self.name}_sum{labels_text(self.labels, values)} {number_text(child.total)}"
            yield f"{self.name}_count{labels_text(self.labels, values)} {cumulative}"


@attrs.frozen(eq=False, repr=False)
class Callback:
    name: str
    help: str
    labels: Labels
    samples: Callable[[], Iterable[Sample | None]]
    kind: str = "gauge"
    is_in_pieces: bool = False  # its samples may be read one by one while what they are read off changes

    def lines(self, form: PageFormat = PageFormat.TEXT) -> Iterator[str | None]:
        """Yield lines, and None where other tasks may run."""
        yield from form.header(self.name, self.help, self.kind)
        samples = self.samples()
        for sample in samples if self.is_in_pieces else list(samples):
            if sample is None:
                yield None
                continue
            values, value = sample
            yield f"{self.name}{labels_text(self.labels, values)} {number_text(value)}"


Family = CounterFamily | HistogramFamily | Callback
F = TypeVar("F", CounterFamily, HistogramFamily, Callback)


class Measured(Protocol):
    def register(self, metrics: Metrics) -> None:
        """Name and expose the component's metrics; once."""


@attrs.define(eq=False, repr=False)
class Metrics:
    """All metric families of one process.

    Every name is unique and begins with one of PREFIXES. Counters, and no others, end with `_total`.
    """

    families: dict[str, Family] = attrs.field(factory=dict, init=False)

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

    def _add(self, family: F) -> F:
        assert family.name.startswith(PREFIXES), family.name
        assert (family.kind == "counter") == family.name.endswith("_total"), family.name
        base = family.name.removesuffix("_total")  # OpenMetrics' name of a counter's family
        assert self.families.keys().isdisjoint((base, f"{base}_total")), family.name
        self.families[family.name] = family
        return family

    def expose(self, form: PageFormat = PageFormat.TEXT) -> str:
        """Return the page in this format."""
        return "".join(f"{line}\n" for line in self.lines(form) if line is not None) + form.end

    def lines(self, form: PageFormat = PageFormat.TEXT) -> Iterator[str | None]:
        """Yield the lines of the page without `form.end`, and None where other tasks may run."""
        for family in list(self.families.values()):
            yield from family.lines(form)
