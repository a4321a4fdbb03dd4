"""Log lines that clients can cause at any rate: a few of each kind per period, then only their number."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

LINES_MAX_COUNT = 10
PERIOD_SECONDS = 10.0


@attrs.define(eq=False, repr=False)
class _Period:
    began: float
    written_count: int = 0
    left_out_count: int = 0


@attrs.define(eq=False, repr=False)
class QuietLog:
    """Writes at most LINES_MAX_COUNT lines of a kind in PERIOD_SECONDS.

    Kinds are remembered, so they must not come from a peer. Call `sum_up` now and then: it logs the number of skipped
    lines.
    """

    logger: logging.Logger
    now: Callable[[], float] = trio.current_time
    _periods: dict[str, _Period] = attrs.field(factory=dict, init=False)

    def tell(self, kind: str, message: str, *arguments: object, exc_info: bool = False) -> None:
        """Write a line, unless there were enough of the kind. `exc_info` adds the traceback, as an error."""
        self.sum_up()
        period = self._periods.setdefault(kind, _Period(self.now()))
        if period.written_count >= LINES_MAX_COUNT:
            period.left_out_count += 1
            return
        period.written_count += 1
        self.logger.log(logging.ERROR if exc_info else logging.WARNING, message, *arguments, exc_info=exc_info or None)

    def sum_up(self) -> None:
        before = self.now() - PERIOD_SECONDS
        for kind, period in list(self._periods.items()):
            if period.began <= before:
                del self._periods[kind]
                if period.left_out_count:
                    self.logger.warning("%s: %d more, not shown", kind, period.left_out_count)
