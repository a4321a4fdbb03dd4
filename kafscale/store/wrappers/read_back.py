"""Reading an object back: whether it is what a conditional write whose outcome is unknown was to write."""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.buffers import Buffer, cut, size_of
from kafscale.errors import NotFound
from kafscale.store.base import ObjectStore

READ_BACK_BYTES = 4 * 1024 * 1024  # compared between two awaits: about 1 ms
COMPARED_BYTES = 64 * 1024


async def etag_if_equal(store: ObjectStore, key: str, parts: Sequence[Buffer]) -> str | None:
    """The ETag of the object if it holds exactly these parts; None also if there is none. Raises StoreError."""
    try:
        found = await store.head(key)
        if found.size_bytes != size_of(parts):
            return None
        for number, expected in enumerate(cut(parts, READ_BACK_BYTES)):
            piece = await store.get_range(key, number * READ_BACK_BYTES, READ_BACK_BYTES)
            if piece.etag != found.etag or not _are_equal(expected, memoryview(piece.data)):
                return None
    except NotFound:
        return None  # deleted meanwhile: whosever it was, it is no longer there
    return found.etag


def _are_equal(expected: Sequence[Buffer], data: memoryview) -> bool:
    """Tell whether the data is what was expected.

    A CRC-32C would not do: of data that carries CRC-32Cs of its own, as ours does, it tells little. Copied in pieces
    that stay in the cache, since memoryviews are compared item by item, which takes 30 times as long.
    """
    position = 0
    for parts in cut(expected, COMPARED_BYTES):
        joined = b"".join(parts)
        if joined != bytes(data[position : position + len(joined)]):
            return False
        position += len(joined)
    return position == len(data)
