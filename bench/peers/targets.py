"""Targets that KafScale must reach beside Apache Kafka in the same run, and the table that says whether it does."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from bench.consume import BACKLOG, TAIL
from bench.figures import Reading, Result, median_of, mib_per_second, p99_ms, requests_per_second
from bench.peers.java_loads import ARTICLE, ARTICLE_SHARE, java_name
from bench.peers.loads import (
    DISK_ALONE,
    IDLE,
    LARGE_BATCHES,
    MANY_PARTITIONS,
    START,
    produce_name,
)
from bench.peers.names import DISK, ENDPOINT, KAFKA_DEFAULT, KAFKA_DURABLE, OWN, OWN_MEMORY
from bench.points import Point
from kafscale.config.units import KIB

DISK_SHARE = 0.8 / 2  # of what the disk takes: each byte is written to the WAL and to the bucket on it
TOLERANCE = 0.05  # of what must be one: the first fetches read footers as well


def _p50_seconds(result: Result) -> float:
    return result.figures.p50_ms / 1000


def _cpu_per_gib(result: Result) -> float | None:
    return None if result.cpu_seconds is None else result.cpu_seconds / (result.figures.size_bytes / (1 << 30))


def _cpu_percent(result: Result) -> float | None:
    return None if result.cpu_seconds is None else 100 * result.cpu_seconds / result.figures.seconds


def _gets_per_fetch(result: Result) -> float | None:
    return None if result.gets is None else result.gets / result.figures.requests


AT_LEAST, AT_MOST, ABOUT = ">=", "<=", "="


@attrs.frozen(kw_only=True)
class Target:
    """`broker` under one load against `peer`: at least, at most or about `factor` times as much.

    Without a peer `factor` is the figure itself. `peer_load`: another load that the peer, which may be the broker, is
    under.
    """

    load: str
    reading: Reading
    unit: str
    factor: float
    peer: str | None = None
    peer_load: str | None = None
    broker: str = OWN
    wanted: str = AT_LEAST
    or_disk_share: bool = False

    @property
    def pairs(self) -> Sequence[tuple[str, str]]:
        """The loads and brokers that it needs."""
        disk = [(DISK_ALONE, DISK)] if self.or_disk_share else []
        return [(self.load, self.broker), *([(self.peer_load or self.load, self.peer)] if self.peer else []), *disk]

    @property
    def against(self) -> str:
        """Return the name of its peer, for the table."""
        return "–" if self.peer is None else self.peer if self.peer_load is None else self.peer_load

    def row(self, results: Sequence[Result]) -> TargetRow | None:
        """Return the row made of the medians; None if its load was not run."""
        ours = median_of(results, self.load, self.broker, self.reading)
        theirs = median_of(results, self.peer_load or self.load, self.peer, self.reading) if self.peer else None
        if ours is None or (self.peer and theirs is None):
            return None
        disk = median_of(results, DISK_ALONE, DISK, mib_per_second) if self.or_disk_share else None
        return TargetRow(target=self, ours=ours, theirs=theirs, enough=None if disk is None else disk * DISK_SHARE)


@attrs.frozen(kw_only=True)
class TargetRow:
    """The outcome of a target. `enough`: what is enough also where it is not `factor` times theirs."""

    target: Target
    ours: float
    theirs: float | None
    enough: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours / (self.theirs or 1.0)

    @property
    def is_reached(self) -> bool:
        if self.target.wanted == AT_MOST:
            return self.ratio <= self.target.factor
        if self.target.wanted == ABOUT:
            return abs(self.ratio - self.target.factor) <= TOLERANCE
        return self.ratio >= self.target.factor or (self.enough is not None and self.ours >= self.enough)

    @property
    def goodness(self) -> float:
        """Return how many times as good as the peer, or as the wanted value without a peer."""
        if self.theirs is None and not self.target.factor:
            return 1.0 if self.is_reached else 0.0
        beside = self.ratio if self.theirs is not None else self.ratio / self.target.factor
        return 1 / beside if beside and self.target.wanted == AT_MOST else beside

    def cells(self) -> Sequence[str]:
        """Return the row as text, under `HEADINGS`."""
        target = self.target
        times = "" if target.peer is None else "x"
        wanted = f"{target.wanted} {target.factor:.3g}{times}"
        wanted += f" or {self.enough:.0f}" if self.enough is not None else ""
        theirs = "–" if self.theirs is None else f"{self.theirs:,.4g}"
        ratio = "–" if self.theirs is None else f"{self.ratio:.2f}"
        verdict = "yes" if self.is_reached else "NO"
        return [
            target.load, target.unit, target.broker, f"{self.ours:,.4g}", target.against, theirs, ratio, wanted,
            verdict,
        ]  # fmt: skip


HEADINGS = ("load", "figure", "broker", "ours", "against", "theirs", "ratio", "wanted", "reached")

_LARGE = produce_name(LARGE_BATCHES)

TARGETS: Sequence[Target] = [
    Target(load=_LARGE, reading=mib_per_second, unit="MiB/s", peer=KAFKA_DURABLE, factor=2, or_disk_share=True),
    Target(load=_LARGE, reading=mib_per_second, unit="MiB/s", peer=KAFKA_DURABLE, factor=3, broker=OWN_MEMORY),
    *(
        Target(load=produce_name(LARGE_BATCHES, "95 MiB/s"), reading=p99_ms, unit="p99 ms", peer=KAFKA_DURABLE,
               factor=factor, broker=broker, wanted=AT_MOST)
        for broker, factor in ((OWN, 1 / 5), (OWN_MEMORY, 1 / 10))
    ),
    Target(load=produce_name(Point.parse("16KiB/64/16")), reading=requests_per_second, unit="requests/s",
           peer=KAFKA_DEFAULT, factor=2),
    *(
        Target(load=produce_name(Point.parse("1KiB/64/1")), reading=requests_per_second, unit="requests/s", peer=peer,
               factor=factor)
        for peer, factor in ((KAFKA_DEFAULT, 2), (KAFKA_DURABLE, 10))
    ),
    Target(load=ARTICLE, reading=mib_per_second, unit="MiB/s", peer=ENDPOINT, factor=0.9),
    Target(load=f"{ARTICLE} {ARTICLE_SHARE:.0%}", reading=p99_ms, unit="p99 ms", peer=KAFKA_DURABLE, factor=1 / 5,
           wanted=AT_MOST),
    *(
        Target(load=java_name(size, batch, MANY_PARTITIONS), reading=mib_per_second, unit="MiB/s",
               peer=KAFKA_DEFAULT, factor=1)
        for size in (KIB, 100) for batch in (16 * KIB, 64 * KIB)
    ),
    *(
        Target(load=f"fetch {source}/{shape}", reading=mib_per_second, unit="MiB/s",
               peer=KAFKA_DEFAULT, factor=1)
        for source in (TAIL, BACKLOG) for shape in ("960KiB/1", "16KiB/1", "16KiB/16")
    ),
    Target(load=f"fetch {BACKLOG}/16KiB/1", reading=_gets_per_fetch, unit="GETs per fetch", factor=1, wanted=ABOUT),
    Target(load=_LARGE, reading=_cpu_per_gib, unit="CPU s/GiB", peer=KAFKA_DEFAULT, factor=1, wanted=AT_MOST),
    Target(load=START, reading=_p50_seconds, unit="s to ready", factor=1, wanted=AT_MOST),
    Target(load=IDLE, reading=_cpu_percent, unit="% of a core", factor=0.5, wanted=AT_MOST),
]  # fmt: skip


def target_rows(targets: Sequence[Target], results: Sequence[Result]) -> Sequence[TargetRow]:
    """All whose loads were run."""
    return [row for target in targets if (row := target.row(results)) is not None]
