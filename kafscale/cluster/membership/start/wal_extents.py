"""The note on which files the local write-ahead log must have, kept in the metadata of the data directory."""

from __future__ import annotations

from typing import Final

import attrs

from kafscale.cluster.metadata.base import LOCAL_PREFIX, MetadataStore, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.log.wal.extent import WalExtent

EXTENT_KEY: Final = f"{LOCAL_PREFIX}wal-extent"


@attrs.frozen
class MetadataExtents:
    """An `ExtentStore` in a metadata store, which is to be that of the data directory itself."""

    metadata: MetadataStore

    async def read(self) -> WalExtent | None:
        entry = await self.metadata.get(EXTENT_KEY)
        return None if entry is None else decode(WalExtent, entry.value)

    async def write(self, extent: WalExtent) -> None:
        await self.metadata.commit(Transaction(puts={EXTENT_KEY: encode(extent)}, essential=True))
