"""One store as each class of work sees it."""

from __future__ import annotations

import attrs

from kafscale.store.base import ObjectStore
from kafscale.store.file.open_files import FileSource
from kafscale.store.guarded import DeletionGuard, GuardedStore
from kafscale.store.wrappers.limiter import PrefetchStore
from kafscale.store.wrappers.reach import Reach


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StoreViews:
    """The same objects, seen by each class of work (`WorkClass`).

    `files` are the objects as files, if the store is a directory; `reach` tells whether the store answers.
    """

    acknowledge: ObjectStore
    fetch: ObjectStore
    background: ObjectStore
    prefetch: PrefetchStore
    files: FileSource | None = None
    reach: Reach = attrs.field(factory=Reach)

    def guarded(self, guard: DeletionGuard) -> StoreViews:
        """Return the views with a guard on deletions."""
        return attrs.evolve(
            self,
            acknowledge=GuardedStore(self.acknowledge, guard),
            fetch=GuardedStore(self.fetch, guard),
            background=GuardedStore(self.background, guard),
        )

    async def aclose(self) -> None:
        await self.background.aclose()

    @classmethod
    def alike(cls, store: ObjectStore, reach: Reach | None = None) -> StoreViews:
        """Return equal views of one store, for tests and simulations."""
        return cls(
            acknowledge=store, fetch=store, background=store, prefetch=PrefetchStore(store), reach=reach or Reach()
        )
