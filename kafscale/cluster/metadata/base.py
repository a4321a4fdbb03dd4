"""The metadata store's interface: keys, revisions and transactions, in etcd's terms.

Keys are `/`-separated text (`topics/orders`, `groups/g1/offsets/orders/0`); values are bytes (JSON, written by
`kafscale.cluster.converter`). Every transaction that changes something gets the next revision, and a key remembers the
revision that changed it last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from kafscale.formats.metadata_changes import Transaction

__all__ = ["Entry", "MetadataStore", "Transaction"]


@attrs.frozen
class Entry:
    """A key, its value and the revision of the transaction that wrote it."""

    key: str
    value: bytes
    revision: int


class MetadataStore(Protocol):
    """Raises StorageFailed (local) or StoreUnavailable (remote) from every method."""

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> Sequence[Entry]:
        """All entries whose key starts with `prefix`, in order of key."""
        ...

    async def commit(self, transaction: Transaction) -> int:
        """Apply it, durably, and return its revision. Raises PreconditionFailed where `expect` does not hold.

        Transactions take effect in the order of the calls; many that wait together share one disk sync.
        """
        ...

    async def aclose(self) -> None: ...
