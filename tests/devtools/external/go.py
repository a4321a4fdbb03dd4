"""Programs in Go, built from `tests/clients/go`. Go must be on the PATH."""

from __future__ import annotations

import atexit
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCE = Path(__file__).parents[2] / "clients" / "go"
BUILD_TIMEOUT_SECONDS = 900.0  # the first build may wait for downloads


@cache
def go_program(name: str) -> Path:
    directory = TemporaryDirectory(prefix="kafscale-go-")
    atexit.register(directory.cleanup)
    program = Path(directory.name) / name
    subprocess.run(
        ["go", "build", "-o", str(program), f"./{name}"], cwd=SOURCE, check=True, timeout=BUILD_TIMEOUT_SECONDS
    )
    return program
