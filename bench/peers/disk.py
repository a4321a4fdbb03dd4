"""What the disk takes when everything is made durable: sequential writes, each synced."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from kafscale.config.units import MIB

WRITE_BYTES = 4 * MIB


def synced_mib_per_second(directory: Path | None, seconds: float) -> float:
    """4 MiB at a time into a file that has its size already, `fdatasync` after each, as a write-ahead log does it."""
    block = os.urandom(WRITE_BYTES)
    with tempfile.TemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, 64 * WRITE_BYTES)
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.pwrite(descriptor, block, count % 64 * WRITE_BYTES)
            os.fdatasync(descriptor)
            count += 1
        return count * WRITE_BYTES / MIB / (time.perf_counter() - began)
