"""Opens a broker's state: data directory, metadata database, disk of the log, and store."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import trio

from kafscale.cluster.membership.start.recovery import check_same_store
from kafscale.cluster.metadata.base import LocalMetadataStore
from kafscale.cluster.metadata.sqlite import RESERVE_NAME, Reserve, SqliteMetadataStore
from kafscale.config import Settings
from kafscale.log.wal.data_directory import (
    METADATA_NAME,
    WAL_NAME,
    lock_data_directory,
    make_private,
    warn_of_lost_metadata,
)
from kafscale.log.wal.disk import Disk, RealDisk
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.opening.opening import open_store
from kafscale.store.opening.views import StoreViews

CLOSE_SECONDS = 2.0  # the bound on closing connections to the store at the very end


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StorageParts:
    """The parts of a broker's state. `views` are those of `store`; without them, all work uses it directly."""

    store: ObjectStore
    metadata: LocalMetadataStore
    disk: Disk
    views: StoreViews | None = None

    def store_views(self) -> StoreViews:
        """Return the views, by default those of the present `store`: `attrs.evolve` may have replaced it."""
        return self.views or StoreViews.alike(self.store)


@contextmanager
def open_data_directory(settings: Settings) -> Iterator[Path]:
    """Lock the data directory. With `--store memory:` its contents end with the store. Raises StartupError."""
    with lock_data_directory(settings.data_dir):
        directory = settings.data_dir
        if settings.store.scheme != "memory":
            make_private(directory)
            yield directory
            return
        directory = directory / "memory"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        make_private(directory)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def open_storage(settings: Settings, directory: Path, metrics: Metrics) -> AsyncIterator[StorageParts]:
    """Open store, metadata and disk until the block ends. Raises StartupError."""
    reserve = Reserve(directory / RESERVE_NAME)
    reserve.release_if_needed()
    views = await open_store(settings, metrics)
    warn_of_lost_metadata(directory)
    disk = RealDisk(directory / WAL_NAME)
    try:
        async with SqliteMetadataStore.open(directory / METADATA_NAME, reserve=reserve) as metadata:
            await check_same_store(metadata, settings)
            yield StorageParts(store=views.background, metadata=metadata, disk=disk, views=views)
    finally:
        disk.close()
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await views.aclose()
