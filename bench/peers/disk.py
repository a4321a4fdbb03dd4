"""The rate of the disk when everything is made durable: sequential writes, each synced."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import attrs

from bench.figures import Figures
from kafscale.config.units import MIB

WRITE_BYTES = 4 * MIB
FILE_BYTES = 64 * WRITE_BYTES


@attrs.frozen(kw_only=True)
class DiskLoad:
    """4 MiB at a time into a file that has its size already, `fdatasync` after each, as a write-ahead log does it."""

    directory: Path | None
    seconds: float


def run_disk(load: DiskLoad) -> Figures:
    """A request is one write with its sync."""
    block = os.urandom(WRITE_BYTES)
    latencies: list[float] = []
    with tempfile.TemporaryFile(dir=load.directory) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        began, cpu_began = time.perf_counter(), time.process_time()
        now = began
        while not latencies or now - began < load.seconds:
            os.pwrite(descriptor, block, len(latencies) * WRITE_BYTES % FILE_BYTES)
            os.fdatasync(descriptor)
            write_began, now = now, time.perf_counter()
            latencies.append(now - write_began)
        return Figures.of(
            latencies,
            seconds=now - began,
            size_bytes=len(latencies) * WRITE_BYTES,
            client_cpu_seconds=time.process_time() - cpu_began,
        )
