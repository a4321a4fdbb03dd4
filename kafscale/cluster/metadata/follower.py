"""Keeps a registry's memory as the metadata store is: one function applies each change, whichever broker committed it.

Memory changes only when a change comes back from the store, in order of revision; the commit returns after that. So a
commit whose caller was cancelled, or does not know the outcome, is applied when it comes. A decision that is made from
memory is committed with the keys that it was planned from (`commit_planned`), and planned anew if those have changed.

An entry of a later version that this one can't read (`read`) ends no serving broker: memory keeps the value before, and
this broker does not change that entry. A start refuses it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

import attrs

from kafscale.cluster.metadata.base import Change, MetadataStore, Transaction, root_of
from kafscale.concurrency.signals import Signal
from kafscale.errors import (
    DamagedObject,
    KafkaError,
    PlanOutdated,
    PreconditionFailed,
    StorageFull,
)
from kafscale.wire.error_codes import INVALID_REQUEST, REQUEST_TIMED_OUT

T = TypeVar("T")

# Of a transaction, while others change the keys of its plan again and again; the client may try again.
PLAN_ATTEMPTS_MAX_COUNT = 10

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class Follower:
    """Follows some prefixes of keys, each of which ends in `/`, from the moment it is made.

    `apply` gets every change that has such a key, with all of its keys, and must not wait. `revision` is that up to
    which every change is applied. `unreadable` are keys whose value can't be read, and why.
    """

    store: MetadataStore
    prefixes: tuple[str, ...]
    _apply: Callable[[Change], None]
    unreadable: dict[str, str] = attrs.field(factory=dict, init=False)
    revision: int = attrs.field(init=False)
    _roots: frozenset[str] = attrs.field(init=False)
    _applied: Signal = attrs.field(factory=Signal, init=False)
    _during_load: list[Change] | None = attrs.field(default=None, init=False)
    is_loaded: bool = attrs.field(default=False, init=False)
    _outcome_unknown: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._roots = frozenset(map(root_of, self.prefixes))
        self.revision = self.store.revision
        self.store.follow(self._follow)

    async def load(self) -> Change:
        """Apply all entries as one change, and return it. Raises as the store does, and DamagedObject."""
        self.is_loaded = False
        later: list[Change] = []
        self._during_load = later
        try:
            listed = [entry for prefix in self.prefixes for entry in await self.store.list(prefix)]
        finally:
            self._during_load = None
        puts = {entry.key: entry.value for entry in listed}
        deletes: dict[str, None] = {}
        for change in later:
            for key in change.deletes:
                puts.pop(key, None)
                deletes[key] = None
            puts.update({key: value for key, value in change.puts.items() if key.startswith(self.prefixes)})
        loaded = Change(self.store.revision, puts, [key for key in deletes if key not in puts])
        self._apply_change(loaded)
        self.is_loaded = True
        return loaded

    def close(self) -> None:
        self.store.unfollow(self._follow)

    def _follow(self, change: Change) -> None:
        if self._during_load is not None:
            self._during_load.append(change)
        elif self._roots.isdisjoint(change.roots):
            self._note_applied(change)
        else:
            self._apply_change(change)

    def _apply_change(self, change: Change) -> None:
        for key in self.unreadable.keys() & set(change.deletes) if self.unreadable else ():
            del self.unreadable[key]
        self._apply(change)
        self._note_applied(change)

    def _note_applied(self, change: Change) -> None:
        self.revision = change.revision
        self._applied.wake()

    def read(self, key: str, value: bytes, decode: Callable[[bytes], T]) -> T | None:
        """Decode a value; None if memory keeps the one before. Raises DamagedObject during `load`."""
        try:
            found = decode(value)
        except DamagedObject as exc:
            if not self.is_loaded:
                raise DamagedObject(
                    f"{key}: {exc}; start the version of KafScale that wrote it, or a later one"
                ) from exc
            self.unreadable[key] = str(exc)
            logger.error(
                "%s was written by a later version of KafScale, and this one can't read it: it stays here as it was "
                "before, and can't be changed here, until this broker is upgraded: %s",
                key,
                exc,
            )
            return None
        self.unreadable.pop(key, None)
        return found

    def check_readable(self, keys: Collection[str]) -> None:
        """Raise KafkaError if one of these can't be read: to change it would undo what a later version has written."""
        for key in self.unreadable.keys() & set(keys) if self.unreadable else ():
            raise KafkaError(
                INVALID_REQUEST,
                f"{key} was written by a later version of KafScale: ask a broker of that version, or upgrade this one",
            )

    async def commit(self, transaction: Transaction) -> None:
        """Commit; return when it is durable and applied. Raises as the store and `check_readable`."""
        self.check_readable((*transaction.puts, *transaction.deletes))
        try:
            revision = await self.store.commit(transaction)
        except (PreconditionFailed, StorageFull):
            raise
        except BaseException:
            self._outcome_unknown = True
            raise
        await self._wait_applied(revision)

    async def commit_planned(self, plan: Callable[[int], Awaitable[Transaction | None]]) -> None:
        """Commit a planned transaction; plan anew if the store raises PlanOutdated.

        `plan` gets the revision of memory, for its transaction's `planned_from`; it returns None if there is nothing to
        do. Raises as it and `commit` do, and KafkaError REQUEST_TIMED_OUT if others were faster again and again.
        """
        for _ in range(PLAN_ATTEMPTS_MAX_COUNT):
            await self.settle()
            transaction = await plan(self.revision)
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
        while self.revision < revision:
            await self._applied.wait()

    async def settle(self) -> None:
        """Wait for an earlier commit whose outcome is not known; call it before deciding from memory."""
        if self._outcome_unknown:
            # An empty commit takes effect after all earlier ones; essential, as the next plan may be.
            await self.store.commit(Transaction(essential=True))
            self._outcome_unknown = False
