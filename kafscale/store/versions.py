"""Objects that replace one another and are never overwritten: each is written once, and the newest intact one wins.

The key is made of the writer's epoch and a number. So a broker that has been superseded can't get in front of its
successor, a write that was cut short harms nothing, and a damaged one leaves the one before it.

Here they are found; `kafscale.store.version_writer` writes them. May not import trio, as Spark's readers use it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject, NotFound
from kafscale.store.base import ObjectStore
from kafscale.store.paths import NumberedKey, NumberedKind, parse_numbered_key, system_prefix

LOOKS_MAX_COUNT = 10  # between two of them at least one object was written and one deleted

T = TypeVar("T")

logger = logging.getLogger(__name__)


@attrs.frozen
class Versions(Generic[T]):
    """The keys of all, oldest first; the newest intact one; and what was wrong with those that are newer."""

    keys: Sequence[NumberedKey]
    newest: T | None
    damage: Sequence[DamagedObject] = ()


async def undisturbed(look: Callable[[], Awaitable[T]]) -> T:
    """List and read from the beginning again if what was listed had gone before it was read.

    Its writer had written a newer one before. Raises the errors of `look`.
    """
    for _ in range(LOOKS_MAX_COUNT - 1):
        try:
            return await look()
        except NotFound as exc:
            logger.info("%s has been deleted since it was listed: looking again", exc)
    return await look()


async def list_versions(store: ObjectStore, namespace: str, kind: NumberedKind) -> Sequence[NumberedKey]:
    """List the objects of one kind, oldest first. Raises StoreError."""
    keys: list[NumberedKey] = []
    async with aclosing(store.list(system_prefix(kind, namespace=namespace))) as pages:
        async for page in pages:
            keys += [key for info in page if (key := parse_numbered_key(info.key)) is not None]
    return keys


async def find_versions(
    store: ObjectStore, namespace: str, kind: NumberedKind, decode: Callable[[str, Buffer], T]
) -> Versions[T]:
    """`decode` gets key and content, and raises DamagedObject. Raises StoreError."""

    async def look() -> Versions[T]:
        keys = await list_versions(store, namespace, kind)
        damage: list[DamagedObject] = []
        for key in reversed(keys):
            try:
                return Versions(keys, decode(key.key, (await store.get(key.key)).data), damage)
            except DamagedObject as exc:
                damage.append(exc)
        return Versions(keys, None, damage)

    return await intact(look)


async def intact(look: Callable[[], Awaitable[Versions[T]]]) -> Versions[T]:
    """Look, as `undisturbed` does, and once more if something was damaged: it may only have come so.

    An older one in its place would be what is long past.
    """
    found = await undisturbed(look)
    return await undisturbed(look) if found.damage else found
