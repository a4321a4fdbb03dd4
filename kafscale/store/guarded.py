"""The gate through which a broker deletes objects, so that none is deleted that a successor may need.

A check of the claim alone is not enough: a broker can be suspended for hours between the check and the deletion, while
another one starts and finds the object listed. So each deletion has three steps:

    decide    record that the objects are not needed, where every successor sees it: a log start or a deleted topic in
              the metadata, a newer generation that covers them, a newer checkpoint
    check     that this broker still leads, once the decision is in the bucket: a later claimer then sees it
    delete    as late as possible

`wal` acknowledges metadata changes before they are in the bucket, so the guard publishes them first. A deletion that
waits notes the time of its decision (`GuardedStore.decided`), and later finds it published. Every view of the store is
guarded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import attrs
import trio

from kafscale.errors import DamagedObject, StoreUnavailable
from kafscale.store.base import ForwardingStore, ObjectStore

NOTHING_TO_PUBLISH = 0


async def _publish_nothing(_decided: int) -> None:
    await trio.lowlevel.checkpoint()


@attrs.frozen(eq=False, kw_only=True, repr=False)
class DeletionGuard:
    """The checks of deletions; by default those of a store that no other broker can claim.

    confirm_lead: returns if this broker led after the call; raises Fenced, StoreError, DamagedObject (of the claim).
    decided: a number that grows with every acknowledged change of metadata. publish: returns when the changes up to
    such a number are in the bucket; raises StoreError.
    """

    confirm_lead: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    decided: Callable[[], int] = lambda: NOTHING_TO_PUBLISH
    publish: Callable[[int], Awaitable[None]] = _publish_nothing

    async def confirm(self, decided: int) -> None:
        """Return if decisions up to that number may be carried out. Raises Fenced, StoreError."""
        await self.publish(decided)
        try:
            await self.confirm_lead()
        except DamagedObject as exc:
            raise StoreUnavailable(f"the claim can't be read, so nothing is deleted: {exc}") from exc


@attrs.define(eq=False, repr=False)
class GuardedStore(ForwardingStore):
    """A store whose deletions pass the guard; they may also raise Fenced."""

    guard: DeletionGuard = attrs.field(factory=DeletionGuard)

    def decided(self) -> int:
        """Return the mark to note with a durable decision to delete."""
        return self.guard.decided()

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects by a decision made before this call."""
        await self.delete_in_turn([keys], self.decided())

    async def delete_in_turn(self, batches: Iterable[Sequence[str]], decided: int = NOTHING_TO_PUBLISH) -> None:
        """Delete batches in order, after one check of the claim.

        `decided` marks a durable decision; NOTHING_TO_PUBLISH for one that did not change metadata.
        """
        await self.guard.confirm(decided)
        for keys in batches:
            await self.store.delete(keys)


def guarded(store: ObjectStore) -> GuardedStore:
    """Return the store with a guard: its own, or one that permits everything."""
    return store if isinstance(store, GuardedStore) else GuardedStore(store)
