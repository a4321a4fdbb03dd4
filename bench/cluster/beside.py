"""Three of ours beside three of Apache Kafka: throughput, latency, CPU, and what brokers send each other."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise

import attrs

from bench.cluster.clusters import BROKERS, KAFKA, OWN_S3_WAL
from bench.cluster.jobs import BESIDE, Job
from bench.cluster.killing import three_of
from bench.cluster.scaling import CPU, RATE
from bench.options import RunOptions
from bench.points import Point
from bench.produce_load import ProduceLoad, run_produce
from bench.runner import Runner
from bench.spreading import shares_of
from kafscale.config import Address
from kafscale.config.units import MIB

POINT = Point.parse("16KiB/64/12")
PACES = (math.inf, 500)  # requests a second; as fast as they are answered, and a pace that both keep up with
BETWEEN = "bytes between brokers per byte"

_SOCKET = re.compile(r"^ESTAB\s+\d+\s+\d+\s+(\S+)\s+(\S+)(?:.*pid=(\d+))?")
_RECEIVED = re.compile(r"bytes_received:(\d+)")


def load_of(pace: float) -> str:
    """Return the name of the load."""
    return f"produce {POINT}" if pace == math.inf else f"produce {POINT}, {pace * POINT.batch_bytes / MIB:.0f} MiB/s"


def jobs() -> Sequence[Job]:
    """Return what is measured."""
    return [
        Job(group=BESIDE, load=load_of(pace), system=system, measure=partial(measure, pace, system),
            needs_java=system == KAFKA)
        for pace in PACES
        for system in (OWN_S3_WAL, KAFKA)
    ]  # fmt: skip


def measure(pace: float, system: str, options: RunOptions) -> Mapping[str, float]:
    """Send all three a load, by one connection each."""
    with three_of(system, options) as three, closing(Runner()) as runner:
        three.create_topic(POINT.partitions)
        shares = shares_of(three.admin, BROKERS)
        load = ProduceLoad(
            address=Address("", 0), point=POINT, seconds=options.seconds, shares=shares, requests_per_second=pace
        )
        runner.send(run_produce, attrs.evolve(load, seconds=options.warm_up_seconds))
        cpu_before, between_before = three.cpu_seconds(), bytes_between(three.pids().values())
        figures = runner.send(run_produce, load)
        used = three.cpu_seconds() - cpu_before
        between = bytes_between(three.pids().values()) - between_before
    return {
        RATE: figures.requests / figures.seconds,
        "MiB/s": figures.size_bytes / MIB / figures.seconds,
        "p50 ms": figures.p50_ms,
        "p99 ms": figures.p99_ms,
        CPU: used / figures.requests * 1e6,
        BETWEEN: between / figures.size_bytes,
        "KiB/s between brokers": between / 1024 / figures.seconds,
    }


def bytes_between(pids: Collection[int]) -> int:
    """Return what processes have received from each other by the connections that they have now, as the kernel says."""
    lines = subprocess.run(["ss", "-Htinp"], capture_output=True, text=True, check=True).stdout.splitlines()
    owners: dict[tuple[str, str], int] = {}
    received: dict[tuple[str, str], int] = {}
    for line, details in pairwise(lines):
        if (found := _SOCKET.match(line)) and found[3]:
            owners[found[1], found[2]] = int(found[3])
            counted = _RECEIVED.search(details)
            received[found[1], found[2]] = 0 if counted is None else int(counted[1])
    return sum(
        count
        for (ours, theirs), count in received.items()
        if owners[ours, theirs] in pids and owners.get((theirs, ours)) in pids
    )
