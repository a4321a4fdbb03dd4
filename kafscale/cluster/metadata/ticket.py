"""A transaction that waits to be committed by the task of a metadata store."""

from __future__ import annotations

import attrs
import trio

from kafscale.cluster.metadata.base import Transaction


@attrs.define(eq=False)
class Ticket:
    """A transaction on its way, and what became of it: its revision, or why it was not committed."""

    transaction: Transaction
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    outcome: int | Exception = attrs.field(default=0, init=False)

    def settle(self, outcome: int | Exception) -> None:
        """Say what became of it, and wake who waits."""
        self.outcome = outcome
        self.done.set()

    def revision(self) -> int:
        """Of a settled one. Raises what it was settled with, if that is an exception."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome
