"""Notes about the data directory in its own metadata: the store that it belongs to, and the files of its log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import trio

from kafscale.cluster.metadata.base import LOCAL_PREFIX, MetadataStore, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.config import Settings
from kafscale.errors import StartupError
from kafscale.log.wal.local_replay import WalExtent

STORE_KEY: Final = f"{LOCAL_PREFIX}store"
EXTENT_KEY: Final = f"{LOCAL_PREFIX}wal-extent"


async def check_same_store(metadata: MetadataStore, settings: Settings) -> None:
    """Metadata and WAL go with one bucket: with another one, segments would be missing. Raises StartupError."""
    url = settings.store
    if url.scheme == "file":
        url = attrs.evolve(url, path=Path(await trio.Path(url.path).absolute()))
    wanted = f"{url} {settings.s3_endpoint or ''} {settings.namespace}"
    entry = await metadata.get(STORE_KEY)
    if entry is None:
        await metadata.commit(Transaction(puts={STORE_KEY: encode(wanted)}, essential=True))
    elif (known := decode(str, entry.value)) != wanted:
        raise StartupError(
            f"--data-dir {settings.data_dir} belongs to the store '{known.strip()}', not to '{wanted.strip()}': "
            "give that --store, or another --data-dir"
        )


@attrs.frozen
class MetadataExtents:
    """An `ExtentStore` in a metadata store, which is to be that of the data directory itself."""

    metadata: MetadataStore

    async def read(self) -> WalExtent | None:
        entry = await self.metadata.get(EXTENT_KEY)
        return None if entry is None else decode(WalExtent, entry.value)

    async def write(self, extent: WalExtent) -> None:
        await self.metadata.commit(Transaction(puts={EXTENT_KEY: encode(extent)}, essential=True))
