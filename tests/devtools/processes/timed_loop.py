"""A broker that records the longest step of its event loop.

    python -m tests.devtools.processes.timed_loop serve ...

A step is the loop's work between two looks for ready tasks; meanwhile no other client is served. It is measured in CPU
time, without other processes. The longest one is in a file beside the data directory, for `longest_step_seconds`.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from kafscale.cli.main import run
from kafscale.config import CoordinatorSettings, Limits, SaslSettings, Settings, SslSettings

PROGRAM = ("-m", "tests.devtools.processes.timed_loop")
FIXED = "--fixed"
_DEFAULTS = [
    settings_class.__init__.__kwdefaults__ or {}
    for settings_class in (Settings, SslSettings, SaslSettings, CoordinatorSettings, Limits)
]

_SECONDS = struct.Struct("d")
_NONE = _SECONDS.pack(0.0)


def are_timed(directory: Path) -> bool:
    return _file(directory).exists()


def longest_step_seconds(directory: Path) -> float:
    """Return the longest step since the start, or the last `forget_steps`."""
    seconds: float
    (seconds,) = _SECONDS.unpack(_file(directory).read_bytes())
    return seconds


def forget_steps(directory: Path) -> None:
    with _file(directory).open("r+b") as file:  # in place, as the broker has mapped the file
        file.write(_NONE)


def _file(directory: Path) -> Path:
    return directory / "longest-step"


class _Timer(trio.abc.Instrument):
    def __init__(self, longest: mmap.mmap) -> None:
        self.longest = longest
        self.began = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        self.began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        seconds = time.thread_time() - self.began
        if seconds > _SECONDS.unpack_from(self.longest)[0]:
            _SECONDS.pack_into(self.longest, 0, seconds)


def fixed(**values: float) -> tuple[str, ...]:
    """Return arguments for `main` that change settings without an option."""
    return tuple(word for name, value in values.items() for word in (FIXED, f"{name}={value}"))


def _fix_settings(arguments: Sequence[str]) -> list[str]:
    """Change the defaults as `fixed` says, and return the remaining arguments."""
    rest = list(arguments)
    while FIXED in rest:
        at = rest.index(FIXED)
        name, _, value = rest[at + 1].partition("=")
        del rest[at : at + 2]
        [defaults] = [defaults for defaults in _DEFAULTS if name in defaults]
        defaults[name] = type(defaults[name])(value)
    return rest


def main(arguments: Sequence[str]) -> int:
    arguments = _fix_settings(arguments)
    path = _file(Path(arguments[arguments.index("--data-dir") + 1]).parent)
    path.write_bytes(_NONE)
    with path.open("r+b") as file:
        longest = mmap.mmap(file.fileno(), _SECONDS.size)
    trio.run = partial(trio.run, instruments=[_Timer(longest)])  # type: ignore[assignment] # `serve` calls it
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
