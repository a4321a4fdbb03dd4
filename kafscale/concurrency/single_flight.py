"""One load that many may wait for.

May not import anything of KafScale.
"""

from __future__ import annotations

import attrs
import trio


@attrs.define(eq=False, repr=False)
class Flight:
    """Whoever finds a load under way waits here instead of beginning another one.

    What the load failed with is everybody's. A load that was given up (its task was cancelled) is nobody's failure: who
    waited looks again, and the first of them begins anew.
    """

    _landed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _error: Exception | None = attrs.field(default=None, init=False)

    def land(self, error: BaseException | None = None) -> None:
        """The load is over. `error` is what it failed with; a cancellation is none."""
        if isinstance(error, Exception):
            self._error = error
        self._landed.set()

    async def wait(self) -> None:
        """Wait until the load is over; then look again for what was loaded. Raises what the load failed with."""
        await self._landed.wait()
        if self._error is not None:
            raise self._error
