"""The metadata of a stopped broker: a copy to read, or the lead for a moment to change it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from kafscale.config import Durability, Settings

if TYPE_CHECKING:
    from kafscale.cluster.metadata.base import LocalMetadataStore, MetadataStore
    from kafscale.cluster.registries.topics import TopicRegistry
    from kafscale.store.base import ObjectStore


@asynccontextmanager
async def copied_metadata(settings: Settings, *, with_data_dir: bool) -> AsyncIterator[MetadataStore]:
    """Give a copy in memory of the data directory's metadata, or an empty store. Raises StartupError."""
    from kafscale.cluster.membership.start.recovery import check_same_store
    from kafscale.cluster.metadata.base import Transaction
    from kafscale.cluster.metadata.sqlite import SqliteMetadataStore

    path = settings.data_dir / "metadata.db"
    async with SqliteMetadataStore.open(Path(":memory:")) as copy:
        if with_data_dir and path.is_file():
            async with SqliteMetadataStore.open(path) as local:
                entries = await local.list("")
            await copy.commit(Transaction(puts={entry.key: entry.value for entry in entries}))
            await check_same_store(copy, settings)
        yield copy


@asynccontextmanager
async def previewed_topics(
    settings: Settings, store: ObjectStore, *, with_data_dir: bool
) -> AsyncIterator[TopicRegistry | None]:
    """Give the topics that a start would load; None if neither bucket nor data directory has metadata.

    Raises StartupError, DamagedObject, StoreError.
    """
    from kafscale.cluster.membership.node import CLUSTER_ID_KEY
    from kafscale.cluster.membership.start.recovery import preview

    async with copied_metadata(settings, with_data_dir=with_data_dir) as metadata:
        await preview(store, settings.namespace, metadata)
        if await metadata.get(CLUSTER_ID_KEY) is None:
            yield None
            return
        yield await loaded_topics(metadata, settings)


async def loaded_topics(metadata: MetadataStore, settings: Settings) -> TopicRegistry:
    from kafscale.cluster.registries.topics import TopicRegistry

    topics = TopicRegistry(store=metadata, settings=settings)
    await topics.load()
    return topics


@asynccontextmanager
async def led_metadata(
    settings: Settings, store: ObjectStore, *, may_be_shared: bool = False
) -> AsyncIterator[MetadataStore]:
    """Claim the lead as a start does, give the metadata, write it to the bucket, and return the lead.

    The data directory must be locked; the metadata in the bucket replaces its own. Raises StartupError if it belongs to
    another store, or if several brokers share the bucket; `may_be_shared` gives the shared metadata instead.
    """
    from kafscale.cluster.membership.start.claim import SharedBucket, give_back
    from kafscale.cluster.membership.start.recovery import check_same_store
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
