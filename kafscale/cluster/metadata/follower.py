"""Has what a registry holds in memory follow the metadata store: one function applies a change, whoever committed it.

A registry decides what is to change and commits it here. Nothing changes in its memory before the change comes back as
one of the store's, in order of revision, with those that others have committed; the commit returns after that. So what
a caller has committed it finds in memory, and a commit whose caller was cancelled, or was told that its outcome is not
known, is applied when it comes. What is there at the start is applied by the same function, as one change.

What is decided by what is in memory is committed with what it was planned from (`commit_planned`). If somebody else has
changed that, the store refuses, and it is planned anew when memory has followed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from kafscale.cluster.metadata.base import MetadataStore, Transaction
from kafscale.cluster.metadata.changes import Change, ChangeReader
from kafscale.concurrency.signals import Signal
from kafscale.errors import ChangesForgotten, KafkaError, PlanOutdated, PreconditionFailed, StorageFull
from kafscale.wire.error_codes import REQUEST_TIMED_OUT

# Of a transaction, while others change again and again what it is planned from; whoever asked for it may try again.
PLAN_ATTEMPTS_MAX_COUNT = 10


@attrs.define(eq=False)
class Follower:
    """Follows some prefixes of keys, each of which ends in `/`, from the moment it is made.

    `apply` gets every change that has such a key, with all of its keys. It must not wait; what it calls may submit
    changes, but a change is applied as a whole before the next one.
    """

    store: MetadataStore
    prefixes: tuple[str, ...]
    _apply: Callable[[Change], None]
    _roots: frozenset[str] = attrs.field(init=False)
    _reader: ChangeReader = attrs.field(init=False)
    _applied_revision: int = attrs.field(init=False)
    _applied: Signal = attrs.field(factory=Signal, init=False)
    _is_busy: bool = attrs.field(default=False, init=False)
    _outcome_unknown: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._roots = frozenset(prefix.partition("/")[0] for prefix in self.prefixes)
        self._reader = self.store.changes(self.store.revision, self._catch_up)
        self._applied_revision = self._reader.revision

    @property
    def revision(self) -> int:
        """The revision up to which every change is applied."""
        return self._applied_revision

    async def load(self) -> Change:
        """Apply what the store has, and return it. What is committed meanwhile is applied behind it."""
        self._is_busy = True
        try:
            while True:
                try:
                    loaded = await self._list()
                    break
                except ChangesForgotten:
                    continue
            self._apply(loaded)
            self._applied_revision = loaded.revision
        finally:
            self._is_busy = False
        self._catch_up()
        return loaded

    async def _list(self) -> Change:
        """Everything, from before whatever the reader gives afterwards. Raises ChangesForgotten."""
        self._reader.close()
        self._reader = self.store.changes(self.store.revision, self._catch_up)
        revision = self._reader.revision
        puts = {entry.key: entry.value for prefix in self.prefixes for entry in await self.store.list(prefix)}
        self._reader.check()
        return Change(revision, puts)

    async def commit(self, transaction: Transaction) -> None:
        """Return when it is durable and applied. Raises what the store does."""
        try:
            revision = await self.store.commit(transaction)
        except (PreconditionFailed, StorageFull):
            raise
        except BaseException:
            self._outcome_unknown = True
            raise
        await self._wait_applied(revision)

    async def commit_planned(self, plan: Callable[[int], Awaitable[Transaction | None]]) -> None:
        """Commit what is planned; plan it anew if the store says PlanOutdated.

        `plan` gets the revision that memory has, for its transaction's `planned_from`; it returns None if there is
        nothing to do. Raises what it does and what `commit` does, and KafkaError REQUEST_TIMED_OUT if others were
        faster again and again.
        """
        for _ in range(PLAN_ATTEMPTS_MAX_COUNT):
            await self.settle()
            transaction = await plan(self._applied_revision)
            if transaction is None:
                return
            try:
                await self.commit(transaction)
            except PlanOutdated as outdated:
                await self._wait_applied(outdated.revision)
            else:
                return
        raise KafkaError(REQUEST_TIMED_OUT, "others change the same all the time: nothing was changed, try again")

    async def _wait_applied(self, revision: int) -> None:
        while self._applied_revision < revision:
            await self._applied.wait()

    async def settle(self) -> None:
        """Wait for an earlier commit whose outcome is not known; call it before you decide by what is in memory."""
        if self._outcome_unknown:
            await self.store.commit(Transaction())  # takes effect, by doing nothing, after all that came before it
            self._outcome_unknown = False

    def _catch_up(self) -> None:
        if self._is_busy:
            return
        self._is_busy = True
        try:
            for change in self._reader.drain():
                if not self._roots.isdisjoint(change.roots):
                    self._apply(change)
                self._applied_revision = change.revision
        finally:
            self._is_busy = False
        self._applied.wake()
