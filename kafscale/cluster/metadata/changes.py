"""The latest changes of a metadata store, in order and without a gap, for its followers.

A store publishes a change when it is durable, and before its commit returns. Only the revision up to which each reader
has read is kept: all read the same changes, of which a bounded number of bytes is remembered. A reader that has fallen
behind those is told so, as after a compaction in etcd, and lists everything again. A reader that takes whenever it is
notified never falls behind.

May not import the stores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from kafscale.concurrency.signals import Signal
from kafscale.errors import ChangesForgotten, PlanOutdated
from kafscale.formats.metadata_changes import PlannedFrom

# Remembered of keys and values together. etcd keeps five minutes by default, whatever they take.
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
        """Tell whether it has changed something that a plan has looked at."""
        if any(key in self.puts or key in self.deletes for key in plan.keys):
            return True
        prefixes = tuple(plan.prefixes)
        return bool(prefixes) and any(key.startswith(prefixes) for keys in (self.puts, self.deletes) for key in keys)

    @size_bytes.default
    def _count_bytes(self) -> int:
        keys_bytes = sum(map(len, self.puts)) + sum(map(len, self.deletes))
        return keys_bytes + sum(map(len, self.puts.values())) + KEY_BYTES * (len(self.puts) + len(self.deletes))


Outcome = Change | Exception  # of a transaction: what it has changed, or why it had no effect


def revision_of(outcome: Outcome) -> int:
    """Return the revision that a commit returns. Raises what kept the transaction from having an effect."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.revision


@attrs.define(eq=False, repr=False)
class ChangeLog:
    """The published changes of a metadata store. `revision` is that of the latest change."""

    revision: int = 0
    _changes: deque[Change] = attrs.field(factory=deque, init=False)  # the last one is that of `revision`
    _size_bytes: int = attrs.field(default=0, init=False)
    _readers: list[ChangeReader] = attrs.field(factory=list, init=False)
    _began_at: int = attrs.field(init=False)
    # The revision at which something below a root has changed last, if that was here. There are a dozen roots.
    _changed_at: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._began_at = self.revision

    def publish(self, outcomes: Iterable[Outcome]) -> None:
        """Tell the readers what is durable now. A transaction that changed nothing has no revision of its own."""
        for outcome in outcomes:
            if isinstance(outcome, Change) and outcome.revision > self.revision:
                self._append(outcome)

    def _append(self, change: Change) -> None:
        assert change.revision == self.revision + 1, f"no change has revision {self.revision + 1}"
        self.revision = change.revision
        self._changes.append(change)
        self._size_bytes += change.size_bytes
        self._changed_at.update(dict.fromkeys(change.roots, change.revision))
        for reader in tuple(self._readers):
            reader.notify()
        while self._size_bytes > REMEMBERED_MAX_BYTES:
            self._size_bytes -= self._changes.popleft().size_bytes

    def skip_to(self, revision: int) -> None:
        """Go on from a later revision, because the changes until then were missed.

        Readers that have not taken them list everything again.
        """
        assert revision > self.revision, f"{revision} is not later than revision {self.revision}"
        self.revision = self._began_at = revision
        self._changes.clear()
        self._changed_at.clear()
        self._size_bytes = 0
        for reader in tuple(self._readers):
            reader.notify()

    def behind(self, after: int) -> list[Change]:
        """The changes whose revisions are greater than `after`. Raises ChangesForgotten."""
        count = self.revision - after
        if not 0 <= count <= len(self._changes):
            raise ChangesForgotten(
                f"the metadata does not remember its changes after revision {after}, only those after "
                f"{self.revision - len(self._changes)} up to {self.revision}: list everything again"
            )
        return [self._changes[-distance] for distance in range(count, 0, -1)]

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
            try:
                later += self.behind(plan.revision)
            except ChangesForgotten:
                return PlanOutdated(f"it is forgotten what has changed after revision {plan.revision}", revision)
        if any(change.revision > plan.revision and change.changes_any_of(plan) for change in later):
            return PlanOutdated(f"what was planned from revision {plan.revision} has changed since", revision)
        return None

    def read(self, after: int, notify: Callable[[], None] | None = None) -> ChangeReader:
        """A reader of what comes after a revision. Raises ChangesForgotten."""
        self.behind(after)
        reader = ChangeReader(self, after, notify)
        self._readers.append(reader)
        return reader

    def forget(self, reader: ChangeReader) -> None:
        self._readers.remove(reader)


@attrs.define(eq=False, repr=False)
class ChangeReader:
    """Reads changes at its own pace, until it is closed. `revision` is that of the last one it has taken.

    The callback is called whenever there is something to take. It must not wait.
    """

    _log: ChangeLog
    revision: int
    _on_change: Callable[[], None] | None
    _more: Signal = attrs.field(factory=Signal, init=False)

    def __enter__(self) -> ChangeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self) -> Sequence[Change]:
        """All that have come since the last call, in order. Raises ChangesForgotten: now and for ever."""
        changes = self._log.behind(self.revision)
        self.revision = self._log.revision
        return changes

    def drain(self) -> Iterator[Change]:
        """All that there are, also those that come while the earlier ones are looked at. Raises ChangesForgotten."""
        while changes := self.take():
            yield from changes

    def check(self) -> None:
        """Raises ChangesForgotten if `take` would."""
        self._log.behind(self.revision)

    async def wait(self) -> None:
        """Wait until there is something to take; return at once if there is."""
        if self._log.revision == self.revision:
            await self._more.wait()

    def notify(self) -> None:
        """Called by the log."""
        if self._on_change is not None:
            self._on_change()
        self._more.wake()

    def close(self) -> None:
        self._log.forget(self)
