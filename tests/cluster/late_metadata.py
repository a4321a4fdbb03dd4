"""A metadata store that is elsewhere: a commit is answered at once, and what has changed is heard of later.

store = LateMetadataStore()
one, other = TopicRegistry(store=store), TopicRegistry(store=store)
await compete(store, lambda: one.create([...]), lambda: other.create([...]))    # neither knows of the other
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.cluster.metadata.base import Entry, Transaction
from kafscale.cluster.metadata.changes import ChangeLog, ChangeReader
from kafscale.concurrency.signals import Signal
from kafscale.testing.metadata import MemoryMetadataStore


@attrs.define(eq=False, kw_only=True)
class LateMetadataStore(MemoryMetadataStore):
    """Followers hear of a change when `tell` is called; with `forgets_while_listing` none of them is in time."""

    forgets_while_listing: bool = False
    listed_at: list[float] = attrs.field(factory=list, init=False)
    _told: ChangeLog = attrs.field(factory=ChangeLog, init=False)
    _more_told: Signal = attrs.field(factory=Signal, init=False)

    @property
    def revision(self) -> int:
        return self._told.revision

    @property
    def committed_revision(self) -> int:
        """Return the revision of the latest commit, which followers may not know yet."""
        return self._published.revision

    def changes(self, after: int, notify: Callable[[], None] | None = None) -> ChangeReader:
        return self._told.read(after, notify)

    async def list(self, prefix: str) -> Sequence[Entry]:
        """Returns when followers have heard of what it shows."""
        self.listed_at.append(trio.current_time())
        if self.forgets_while_listing:
            await self.commit(Transaction(puts={f"{prefix}meanwhile-{len(self.listed_at)}": b""}))
            self.forget()
        listed, revision = await super().list(prefix), self.committed_revision
        while self._told.revision < revision:
            await self._more_told.wait()
        return listed

    def tell(self, up_to: int | None = None) -> None:
        """Tell the followers of all changes, or of those up to a revision."""
        changes = self._published.behind(self._told.revision)
        self._told.publish(change for change in changes if up_to is None or change.revision <= up_to)
        self._more_told.wake()

    def forget(self) -> None:
        """Tell the followers that there were changes, and not which."""
        if self._told.revision < self.committed_revision:
            self._told.skip_to(self.committed_revision)
            self._more_told.wake()


async def compete(store: LateMetadataStore, *changes: Callable[[], Awaitable[object]]) -> None:
    """Begin all from the same state, and tell what has come of them when none can go on without that."""
    async with trio.open_nursery() as nursery:
        for change in changes:
            nursery.start_soon(change)
        for _ in range(len(changes) + 1):
            await wait_all_tasks_blocked()
            store.tell()
