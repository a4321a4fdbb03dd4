"""Metadata whose transactions are durable elsewhere before they are applied here: what such stores have in common.

A full disk refuses transactions before they are written elsewhere. What has been is applied with the room that is
reserved, and if that is not enough waits for more; then what comes behind it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from kafscale.cluster.metadata.base import Outcome, Transaction
from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.errors import StorageFull

NO_ROOM_RETRY_SECONDS = 1.0


@attrs.define(eq=False, repr=False)
class LogFirst(GroupCommit):
    """A MetadataStore around the local one, which it never lets have what is not durable elsewhere."""

    async def _refusals(self, transactions: Sequence[Transaction]) -> dict[int, Exception]:
        """Find those that may not be written to the log now, by their identity."""
        refused: dict[int, Exception] = {}
        try:
            await self.local.check_room()
        except StorageFull as full:
            refused = {id(each): full for each in transactions if not each.essential}
        if conditional := [each for each in transactions if each.is_conditional]:
            refusals = zip(conditional, await self.local.check(conditional), strict=True)
            refused |= {id(each): refusal for each, refusal in refusals if refusal is not None}
        return refused

    async def _apply_all(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        """Apply what is in the log: nobody can be told that it has failed."""
        done: list[Outcome] = []
        while True:
            outcomes = await self.local.apply(transactions[len(done) :])
            full = next((place for place, each in enumerate(outcomes) if isinstance(each, StorageFull)), None)
            done += outcomes[:full]
            if full is None:
                return done
            refusal = outcomes[full]
            assert isinstance(refusal, StorageFull)
            self._refuse_waiting(refusal)
            await trio.sleep(NO_ROOM_RETRY_SECONDS)
