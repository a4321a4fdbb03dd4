"""Objects that replace one another and are never overwritten: each is written once, and the newest intact one wins.

The key is made of the writer's epoch and a number. So a broker that has been superseded can't get in front of its
successor, a write that was cut short harms nothing, and a damaged one leaves the one before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

import attrs

from kafscale.errors import DamagedObject
from kafscale.store.base import Buffer, ObjectStore
from kafscale.store.paths import NumberedKey, NumberedKind, parse_numbered_key, system_prefix

KEPT_COUNT = 2

T = TypeVar("T")


@attrs.frozen
class Versions(Generic[T]):
    """The keys of all, oldest first; the newest intact one; and what was wrong with those that are newer."""

    keys: Sequence[NumberedKey]
    newest: T | None
    damage: Sequence[DamagedObject] = ()


async def find_versions(
    store: ObjectStore, namespace: str, kind: NumberedKind, decode: Callable[[str, Buffer], T]
) -> Versions[T]:
    """`decode` gets key and content, and raises DamagedObject. Raises StoreError."""
    keys: list[NumberedKey] = []
    async with aclosing(store.list(system_prefix(kind, namespace=namespace))) as pages:
        async for page in pages:
            keys += [key for info in page if (key := parse_numbered_key(info.key)) is not None]
    damage: list[DamagedObject] = []
    for key in reversed(keys):
        try:
            return Versions(keys, decode(key.key, (await store.get(key.key)).data), damage)
        except DamagedObject as exc:
            damage.append(exc)
    return Versions(keys, None, damage)


@attrs.define(eq=False, kw_only=True)
class VersionWriter:
    """Writes those of one epoch, and deletes all but the last two."""

    store: ObjectStore
    namespace: str
    kind: NumberedKind
    epoch: int
    _keys: deque[NumberedKey] = attrs.field(factory=deque, init=False)
    _written_count: int = attrs.field(default=0, init=False)

    def inherit(self, keys: Sequence[NumberedKey]) -> None:
        """Those of earlier epochs, which are deleted in time."""
        self._keys.extend(keys)

    async def write(self, parts: Sequence[Buffer]) -> None:
        """Raises StoreError; it may have been written then."""
        key = NumberedKey(namespace=self.namespace, kind=self.kind, epoch=self.epoch, number=self._written_count)
        self._written_count += 1
        await self.store.put_if_absent(key.key, parts)
        self._keys.append(key)

    async def trim(self) -> None:
        """Delete all but the last two. Raises StoreError."""
        while len(self._keys) > KEPT_COUNT:
            await self.store.delete([self._keys[0].key])
            self._keys.popleft()
