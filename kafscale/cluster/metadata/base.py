"""The metadata store's interface in etcd's terms: keys, revisions, transactions and changes.

Keys are `/`-separated text (`topics/orders`, `groups/g1/offsets/orders/0`); values are bytes (JSON, written by
`converter`). Every transaction that changes something gets the next revision, and a key remembers the revision that
changed it last. A store publishes each change to its listeners when it is durable, and before its commit returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from kafscale.errors import PlanOutdated, PreconditionFailed
from kafscale.formats.metadata_changes import PlannedFrom as PlannedFrom
from kafscale.formats.metadata_changes import Transaction as Transaction

LOCAL_PREFIX = "local/"  # of entries that are about the data directory, and stay in it
POSITION_KEY = f"{LOCAL_PREFIX}position"  # up to where the local store has the metadata of the bucket

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


# Of the remembered keys and values together. etcd keeps five minutes by default, whatever they take.
REMEMBERED_MAX_BYTES = 4 << 20
KEY_BYTES = 100  # what a key costs beside its characters, about


def root_of(key: str) -> str:
    """Return what a key, or a prefix that ends in `/`, has in front of its first `/`."""
    return key.partition("/")[0]


def _as_tuple(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(keys)


@attrs.frozen
class Change:
    """Changes of a transaction: the keys that it put, with their values, and the keys that it deleted.

    Some keys of `deletes` may never have existed. `roots` are the parts of keys in front of the first `/`.
    """

    revision: int
    puts: Mapping[str, bytes] = attrs.field(factory=dict)
    deletes: Sequence[str] = attrs.field(default=(), converter=_as_tuple)
    roots: frozenset[str] = attrs.field(init=False, eq=False, repr=False)
    size_bytes: int = attrs.field(init=False, eq=False, repr=False)

    @roots.default
    def _find_roots(self) -> frozenset[str]:
        return frozenset(root_of(key) for keys in (self.puts, self.deletes) for key in keys)

    def changes_any_of(self, plan: PlannedFrom) -> bool:
        if any(key in self.puts or key in self.deletes for key in plan.keys):
            return True
        prefixes = tuple(plan.prefixes)
        return bool(prefixes) and any(key.startswith(prefixes) for keys in (self.puts, self.deletes) for key in keys)

    @size_bytes.default
    def _count_bytes(self) -> int:
        keys_bytes = sum(map(len, self.puts)) + sum(map(len, self.deletes))
        return keys_bytes + sum(map(len, self.puts.values())) + KEY_BYTES * (len(self.puts) + len(self.deletes))


Outcome = Change | Exception  # of a transaction: its change, or the reason why it had no effect
Listener = Callable[[Change], None]  # must not wait


def revision_of(outcome: Outcome) -> int:
    """Return the revision of a commit. Raises the error that kept the transaction from having an effect."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.revision


@attrs.define(eq=False, repr=False)
class ChangeLog:
    """The published changes of a metadata store. `revision` is that of the latest change."""

    revision: int = 0
    _changes: deque[Change] = attrs.field(factory=deque, init=False)  # the last one is that of `revision`
    _size_bytes: int = attrs.field(default=0, init=False)
    _listeners: list[Listener] = attrs.field(factory=list, init=False)
    _began_at: int = attrs.field(init=False)
    # The revision at which something below a root has changed last, if that was here. There are a dozen roots.
    _changed_at: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._began_at = self.revision

    def follow(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def unfollow(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def publish(self, outcomes: Iterable[Outcome]) -> None:
        """Tell the listeners of durable changes. A transaction that changed nothing has no revision of its own."""
        for outcome in outcomes:
            if isinstance(outcome, Change) and outcome.revision > self.revision:
                self._append(outcome)

    def _append(self, change: Change) -> None:
        assert change.revision == self.revision + 1, f"no change has revision {self.revision + 1}"
        self.revision = change.revision
        self._changes.append(change)
        self._size_bytes += change.size_bytes
        self._changed_at.update(dict.fromkeys(change.roots, change.revision))
        while self._size_bytes > REMEMBERED_MAX_BYTES:
            self._size_bytes -= self._changes.popleft().size_bytes
        for listener in tuple(self._listeners):
            listener(change)

    def refusal(self, plan: PlannedFrom, unpublished: Iterable[Outcome] = ()) -> PlanOutdated | None:
        """Return why a plan is outdated: something that it was made from has changed since, published or `unpublished`.

        Where the changes are forgotten, anything below the same roots counts.
        """
        later = [outcome for outcome in unpublished if isinstance(outcome, Change)]
        revision = max([self.revision, *(known.revision for known in later)])
        if plan.revision > revision:
            return PlanOutdated(
                f"a plan was made from revision {plan.revision}, and there is only {revision}", revision
            )
        roots = {root_of(key) for keys in (plan.keys, plan.prefixes) for key in keys}
        if any(self._changed_at.get(root, self._began_at) > plan.revision for root in roots):
            count = self.revision - plan.revision
            if count > len(self._changes):
                return PlanOutdated(f"it is forgotten what has changed after revision {plan.revision}", revision)
            later += [self._changes[-distance] for distance in range(1, count + 1)]
        if any(change.revision > plan.revision and change.changes_any_of(plan) for change in later):
            return PlanOutdated(f"what was planned from revision {plan.revision} has changed since", revision)
        return None
