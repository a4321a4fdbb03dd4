"""`kafscale sql` as a process, and a bucket that it reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs

from kafscale.store.paths import SegmentKey
from tests.devtools.external.spark import environ_of
from tests.devtools.fakes.segment_objects import make_batches, version_2_objects

JAVA = ("WARNING: Using incubator", "Setting default log level", "To adjust logging level", "Setting Spark log level")


def kafscale_sql(*arguments: str, stdin: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kafscale", "sql", *arguments],
        env=environ_of(**variables),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the command itself says on stderr, without Java's greetings."""
    return [line for line in done.stderr.splitlines() if not line.startswith(JAVA)]


def write_orders(directory: Path) -> str:
    """30 records in each of two segments of the topic orders. Gives the option `--store`."""
    key = SegmentKey(topic="orders", topic_id=bytes(16), partition=0, base_offset=0)
    for base in (0, 30):
        version_2_objects(attrs.evolve(key, base_offset=base), make_batches(base, 10)).write_to(directory)
    return f"file:{directory}"
