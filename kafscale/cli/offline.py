"""The metadata of a broker that is stopped, to be changed: by taking its place for a moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs

from kafscale.config import Durability, Settings

if TYPE_CHECKING:
    from kafscale.cluster.metadata.base import MetadataStore
    from kafscale.store.base import ObjectStore


@asynccontextmanager
async def led_metadata(settings: Settings, store: ObjectStore) -> AsyncIterator[MetadataStore]:
    """Claim the lead as a start does, give the metadata, and have it in the bucket at the end.

    What the bucket has of metadata goes before what this directory has, also at the next start. The data directory must
    be locked. Raises StartupError if it belongs to another store.
    """
    from kafscale.cluster.controller.same_store import check_same_store
    from kafscale.cluster.controller.takeover import take_lead
    from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
    from kafscale.store.opening.views import StoreViews

    async with SqliteMetadataStore.open(settings.data_dir / "metadata.db") as local:
        await check_same_store(local, settings)
        lead = await take_lead(attrs.evolve(settings, durability=Durability.WAL), StoreViews.alike(store), local)
        yield local
        assert lead.checkpointer is not None
        await lead.checkpointer.write()
