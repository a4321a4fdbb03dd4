"""The metadata that a broker would start with, for commands that look and change nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafscale.config import Settings

if TYPE_CHECKING:
    from kafscale.cluster.metadata.base import MetadataStore
    from kafscale.cluster.topics.topics import TopicRegistry
    from kafscale.store.base import ObjectStore


@asynccontextmanager
async def copied_metadata(settings: Settings, *, with_data_dir: bool) -> AsyncIterator[MetadataStore]:
    """A copy in memory of what the data directory has, if it is to be looked at and has something.

    Raises StartupError if that belongs to another store.
    """
    from kafscale.cluster.membership.start.same_store import check_same_store
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
    """The topics that a start would know; None if neither bucket nor data directory has any metadata.

    Raises StartupError, DamagedObject, StoreError.
    """
    from kafscale.cluster.membership.node import CLUSTER_ID_KEY
    from kafscale.cluster.membership.start.recovery import preview
    from kafscale.cluster.topics.topics import TopicPolicy, TopicRegistry

    async with copied_metadata(settings, with_data_dir=with_data_dir) as metadata:
        await preview(store, settings.namespace, metadata)
        if await metadata.get(CLUSTER_ID_KEY) is None:
            yield None
            return
        topics = TopicRegistry(store=metadata, policy=TopicPolicy.of(settings))
        await topics.load()
        yield topics
