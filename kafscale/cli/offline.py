"""The metadata of a broker that is stopped, to be changed: by taking its place for a moment.

Beside others nobody's place need be taken: what is changed is a commit like that of any of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs

from kafscale.config import Durability, Settings

if TYPE_CHECKING:
    from kafscale.cluster.metadata.base import LocalMetadataStore, MetadataStore
    from kafscale.store.base import ObjectStore


@asynccontextmanager
async def led_metadata(
    settings: Settings, store: ObjectStore, *, may_be_shared: bool = False
) -> AsyncIterator[MetadataStore]:
    """Claim the lead as a start does, give the metadata, and have it in the bucket at the end; then give the lead back.

    What the bucket has of metadata goes before what this directory has, also at the next start. The data directory must
    be locked. Raises StartupError if it belongs to another store, or if several brokers share the bucket; where
    `may_be_shared`, it gives what they share then, and they go on meanwhile.
    """
    from kafscale.cluster.membership.start.claim import SharedBucket, give_back
    from kafscale.cluster.membership.start.same_store import check_same_store
    from kafscale.cluster.membership.start.takeover import take_lead
    from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
    from kafscale.store.opening.views import StoreViews

    async with SqliteMetadataStore.open(settings.data_dir / "metadata.db") as local:
        await check_same_store(local, settings)
        try:
            lead = await take_lead(attrs.evolve(settings, durability=Durability.WAL), StoreViews.alike(store), local)
        except SharedBucket:
            if not may_be_shared:
                raise
        else:
            yield local
            assert lead.checkpointer is not None
            assert lead.claimed is not None
            await lead.checkpointer.write()
            await give_back(store, settings.namespace, lead.claimed)
            return
        async with _shared_metadata(settings, store, local) as shared:
            yield shared


@asynccontextmanager
async def _shared_metadata(
    settings: Settings, store: ObjectStore, local: LocalMetadataStore
) -> AsyncIterator[MetadataStore]:
    import trio

    from kafscale.cluster.metadata.shared import SharedMetadataStore

    shared = await SharedMetadataStore.join(local, store, settings.namespace)
    async with trio.open_nursery() as nursery:
        await nursery.start(shared.run)
        yield shared
        nursery.cancel_scope.cancel()
