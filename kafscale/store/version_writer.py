"""Writes objects that replace one another (`kafscale.store.versions`), and deletes unneeded ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import attrs

from kafscale.buffers import Buffer
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import guarded
from kafscale.store.paths import NumberedKey, NumberedKind

KEPT_COUNT = 2


@attrs.define(eq=False, kw_only=True, repr=False)
class VersionWriter:
    """Writes the objects of one epoch, and deletes all but the last two and needed ones."""

    store: ObjectStore
    namespace: str
    kind: NumberedKind
    epoch: int
    _keys: deque[NumberedKey] = attrs.field(factory=deque, init=False)
    _written_count: int = attrs.field(default=0, init=False)

    def inherit(self, keys: Sequence[NumberedKey]) -> None:
        """Take over existing objects; an earlier attempt may have left some of this epoch."""
        self._keys.extend(keys)
        own = [key.number for key in keys if key.epoch == self.epoch]
        self._written_count = max([self._written_count, *(number + 1 for number in own)])

    def of_the_epoch_before(self) -> Sequence[NumberedKey]:
        earlier = [key for key in self._keys if key.epoch != self.epoch]
        return [key for key in earlier if key.epoch == earlier[-1].epoch]

    async def write(self, parts: Sequence[Buffer]) -> NumberedKey:
        """Write an object and return its key. Raises StoreError; then it may have been written."""
        key = NumberedKey(namespace=self.namespace, kind=self.kind, epoch=self.epoch, number=self._written_count)
        self._written_count += 1
        await self.store.put_if_absent(key.key, parts)
        self._keys.append(key)
        return key

    async def trim(self, needed: Iterable[NumberedKey] = ()) -> None:
        """Delete all but the last two objects and those that are `needed`. Raises StoreError, Fenced."""
        kept = {*needed, *list(self._keys)[-KEPT_COUNT:]}
        for key in [key for key in self._keys if key not in kept]:
            await guarded(self.store).delete_in_turn([[key.key]])
            self._keys.remove(key)
