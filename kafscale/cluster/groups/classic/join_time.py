"""How long a rebalance waits for members to join.

The members of a group have as long as the slowest of them may take: its rebalance timeout. The first members of an
empty group are gathered instead (KIP-134): the next generation begins `group.initial.rebalance.delay.ms` after the
first one came, and each time that somebody else came meanwhile so much later, up to the rebalance timeout.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from kafscale.cluster.groups.common.settings import GroupSettings
from kafscale.concurrency.timers import Timer, TimerQueue


@attrs.define(eq=False, kw_only=True, repr=False)
class JoinTime:
    """The deadline of one group's joins; `is_up` is called once it has passed. It is set while a rebalance waits."""

    settings: GroupSettings
    timers: TimerQueue
    is_up: Callable[[], None]
    _timer: Timer = attrs.field(init=False)
    _delay_left_ms: int | None = attrs.field(default=None, init=False)  # set while an empty group fills up
    _newcomers: bool = attrs.field(default=False, init=False)  # someone came during the present initial delay

    def __attrs_post_init__(self) -> None:
        self._timer = Timer(self._passed)

    @property
    def is_set(self) -> bool:
        return self._timer.is_set

    @property
    def gathers(self) -> bool:
        """Tell whether the first members are being gathered: the generation does not begin before the delay is over."""
        return self._delay_left_ms is not None

    def gather(self, rebalance_timeout_ms: int) -> None:
        """Gather the first members, of which one has come."""
        self._newcomers = False
        self._delay_left_ms = max(rebalance_timeout_ms - self.settings.initial_rebalance_delay_ms, 0)
        self._set(self.settings.initial_rebalance_delay_ms)

    def newcomer(self) -> None:
        """Somebody joins for the first time."""
        if self.gathers:
            self._newcomers = True

    def wait(self, rebalance_timeout_ms: int) -> None:
        """Wait for all members, so long at most."""
        self._set(rebalance_timeout_ms)

    def end(self) -> None:
        """Nobody is waited for any more."""
        self.timers.cancel(self._timer)
        self._delay_left_ms = None

    def _passed(self) -> None:
        left_ms = self._delay_left_ms
        if left_ms and self._newcomers:
            delay_ms = min(self.settings.initial_rebalance_delay_ms, left_ms)
            self._newcomers = False
            self._delay_left_ms = left_ms - delay_ms
            self._set(delay_ms)
        else:
            self.is_up()

    def _set(self, ms: int) -> None:
        self.timers.set_after(self._timer, ms / 1000)
