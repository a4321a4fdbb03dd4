"""The one gate through which a broker deletes objects: nothing goes that a successor of this broker may want.

To look at the claim alone is not enough. A broker can be suspended between its look and its deletion, for hours;
another one starts meanwhile, and finds what the first has on its list. So each deletion is three steps:

    decide    that the objects are not needed, in a way that every successor sees: a log start or a deleted topic in the
              metadata, a newer generation that covers them, a newer checkpoint
    look      whether this broker still leads, once the decision is in the bucket: then a later claimer sees it
    delete    as late as may be

`wal` acknowledges changes of metadata before they are in the bucket, so the guard first publishes them, unless a
checkpoint has them already. A deletion that waits for its time notes when it was decided (`GuardedStore.decided`), and
then finds them published.

Every view of the store that a broker works with is guarded, so that no kind of deletion can forget it.
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
    """The checks of deletions. Without arguments: for a store that no other broker can ever claim.

    confirm_lead: returns if it led at a moment after the call; raises Fenced, StoreError, DamagedObject (of the claim).
    decided: a number that has grown with every change of metadata that has been acknowledged.
    publish: returns when the changes up to such a number are in the bucket; raises StoreError.
    """

    confirm_lead: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    decided: Callable[[], int] = lambda: NOTHING_TO_PUBLISH
    publish: Callable[[int], Awaitable[None]] = _publish_nothing

    async def confirm(self, decided: int) -> None:
        """Return if what was decided up to that number may be carried out. Raises Fenced, StoreError."""
        await self.publish(decided)
        try:
            await self.confirm_lead()
        except DamagedObject as exc:
            raise StoreUnavailable(f"the claim can't be read, so nothing is deleted:  {exc}") from exc


@attrs.define(eq=False, repr=False)
class GuardedStore(ForwardingStore):
    """A store whose deletions pass the guard. What they raise besides StoreError is Fenced."""

    guard: DeletionGuard = attrs.field(factory=DeletionGuard)

    def decided(self) -> int:
        """Return a mark to note with a decision to delete, when that is durable."""
        return self.guard.decided()

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects by a decision made before this call."""
        await self.delete_in_turn([keys], self.decided())

    async def delete_in_turn(self, batches: Iterable[Sequence[str]], decided: int = NOTHING_TO_PUBLISH) -> None:
        """Delete one batch after the other, with one look at the claim for all of them.

        `decided` is from when the decision was durable; NOTHING_TO_PUBLISH for one that did not change metadata.
        """
        await self.guard.confirm(decided)
        for keys in batches:
            await self.store.delete(keys)


def guarded(store: ObjectStore) -> GuardedStore:
    """The store itself if it has a guard; else with one that lets everything pass, as tests and commands want it."""
    return store if isinstance(store, GuardedStore) else GuardedStore(store)
