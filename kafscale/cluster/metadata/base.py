"""The metadata store's interface: keys, revisions and transactions, in etcd's terms.

Keys are `/`-separated text (`topics/orders`, `groups/g1/offsets/orders/0`); values are bytes (JSON, written by
`converter`). Every transaction that changes something gets the next revision, and a key remembers the revision that
changed it last. Who follows the store reads its changes after a revision (`changes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from kafscale.cluster.metadata.changes import Change, ChangeReader, Outcome
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
        """The revision of the latest change that `changes` has."""
        ...

    def changes(self, after: int, notify: Callable[[], None] | None = None) -> ChangeReader:
        """Reads what is committed after a revision, in order and without a gap, once it is durable.

        `notify` is called whenever there is something to take. Raises ChangesForgotten where it is too long ago.
        """
        ...

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> Sequence[Entry]:
        """All entries whose key starts with `prefix`, in order of key; none is newer than what `changes` has then."""
        ...

    async def commit(self, transaction: Transaction) -> int:
        """Apply it, durably, and return its revision.

        Raises PreconditionFailed if `expect` does not hold, and PlanOutdated if something has changed that it was
        planned from, or if the store has forgotten whether it has; the caller then plans anew. Raises StorageFull if
        the disk has no room: nothing has changed then. Transactions take effect in the order of the calls. `changes`
        has it before this returns.
        """
        ...

    async def check_room(self) -> None:
        """Raise StorageFull while there is no room for changes that are not essential, as far as is known."""
        ...

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Everything as it is now, to be read while it goes on to change. It has nothing that `changes` has not."""
        ...

    async def aclose(self) -> None: ...


class LocalMetadataStore(MetadataStore, Protocol):
    """One that keeps the entries itself, and applies many transactions at the price of one."""

    async def apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        """Apply them in order, with one sync; for each what it has changed, or why it had no effect.

        That is PreconditionFailed, or StorageFull. One that begins later is applied later.
        """
        ...

    async def check(self, transactions: Sequence[Transaction]) -> Sequence[PreconditionFailed | None]:
        """Tell for each, taken alone, why it would be refused now, if what it expects does not hold."""
        ...
