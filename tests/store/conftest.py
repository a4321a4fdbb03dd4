"""The stores that the contract suite runs against: one entry in STORES each."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from kafscale.store.base import ObjectStore
from kafscale.store.file import FileStore
from kafscale.store.memory import MemoryStore


@asynccontextmanager
async def open_file_store(path: Path) -> AsyncIterator[ObjectStore]:
    async with aclosing(await FileStore.open(path)) as store:
        yield store


@asynccontextmanager
async def open_memory_store(path: Path) -> AsyncIterator[ObjectStore]:
    async with aclosing(MemoryStore()) as store:
        yield store


# Each gives an empty bucket; the path is an empty directory that it may use.
STORES: dict[str, Callable[[Path], AbstractAsyncContextManager[ObjectStore]]] = {
    "file": open_file_store,
    "memory": open_memory_store,
}


@pytest.fixture(params=STORES)
async def store(request, tmp_path):
    """An empty bucket of each implementation and behind each wrapper."""
    async with STORES[request.param](tmp_path) as opened:
        yield opened
