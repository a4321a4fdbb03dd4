"""Reading the batches of a segment in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from itertools import repeat

import attrs
import pytest

from kafscale.errors import StoreUnavailable
from kafscale.formats import body
from kafscale.formats.body import read_pieces
from kafscale.store.base import ForwardingStore
from kafscale.store.memory import MemoryStore

CONTENT = bytes(range(256))


@attrs.define
class CuttingStore(ForwardingStore):
    """Gives so many bytes of each range, then all of them."""

    sizes: Iterator[int]

    async def get_range(self, key, start, length_bytes):
        part = await self.store.get_range(key, start, length_bytes)
        return attrs.evolve(part, data=part.data[: next(self.sizes, length_bytes)])


async def content_of(sizes) -> bytes:
    store = MemoryStore()
    await store.put("key", [CONTENT])
    async with aclosing(read_pieces(CuttingStore(store, iter(sizes)), "key", 10, 250)) as pieces:
        return b"".join([bytes(piece) async for piece in pieces])


async def test_pieces_are_the_bytes_in_order(monkeypatch):
    assert await content_of([]) == CONTENT[10:250]
    monkeypatch.setattr(body, "PIECE_BYTES", 7)
    assert await content_of([]) == CONTENT[10:250]


async def test_a_reply_that_is_cut_off_is_gone_on_from():
    assert await content_of([100, 1, 50]) == CONTENT[10:250]


@pytest.mark.parametrize("sizes", [[0], [100, 0], repeat(1)], ids=["nothing", "then nothing", "always one byte"])
async def test_replies_that_are_always_cut_off_end_the_reading(sizes):
    """The reading had no end."""
    with pytest.raises(StoreUnavailable, match="key: replies of the store come cut off"):
        await content_of(sizes)
