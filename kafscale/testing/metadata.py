"""A metadata store in memory, which passes the same contract suite as the real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from kafscale.cluster.metadata.base import Change, ChangeLog, Entry, Listener, Outcome, Take, Transaction, revision_of
from kafscale.errors import PreconditionFailed, StorageFull


@attrs.define(eq=False, kw_only=True, repr=False)
class MemoryMetadataStore:
    """A MetadataStore without a disk, so it works with an autojump clock.

    Commits wait for `gate`, and every coroutine raises `failure`, if they are set. With `full` there is room for
    `reserved_count` essential commits only.
    """

    gate: trio.Event | None = None
    failure: Exception | None = None
    full: bool = False
    reserved_count: int = 0
    commits: list[Transaction] = attrs.field(factory=list, init=False)
    _entries: dict[str, Entry] = attrs.field(factory=dict, init=False)
    _published: ChangeLog = attrs.field(factory=ChangeLog, init=False)

    def crash(self) -> MemoryMetadataStore:
        """Return the store after a crash now, without later commits of this one."""
        after = MemoryMetadataStore()
        after._entries = dict(self._entries)
        after._published = ChangeLog(self.revision)
        return after

    @property
    def revision(self) -> int:
        return self._published.revision

    def follow(self, listener: Listener) -> None:
        self._published.follow(listener)

    def unfollow(self, listener: Listener) -> None:
        self._published.unfollow(listener)

    async def get(self, key: str) -> Entry | None:
        await self._reach()
        return self._entries.get(key)

    async def list(self, prefix: str) -> Sequence[Entry]:
        await self._reach()
        return [self._entries[key] for key in sorted(self._entries, key=str.encode) if key.startswith(prefix)]

    async def commit(self, transaction: Transaction) -> int:
        (outcome,) = await self.apply([transaction])
        return revision_of(outcome)

    async def apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        if self.gate is not None:
            await self.gate.wait()
        await self._reach()
        outcomes = []
        for transaction in transactions:
            outcome = self._apply(transaction)
            self._published.publish([outcome])
            outcomes.append(outcome)
        return outcomes

    async def check(self, transactions: Sequence[Transaction]) -> Sequence[PreconditionFailed | None]:
        await self._reach()
        return [self._refusal(transaction) for transaction in transactions]

    async def check_room(self) -> None:
        await self._reach()
        if self.full:
            raise StorageFull("the disk in memory is full")

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[MemorySnapshot]:
        await self._reach()
        yield MemorySnapshot(dict(self._entries))

    async def _reach(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure

    def _refusal(self, transaction: Transaction) -> PreconditionFailed | None:
        for key, revision in transaction.expect.items():
            entry = self._entries.get(key)
            if (entry.revision if entry is not None else 0) != revision:
                return PreconditionFailed(f"{key} does not have revision {revision}")
        return None if transaction.planned_from is None else self._published.refusal(transaction.planned_from)

    def _apply(self, transaction: Transaction) -> Outcome:
        if (refusal := self._refusal(transaction)) is not None:
            return refusal
        if self.full:
            if not transaction.essential or not self.reserved_count:
                return StorageFull("the disk in memory is full")
            self.reserved_count -= 1
        self.commits.append(transaction)
        doomed = {key: None for key in transaction.deletes if key in self._entries}
        for prefix in transaction.delete_prefixes:
            doomed.update({key: None for key in self._entries if key.startswith(prefix)})
        if not doomed and not transaction.puts:
            return Change(self._published.revision)
        revision = self._published.revision + 1
        for key in doomed:
            del self._entries[key]
        for key, value in transaction.puts.items():
            self._entries[key] = Entry(key, bytes(value), revision)
        return Change(revision, transaction.puts, [key for key in doomed if key not in transaction.puts])


@attrs.frozen(eq=False, repr=False)
class MemorySnapshot:
    entries: Mapping[str, Entry]

    async def read(self, keys: Sequence[str] | None, take: Take) -> None:
        await trio.lowlevel.checkpoint()
        wanted = sorted(self.entries, key=str.encode) if keys is None else keys
        found = [(key.encode(), self.entries[key].value) for key in wanted if key in self.entries]
        take(found, [key.encode() for key in wanted if key not in self.entries])
