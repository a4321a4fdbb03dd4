"""A metadata store in memory: the fake that passes the same contract suite as the real ones."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from kafscale.cluster.metadata.base import Entry, Transaction
from kafscale.errors import PreconditionFailed


@attrs.define(eq=False, kw_only=True)
class MemoryMetadataStore:
    """A MetadataStore without a disk, so it works on an autojump clock.

    `gate`, while it is set to an event that has not happened, holds back every commit; `failure`, while it is set, is
    raised by every method. Both are for tests of what happens while a commit is on its way, and when it is lost.
    """

    gate: trio.Event | None = None
    failure: Exception | None = None
    commits: list[Transaction] = attrs.field(factory=list, init=False)
    _entries: dict[str, Entry] = attrs.field(factory=dict, init=False)
    _revision: int = attrs.field(default=0, init=False)

    async def get(self, key: str) -> Entry | None:
        await self._reach()
        return self._entries.get(key)

    async def list(self, prefix: str) -> Sequence[Entry]:
        await self._reach()
        return [self._entries[key] for key in sorted(self._entries, key=str.encode) if key.startswith(prefix)]

    async def commit(self, transaction: Transaction) -> int:
        if self.gate is not None:
            await self.gate.wait()
        await self._reach()
        for key, revision in transaction.expect.items():
            entry = self._entries.get(key)
            if (entry.revision if entry is not None else 0) != revision:
                raise PreconditionFailed(f"{key} does not have revision {revision}")
        self.commits.append(transaction)
        return self._apply(transaction)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _reach(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure

    def _apply(self, transaction: Transaction) -> int:
        doomed = {key for key in transaction.deletes if key in self._entries}
        for prefix in transaction.delete_prefixes:
            doomed.update(key for key in self._entries if key.startswith(prefix))
        if not doomed and not transaction.puts:
            return self._revision
        self._revision += 1
        for key in doomed:
            del self._entries[key]
        for key, value in transaction.puts.items():
            self._entries[key] = Entry(key, bytes(value), self._revision)
        return self._revision
