"""Base classes of registries: entries of the metadata store in memory.

A registry plans a change from memory and commits it (`_commit`). Memory changes only when the change comes back from
the store (`_apply`), in order of revision with those of other brokers, before the commit returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import ClassVar

import attrs
import trio

from kafscale.cluster.metadata.base import Change, MetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.follower import Follower


@attrs.define(eq=False, repr=False)
class MetadataRegistry(ABC):
    """Follows the keys of its prefixes. Call `load` before use."""

    PREFIXES: ClassVar[tuple[str, ...]]  # each ends in `/`

    store: MetadataStore
    _follower: Follower = attrs.field(init=False)
    _changing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self._follower = Follower(self.store, self.PREFIXES, self._apply)

    async def load(self) -> None:
        await self._follower.load()

    async def _commit(self, plan: Callable[[int], Awaitable[Transaction | None]]) -> None:
        async with self._changing:
            await self._follower.commit_planned(plan)

    def _planned_from(self, revision: int) -> PlannedFrom:
        """Return the condition that no entry of this registry has changed since a revision."""
        return PlannedFrom(revision=revision, prefixes=self.PREFIXES)

    @abstractmethod
    def _apply(self, change: Change) -> None:
        """Apply a change of the store, which may also have keys of other registries."""


@attrs.define(eq=False, repr=False)
class EntryRegistry(MetadataRegistry):
    """A registry that applies a change entry by entry, and calls its listeners after each change."""

    _listeners: list[Callable[[], None]] = attrs.field(factory=list, init=False)

    def follow(self, listener: Callable[[], None]) -> None:
        """Call the listener, which must not raise, after each further change."""
        self._listeners.append(listener)

    def _apply(self, change: Change) -> None:
        for key in change.deletes:
            if key.startswith(self.PREFIXES):
                self._delete(key)
        for key, value in change.puts.items():
            if key.startswith(self.PREFIXES):
                self._put(key, value)
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    @abstractmethod
    def _put(self, key: str, value: bytes) -> None:
        """Add or replace an entry in memory, decoded by `Follower.read`."""

    @abstractmethod
    def _delete(self, key: str) -> None:
        """Remove an entry, if it is in memory."""
