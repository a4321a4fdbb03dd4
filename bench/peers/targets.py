"""What KafScale must reach beside Apache Kafka in the same run, and the table that says whether it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
from rich.table import Table

from bench.figures import Result, middle
from bench.peers.endpoint import NAME as ENDPOINT
from bench.peers.loads import ARTICLE, FIXED_RATE_MIB, JAVA_PARTITIONS, KAFKA_DEFAULT, KAFKA_DURABLE
from bench.report import console

OWN = "kafscale"
OWN_MEMORY = "kafscale memory"
DISK_SHARE = 0.8 / 2  # of what the disk takes: each byte is written to the WAL and to the bucket on it

Reading = Callable[[Result], float | None]


def _mib(result: Result) -> float:
    return result.mib_per_second


def _requests(result: Result) -> float:
    return result.requests_per_second


def _p99(result: Result) -> float:
    return result.figures.p99_ms


def _cpu_per_gib(result: Result) -> float | None:
    return None if result.cpu_seconds is None else result.cpu_seconds / (result.figures.size_bytes / (1 << 30))


@attrs.frozen(kw_only=True)
class Target:
    """`broker` against `peer` under one load: at least `factor` times as much, or at most, where less is better."""

    load: str
    reading: Reading
    unit: str
    peer: str
    factor: float
    broker: str = OWN
    less_is_better: bool = False
    or_disk_share: bool = False

    def is_reached(self, ours: float, theirs: float, disk_mib_per_second: float) -> bool:
        if self.less_is_better:
            return ours <= theirs * self.factor
        wanted = theirs * self.factor
        return ours >= (min(wanted, disk_mib_per_second * DISK_SHARE) if self.or_disk_share else wanted)


LARGE = "produce 960KiB/5/1"

TARGETS: Sequence[Target] = [
    Target(load=LARGE, reading=_mib, unit="MiB/s", peer=KAFKA_DURABLE, factor=2, or_disk_share=True),
    Target(load=LARGE, reading=_mib, unit="MiB/s", peer=KAFKA_DURABLE, factor=3, broker=OWN_MEMORY),
    *(
        Target(load=f"{LARGE} at {FIXED_RATE_MIB} MiB/s", reading=_p99, unit="p99 ms", peer=KAFKA_DURABLE,
               factor=factor, broker=broker, less_is_better=True)
        for broker, factor in ((OWN, 1 / 5), (OWN_MEMORY, 1 / 10))
    ),
    Target(load="produce 16KiB/64/16", reading=_requests, unit="requests/s", peer=KAFKA_DEFAULT, factor=2),
    Target(load="produce 1KiB/64/1", reading=_requests, unit="requests/s", peer=KAFKA_DEFAULT, factor=2),
    Target(load="produce 1KiB/64/1", reading=_requests, unit="requests/s", peer=KAFKA_DURABLE, factor=10),
    Target(load="produce 1KiB/64/16", reading=_requests, unit="requests/s", peer=KAFKA_DEFAULT, factor=2),
    Target(load=ARTICLE, reading=_mib, unit="MiB/s", peer=ENDPOINT, factor=0.9),
    Target(load=f"{ARTICLE} 80%", reading=_p99, unit="p99 ms", peer=KAFKA_DURABLE, factor=1 / 5, less_is_better=True),
    *(
        Target(load=f"java {size}B batch.size={batch}", reading=_mib, unit="MiB/s", peer=KAFKA_DEFAULT, factor=1)
        for size in (1024, 100) for batch in (16384, 65536)
    ),
    *(
        Target(load=f"fetch {source}/{size}/{partitions}", reading=_mib, unit="MiB/s", peer=KAFKA_DEFAULT, factor=1)
        for source in ("tail", "backlog") for size in ("960KiB", "16KiB") for partitions in (1, JAVA_PARTITIONS)
    ),
    Target(load=LARGE, reading=_cpu_per_gib, unit="CPU s/GiB", peer=KAFKA_DEFAULT, factor=1, less_is_better=True),
]  # fmt: skip


def show_targets(results: Sequence[Result], disk_mib_per_second: float) -> Sequence[Mapping[str, str]]:
    """Print the table, and return its rows. A target whose loads were not run is left out."""
    table = Table(title="what must be reached")
    for heading in ("load", "unit", "ours", "peer", "theirs", "ratio", "wanted", "reached"):
        table.add_column(heading, overflow="fold")
    rows: list[Mapping[str, str]] = []
    for target in TARGETS:
        ours, theirs = (
            _median(results, target.load, broker, target.reading) for broker in (target.broker, target.peer)
        )
        if ours is None or theirs is None:
            continue
        reached = target.is_reached(ours, theirs, disk_mib_per_second)
        wanted = f"{'<=' if target.less_is_better else '>='} {target.factor:.2g}x"
        wanted += f" or {disk_mib_per_second * DISK_SHARE:.0f}" if target.or_disk_share else ""
        cells = [target.load, target.unit, f"{ours:,.1f} ({target.broker})", target.peer, f"{theirs:,.1f}",
                 f"{ours / theirs if theirs else 0:.2f}", wanted, "yes" if reached else "NO"]  # fmt: skip
        table.add_row(*cells)
        rows.append(dict(zip((str(column.header) for column in table.columns), cells, strict=True)))
    console().print(table)
    return rows


def _median(results: Sequence[Result], load: str, broker: str, reading: Reading) -> float | None:
    return middle([reading(each) for each in results if (each.point, each.broker) == (load, broker)])
