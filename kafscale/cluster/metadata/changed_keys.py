"""Which entries of the metadata have changed since a moment, so that a checkpoint need not have all of them.

Keys alone are remembered. Their values are read from a snapshot when they are needed. A snapshot has nothing that the
store has not published, so whatever it has of a transaction, all of its keys are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kafscale.cluster.metadata.base import MetadataStore
from kafscale.cluster.metadata.changes import ChangeReader


@attrs.define(eq=False, repr=False)
class ChangedKeys:
    """The keys that have changed in a store; it knows none before `begin`."""

    _store: MetadataStore
    _keys: dict[str, None] = attrs.field(factory=dict, init=False)
    _reader: ChangeReader | None = attrs.field(default=None, init=False)

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> Sequence[str]:
        """Return the keys that have changed since `begin`."""
        return list(self._keys)

    def begin(self) -> None:
        """Forget all that has changed until now."""
        self._keys.clear()
        if self._reader is None:
            self._reader = self._store.changes(self._store.revision, self._note)

    def close(self) -> None:
        """Remember no more changes."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _note(self) -> None:
        assert self._reader is not None
        for change in self._reader.drain():
            self._keys.update(dict.fromkeys(change.puts))
            self._keys.update(dict.fromkeys(change.deletes))
