"""Keeps a registry's memory as the metadata store is: one function applies each change, whichever broker committed it.

A registry decides on a change and commits it here. Its memory changes only when the change comes back from the store,
in order of revision, with the changes that others have committed; the commit returns after that. So a caller finds its
change in memory, and a commit whose caller was cancelled, or does not know the outcome, is applied when it comes.
Entries that exist at the start are applied by the same function, as one change.

An entry that a later version has written and this one can't read (`read`) ends no serving broker: memory keeps the
value before, and this broker does not change that entry. A start refuses it.

A store that is elsewhere may have forgotten changes before they have come here, as after an outage of the network. Then
`run` lists everything, and the difference from memory is applied by the same function, as one change.

A decision that is made from memory is committed with the keys that it was planned from (`commit_planned`). If another
broker has changed those, the store refuses, and the registry plans anew when its memory has followed.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

import attrs
import trio

from kafscale.cluster.metadata.base import Entry, MetadataStore, Transaction
from kafscale.cluster.metadata.changes import Change, ChangeReader
from kafscale.concurrency.signals import Signal
from kafscale.errors import (
    ChangesForgotten,
    DamagedObject,
    KafkaError,
    PlanOutdated,
    PreconditionFailed,
    StorageFull,
    StoreError,
)
from kafscale.wire.error_codes import INVALID_REQUEST, REQUEST_TIMED_OUT

T = TypeVar("T")

# Of a transaction, while others change the keys of its plan again and again; the client may try again.
PLAN_ATTEMPTS_MAX_COUNT = 10
LOAD_ATTEMPTS_MAX_COUNT = 5
NOTHING_APPLIED = -1  # no entry is as old
# Between two listings of everything. Kafka's brokers ask a controller that does not answer every 50 ms to 1 s.
LIST_PAUSE_LEAST_SECONDS, LIST_PAUSE_MOST_SECONDS = 0.1, 10.0

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class _Pauses:
    """Waits twice as long each time, and by chance somewhat less, until it was not needed for a while."""

    _seconds: float = attrs.field(default=LIST_PAUSE_LEAST_SECONDS, init=False)
    _ended_at: float = attrs.field(default=-math.inf, init=False)

    async def sleep(self) -> None:
        if trio.current_time() - self._ended_at > LIST_PAUSE_MOST_SECONDS:
            self._seconds = LIST_PAUSE_LEAST_SECONDS
        await trio.sleep(random.uniform(self._seconds / 2, self._seconds))
        self._seconds = min(2 * self._seconds, LIST_PAUSE_MOST_SECONDS)
        self._ended_at = trio.current_time()


class Read(Protocol):
    """Decodes a value of a key; None where what is known of the key stays as it is (`Follower.read`)."""

    def __call__(self, key: str, value: bytes, decode: Callable[[bytes], T]) -> T | None: ...


def read_all(key: str, value: bytes, decode: Callable[[bytes], T]) -> T | None:
    """Decode a value. Raises what that does."""
    return decode(value)


@attrs.define(eq=False, repr=False)
class Follower:
    """Follows some prefixes of keys, each of which ends in `/`, from the moment it is made.

    `apply` gets every change that has such a key, with all of its keys. It must not wait; what it calls may submit
    changes, but a change is applied as a whole before the next one. `known_keys` tells the keys that memory has, of
    those that may ever be deleted. `unreadable` are keys whose value can't be read, and why.
    """

    store: MetadataStore
    prefixes: tuple[str, ...]
    _apply: Callable[[Change], None]
    _known_keys: Callable[[], Iterable[str]]
    unreadable: dict[str, str] = attrs.field(factory=dict, init=False)
    _roots: frozenset[str] = attrs.field(init=False)
    _reader: ChangeReader = attrs.field(init=False)
    _applied_revision: int = attrs.field(init=False)
    _applied: Signal = attrs.field(factory=Signal, init=False)
    _is_busy: bool = attrs.field(default=False, init=False)
    _listing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _is_loaded: bool = attrs.field(default=False, init=False)  # has all that there was when following began
    _fell_behind: Signal = attrs.field(factory=Signal, init=False)
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
        """Apply what the store has, and return it. Raises what the store does, ChangesForgotten if it changes too fast.

        What is committed meanwhile is in it, or applied behind it.
        """
        pauses = _Pauses()
        async with self._listing:
            self._is_loaded = False
            for _ in range(LOAD_ATTEMPTS_MAX_COUNT - 1):
                try:
                    return await self._list()
                except ChangesForgotten:
                    await pauses.sleep()
            return await self._list()

    def close(self) -> None:
        """Follow no more."""
        self._reader.close()

    async def run(self) -> None:
        """List everything again whenever changes are forgotten before they were applied, until cancelled.

        That is where the store is elsewhere, and was not heard of for too long. One that can't be reached is asked
        again, at lengthening intervals; so is one that forgets its changes all the time. Raises StorageFailed, and what
        applying raises.
        """
        pauses = _Pauses()
        while True:
            await self._fell_behind.wait()
            try:
                async with self._listing:
                    if self._fell_behind.is_set():
                        await self._list()
            except (StoreError, ChangesForgotten) as exc:
                logger.warning("what %s has of the metadata is old: %s", ", ".join(self.prefixes), exc)
            await pauses.sleep()

    async def _list(self) -> Change:
        """Apply, as one change, what is not known in memory. Raises StoreError.

        It is what is listed, and on that what has changed while it was. Raises ChangesForgotten where that is too much.
        """
        known_revision = self._applied_revision if self._is_loaded else NOTHING_APPLIED
        self._is_busy = True
        self._fell_behind.clear()
        try:
            self._reader.close()
            self._reader = self.store.changes(self.store.revision, self._catch_up)
            entries = [entry for prefix in self.prefixes for entry in await self.store.list(prefix)]
            change = self._difference(entries, self._reader.take(), known_revision)
            self._apply_change(change)
            self._applied_revision = change.revision
            self._is_loaded = True
        except BaseException:
            self._fell_behind.set()  # what the reader gives now does not follow what is in memory
            raise
        finally:
            self._is_busy = False
        self._catch_up()
        return change

    def _difference(self, listed: Sequence[Entry], later: Sequence[Change], known_revision: int) -> Change:
        """Return the changes from memory to the listing, and later ones; then memory is as the reader is."""
        present = {entry.key for entry in listed}
        puts = {entry.key: entry.value for entry in listed if entry.revision > known_revision}
        for change in later:
            for key in change.deletes:
                present.discard(key)
                puts.pop(key, None)
            for key in filter(self._is_followed, change.puts):
                present.add(key)
                puts[key] = change.puts[key]
        known = dict.fromkeys((*self._known_keys(), *self.unreadable))
        return Change(self._reader.revision, puts, [key for key in known if key not in present])

    def read(self, key: str, value: bytes, decode: Callable[[bytes], T]) -> T | None:
        """Decode a value for `apply`; None if that is not possible: then memory keeps the value before.

        Raises DamagedObject during the load at a start.
        """
        try:
            found = decode(value)
        except DamagedObject as exc:
            if not self._is_loaded:
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
        """Raises KafkaError if one of these can't be read: to change it would undo what a later version has written."""
        for key in self.unreadable.keys() & set(keys) if self.unreadable else ():
            raise KafkaError(
                INVALID_REQUEST,
                f"{key} was written by a later version of KafScale: ask a broker of that version, or upgrade this one",
            )

    def _apply_change(self, change: Change) -> None:
        for key in self.unreadable.keys() & set(change.deletes) if self.unreadable else ():
            del self.unreadable[key]
        self._apply(change)

    def _is_followed(self, key: str) -> bool:
        return key.startswith(self.prefixes)

    async def commit(self, transaction: Transaction) -> None:
        """Return when it is durable and applied. Raises what the store does, and KafkaError as `check_readable`."""
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
        """Wait for an earlier commit whose outcome is not known; call it before deciding from memory."""
        if self._outcome_unknown:
            # Takes effect, by doing nothing, after all that came before it. What is planned may be essential.
            await self.store.commit(Transaction(essential=True))
            self._outcome_unknown = False

    def _catch_up(self) -> None:
        if self._is_busy or self._fell_behind.is_set():
            return
        self._is_busy = True
        try:
            for change in self._reader.drain():
                if not self._roots.isdisjoint(change.roots):
                    self._apply_change(change)
                self._applied_revision = change.revision
        except ChangesForgotten:
            self._fell_behind.set()
        finally:
            self._is_busy = False
        self._applied.wake()
