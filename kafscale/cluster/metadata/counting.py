"""Metadata that is durable as soon as the local store has it, as in `wal` mode; counts its changes for checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kafscale.cluster.metadata.base import Entry, MetadataStore, Transaction


@attrs.define(eq=False)
class CountingMetadataStore:
    """A MetadataStore around another one. `change_count` grows with each commit."""

    _store: MetadataStore
    change_count: int = attrs.field(default=0, init=False)

    async def get(self, key: str) -> Entry | None:
        return await self._store.get(key)

    async def commit(self, transaction: Transaction) -> int:
        revision = await self._store.commit(transaction)
        self.change_count += 1
        return revision

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self._store.list(prefix)

    async def aclose(self) -> None:
        await self._store.aclose()
