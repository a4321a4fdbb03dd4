"""One store as each class of work sees it: the interface between who opens the store and who uses it."""

from __future__ import annotations

import attrs

from kafscale.store.base import ObjectStore
from kafscale.store.limited import PrefetchStore


@attrs.frozen(kw_only=True, eq=False)
class StoreViews:
    """The same objects, seen by what a produce waits for, by what a consumer waits for, and by what nobody waits for.

    Take the view of the class that the work belongs to once, and use it as any other `ObjectStore`. See `WorkClass`.
    """

    acknowledge: ObjectStore
    fetch: ObjectStore
    background: ObjectStore
    prefetch: PrefetchStore

    @classmethod
    def alike(cls, store: ObjectStore) -> StoreViews:
        """Of a store that knows no classes, as tests and simulations have."""
        return cls(acknowledge=store, fetch=store, background=store, prefetch=PrefetchStore(store))
