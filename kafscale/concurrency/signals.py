"""What one task tells others again and again: that there is something to look at, or that something has changed.

May not import anything of KafScale.
"""

from __future__ import annotations

import attrs
import trio


@attrs.define(eq=False, repr=False)
class Signal:
    """A `trio.Event` for many rounds, used in one of two ways.

    A task with work of its own clears it, looks for work, and waits: what is `set` meanwhile is not missed. Tasks that
    wait for a state look whether it is there, and else wait for the next `wake`, which nobody remembers. In both,
    nothing is awaited between the look and `wait`, and who was woken looks again.
    """

    _event: trio.Event = attrs.field(factory=trio.Event, init=False)

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Let go who waits, and who will, until it is cleared."""
        self._event.set()

    def clear(self) -> None:
        """A new round begins: who waits from now on waits for the next `set`. Who waits already goes on doing so."""
        if self._event.is_set():
            self._event = trio.Event()

    def wake(self) -> None:
        """Let go who waits now, and nobody who comes later."""
        event, self._event = self._event, trio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait until it is set, or for the next `wake`. A checkpoint in any case."""
        await self._event.wait()

    def statistics(self) -> trio.EventStatistics:
        """Tell how many tasks wait."""
        return self._event.statistics()
