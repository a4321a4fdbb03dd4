"""Event log of a simulation, with virtual times: to compare two runs, and to read after a failure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import TypeVar

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.errors import StoreError
from kafscale.store.base import ForwardingStore, ObjectInfo, ObjectPart, ObjectStore

T = TypeVar("T")


@attrs.define(eq=False)
class EventLog:
    _noted: list[tuple[float, str]] = attrs.field(factory=list, init=False)

    def note(self, text: str) -> None:
        self._noted.append((trio.current_time(), text))

    @property
    def lines(self) -> list[str]:
        return [f"{seconds:.6f} {text}" for seconds, text in self._noted]

    @property
    def digest(self) -> str:
        return sha256("\n".join(self.lines).encode()).hexdigest()


@attrs.define(eq=False)
class LoggedStore(ForwardingStore):
    """Wrapper of a store that logs each operation when it ends, under `name`."""

    store: ObjectStore
    log: EventLog
    name: str

    async def get(self, key: str) -> ObjectPart:
        return await self._logged(f"get {key}", self.store.get(key))

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        wanted = self.store.get_range(key, start, length_bytes)
        return await self._logged(f"get_range {key} {start}+{length_bytes}", wanted)

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        return await self._logged(f"get_tail {key} {length_bytes}", self.store.get_tail(key, length_bytes))

    async def head(self, key: str) -> ObjectInfo:
        return await self._logged(f"head {key}", self.store.head(key))

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        return await self._logged(f"put {key}", self.store.put(key, parts))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        return await self._logged(f"put_if_absent {key}", self.store.put_if_absent(key, parts))

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        return await self._logged(f"put_if_match {key}", self.store.put_if_match(key, parts, etag))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        async with aclosing(self.store.list(prefix, start_after=start_after)) as pages:
            async for page in pages:
                self.log.note(f"{self.name} list {prefix}: {len(page)}")
                yield page

    async def delete(self, keys: Sequence[str]) -> None:
        await self._logged(f"delete {' '.join(keys)}", self.store.delete(keys))

    async def _logged(self, what: str, operation: Awaitable[T]) -> T:
        outcome = "cancelled"
        try:
            result = await operation
            outcome = "done"
        except StoreError as exc:
            outcome = type(exc).__name__
            raise
        finally:
            self.log.note(f"{self.name} {what}: {outcome}")
        return result
