"""One store as each class of work sees it: the interface between who opens the store and who uses it."""

from __future__ import annotations

import attrs

from kafscale.store.base import ObjectStore
from kafscale.store.file.open_files import FileSource
from kafscale.store.guarded import DeletionGuard, GuardedStore
from kafscale.store.wrappers.limiter import PrefetchStore
from kafscale.store.wrappers.reach import Reach


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StoreViews:
    """The same objects, seen by what a produce waits for, by what a consumer waits for, and by what nobody waits for.

    Take the view of the class that the work belongs to once, and use it as any other `ObjectStore`. See `WorkClass`.
    `files` are the objects as files, if they are any; what is sent from there waits for nothing. `reach` tells whether
    the store answers.
    """

    acknowledge: ObjectStore
    fetch: ObjectStore
    background: ObjectStore
    prefetch: PrefetchStore
    files: FileSource | None = None
    reach: Reach = attrs.field(factory=Reach)

    def guarded(self, guard: DeletionGuard) -> StoreViews:
        """The same, but that nothing is deleted by any of them unless the guard lets it pass."""
        return attrs.evolve(
            self,
            acknowledge=GuardedStore(self.acknowledge, guard),
            fetch=GuardedStore(self.fetch, guard),
            background=GuardedStore(self.background, guard),
        )

    @classmethod
    def alike(cls, store: ObjectStore, reach: Reach | None = None) -> StoreViews:
        """Make all views of one store that knows no classes of work, as tests and simulations have."""
        return cls(
            acknowledge=store, fetch=store, background=store, prefetch=PrefetchStore(store), reach=reach or Reach()
        )
