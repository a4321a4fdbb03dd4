"""Objects that replace one another: each is written once, and the newest intact one counts.

Their keys have the writer's epoch and a number, so a superseded broker can't get in front of its successor, and a write
that was cut short or is damaged leaves the one before it. Imports no trio, as Spark's readers use it.
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
    """All keys, oldest first; the newest intact object; and the damage of newer ones."""

    keys: Sequence[NumberedKey]
    newest: T | None
    damage: Sequence[DamagedObject] = ()


async def undisturbed(look: Callable[[], Awaitable[T]]) -> T:
    """Call `look` again if an object was deleted between its listing and reading: a newer one exists then."""
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
    """Find the newest intact object. `decode` gets key and content, and raises DamagedObject. Raises StoreError."""

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
    """Call `look` as `undisturbed` does, and again if something was damaged: perhaps only on its way."""
    found = await undisturbed(look)
    return await undisturbed(look) if found.damage else found
