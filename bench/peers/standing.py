"""The cost of an idle broker: its start, and many unused partitions."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack

import attrs

from bench.brokers import Startable
from bench.figures import Figures

STARTS_COUNT = 3


@attrs.frozen(kw_only=True)
class StartLoad:
    """Starts in an empty directory, one after the other."""

    startable: Startable
    count: int = STARTS_COUNT


def run_starts(load: StartLoad) -> Figures:
    """Latencies are from the start of the process until it says that it is ready, or listens."""
    latencies: list[float] = []
    for _ in range(load.count):
        with ExitStack() as stack:
            began = time.perf_counter()
            stack.enter_context(load.startable.running())
            latencies.append(time.perf_counter() - began)
    return Figures.of(latencies, seconds=sum(latencies), size_bytes=0, client_cpu_seconds=math.nan)


@attrs.frozen(kw_only=True)
class IdleLoad:
    """Wait for some time, without a load."""

    seconds: float


def run_idle(load: IdleLoad) -> Figures:
    """Wait; what it costs is seen at the broker."""
    time.sleep(load.seconds)
    return Figures.of([], seconds=load.seconds, size_bytes=0, client_cpu_seconds=0.0)
