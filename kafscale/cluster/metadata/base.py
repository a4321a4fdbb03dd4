"""The metadata store's interface: keys, revisions and transactions, in etcd's terms.

Keys are `/`-separated text (`topics/orders`, `groups/g1/offsets/orders/0`); values are bytes (JSON, written by
`converter`). Every transaction that changes something gets the next revision, and a key remembers the revision that
changed it last. Listeners are told of every change (`follow`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from kafscale.cluster.metadata.changes import Change, Listener, Outcome
from kafscale.errors import PreconditionFailed
from kafscale.formats.metadata_changes import PlannedFrom, Transaction

__all__ = [
    "LOCAL_PREFIX",
    "POSITION_KEY",
    "Change",
    "Entry",
    "LocalMetadataStore",
    "MetadataStore",
    "Outcome",
    "Pair",
    "PlannedFrom",
    "Snapshot",
    "Take",
    "Transaction",
]

LOCAL_PREFIX = "local/"  # of entries that are about the data directory, and stay in it
POSITION_KEY = f"{LOCAL_PREFIX}position"  # up to where the local store has what is in the bucket

Pair = tuple[bytes, bytes]  # a key, encoded, and its value
Take = Callable[[Sequence[Pair], Sequence[bytes]], None]  # entries, and keys that were asked for and have none


@attrs.frozen
class Entry:
    """A key, its value and the revision of the transaction that wrote it."""

    key: str
    value: bytes
    revision: int


class Snapshot(Protocol):
    """All entries as they were at one moment."""

    async def read(self, keys: Sequence[str] | None, take: Take) -> None:
        """Call `take` with all entries, or those of `keys`: slice by slice, and in a worker thread."""
        ...


class MetadataStore(Protocol):
    """Raises StorageFailed (local) or StoreUnavailable (remote) from every coroutine."""

    @property
    def revision(self) -> int:
        """The revision of the latest published change."""
        ...

    def follow(self, listener: Listener) -> None:
        """Call the listener for each change from now on, in order, once it is durable. It must not wait."""
        ...

    def unfollow(self, listener: Listener) -> None: ...

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> Sequence[Entry]:
        """All entries whose key starts with `prefix`, in order of key; none is newer than the published changes."""
        ...

    async def commit(self, transaction: Transaction) -> int:
        """Apply it durably and return its revision, in the order of the calls; listeners are told before this returns.

        Raises PreconditionFailed if `expect` does not hold, PlanOutdated if something that it was planned from may have
        changed since, and StorageFull if the disk has no room: nothing has changed then.
        """
        ...

    async def check_room(self) -> None:
        """Raise StorageFull while there is no room for changes that are not essential, as far as is known."""
        ...


class LocalMetadataStore(MetadataStore, Protocol):
    """One that keeps the entries itself, and applies many transactions at the price of one."""

    async def apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        """Apply them in order, with one sync; return for each its change, PreconditionFailed or StorageFull."""
        ...

    async def check(self, transactions: Sequence[Transaction]) -> Sequence[PreconditionFailed | None]:
        """Return for each, taken alone, why it would be refused now."""
        ...

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """All entries as they are now, to be read while they go on to change; nothing in it is unpublished."""
        ...
