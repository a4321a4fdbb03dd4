"""A metadata store that is elsewhere: a commit is answered at once, and what has changed is heard of later.

store = LateMetadataStore()
one, other = TopicRegistry(store=store), TopicRegistry(store=store)
await compete(store, lambda: one.create([...]), lambda: other.create([...]))    # neither knows of the other
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.cluster.metadata.base import Change, ChangeLog, Entry, Listener
from kafscale.concurrency.signals import Signal
from kafscale.testing.metadata import MemoryMetadataStore


@attrs.define(eq=False, kw_only=True)
class LateMetadataStore(MemoryMetadataStore):
    """Followers hear of a change when `tell` is called."""

    _untold: deque[Change] = attrs.field(factory=deque, init=False)
    _told: ChangeLog = attrs.field(factory=ChangeLog, init=False)
    _more_told: Signal = attrs.field(factory=Signal, init=False)

    def __attrs_post_init__(self) -> None:
        self._published.follow(self._untold.append)

    @property
    def revision(self) -> int:
        return self._told.revision

    @property
    def committed_revision(self) -> int:
        """Return the revision of the latest commit, which followers may not know yet."""
        return self._published.revision

    def follow(self, listener: Listener) -> None:
        self._told.follow(listener)

    def unfollow(self, listener: Listener) -> None:
        self._told.unfollow(listener)

    async def list(self, prefix: str) -> Sequence[Entry]:
        """Returns when followers have heard of what it shows."""
        listed, revision = await super().list(prefix), self.committed_revision
        while self._told.revision < revision:
            await self._more_told.wait()
        return listed

    def tell(self, up_to: int | None = None) -> None:
        """Tell the followers of all changes, or of those up to a revision."""
        while self._untold and (up_to is None or self._untold[0].revision <= up_to):
            self._told.publish([self._untold.popleft()])
        self._more_told.wake()


async def compete(store: LateMetadataStore, *changes: Callable[[], Awaitable[object]]) -> None:
    """Begin all from the same state, and tell what has come of them when none can go on without that."""
    async with trio.open_nursery() as nursery:
        for change in changes:
            nursery.start_soon(change)
        for _ in range(len(changes) + 1):
            await wait_all_tasks_blocked()
            store.tell()
