"""The figures of a load, from the client and from the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import attrs

from kafscale.config.units import MIB


@attrs.frozen(kw_only=True)
class Figures:
    """One run of a load, as its client saw it.

    round_p50_ms: of a plain produce with acks=all, measured in between, where the load does that.
    concurrent_count: answers CONCURRENT_TRANSACTIONS, where there are transactions.
    """

    requests: int
    seconds: float
    size_bytes: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    client_cpu_seconds: float
    round_p50_ms: float | None = None
    concurrent_count: int | None = None

    @classmethod
    def of(cls, latencies: Sequence[float], *, seconds: float, size_bytes: int, client_cpu_seconds: float) -> Figures:
        """Latencies are in seconds, in any order."""
        ordered = sorted(latencies)
        p50, p99, p999 = (percentile(ordered, fraction) * 1000 for fraction in (0.5, 0.99, 0.999))
        return cls(
            requests=len(ordered),
            seconds=seconds,
            size_bytes=size_bytes,
            p50_ms=p50,
            p99_ms=p99,
            p999_ms=p999,
            client_cpu_seconds=client_cpu_seconds,
        )


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Return the value that this fraction of the values stays below; not a number without values."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))] if ordered else float("nan")


@attrs.frozen(kw_only=True)
class Result:
    """One round of one point against one broker. What a peer does not tell is None."""

    broker: str
    point: str
    round: int
    figures: Figures
    cpu_seconds: float | None
    rss_mib: float | None
    syncs: int | None
    puts: int | None
    gets: int | None
    steal_percent: float | None = None  # of the cores, by the host of a virtual machine

    @property
    def requests_per_second(self) -> float:
        return self.figures.requests / self.figures.seconds

    @property
    def mib_per_second(self) -> float:
        return self.figures.size_bytes / MIB / self.figures.seconds

    @property
    def cpu_us_per_request(self) -> float | None:
        if self.cpu_seconds is None or not self.figures.requests:
            return None
        return self.cpu_seconds / self.figures.requests * 1e6


def middle(values: Sequence[float | int | None]) -> float | None:
    """Return the median of the known values."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


Reading = Callable[[Result], float | None]


def median_of(results: Sequence[Result], point: str, broker: str, reading: Reading) -> float | None:
    """Return the median over the rounds of a point against a broker; None without any."""
    return middle([reading(result) for result in results if (result.point, result.broker) == (point, broker)])


def requests_per_second(result: Result) -> float:
    """A reading."""
    return result.requests_per_second


def mib_per_second(result: Result) -> float:
    """A reading."""
    return result.mib_per_second


def p99_ms(result: Result) -> float:
    """A reading."""
    return result.figures.p99_ms
