"""Files that are read again when they change, or on demand, such as certificates and tokens.

Unusable new contents are logged, and the earlier ones stay until the files change again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import attrs
import trio

from kafscale.errors import StartupError
from kafscale.metrics import Counter, Metrics

logger = logging.getLogger(__name__)

Fingerprint = tuple[tuple[int, ...] | None, ...]


class Watched(Protocol):
    """An object made from files. `what` names it in the log."""

    what: str
    paths: Sequence[Path]

    def load(self) -> None:
        """Read the files, in any thread. Raises StartupError, without effect."""
        ...


@attrs.define(eq=False, repr=False)
class FileWatch:
    watched: Sequence[Watched]
    interval_seconds: float
    reload_count: Counter = attrs.field(factory=Counter, init=False)
    failed_count: Counter = attrs.field(factory=Counter, init=False)
    _seen: list[Fingerprint] = attrs.field(init=False)
    _loading: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self._seen = [fingerprint(watched.paths) for watched in self.watched]

    def register(self, metrics: Metrics) -> None:
        help = "Changed files of certificates and tokens that were read again."
        metrics.adopt_counter("kafscale_file_reloads_total", help, self.reload_count)
        help = "Changed files of certificates and tokens that could not be used."
        metrics.adopt_counter("kafscale_file_reloads_failed_total", help, self.failed_count)

    async def run(self) -> None:
        while True:
            await trio.sleep(self.interval_seconds)
            await self._read(only_changed=True)

    async def reload(self) -> None:
        await self._read(only_changed=False)

    async def _read(self, *, only_changed: bool) -> None:
        async with self._loading:
            for number, watched in enumerate(self.watched):
                found = await trio.to_thread.run_sync(fingerprint, watched.paths)
                if only_changed and found == self._seen[number]:
                    continue
                self._seen[number] = found  # before they are read: what changes meanwhile is read again
                await self._load(watched)

    async def _load(self, each: Watched) -> None:
        try:
            await trio.to_thread.run_sync(each.load)
        except StartupError as exc:
            self.failed_count.value += 1
            logger.error("%s stays as it was, as the new one can't be used: %s", each.what, exc)
        else:
            self.reload_count.value += 1
            logger.info("%s was read again", each.what)


def fingerprint(paths: Sequence[Path]) -> Fingerprint:
    return tuple(_state(path) for path in paths)


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
