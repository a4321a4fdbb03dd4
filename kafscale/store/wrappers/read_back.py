"""Reading an object back: whether it is what a conditional write whose outcome is unknown was to write."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kafscale.errors import NotFound
from kafscale.store.base import Buffer, ObjectStore
from kafscale.store.wrappers.metered import size_of

READ_BACK_BYTES = 4 * 1024 * 1024  # compared between two awaits: about 1 ms
COMPARED_BYTES = 64 * 1024


async def etag_if_equal(store: ObjectStore, key: str, parts: Sequence[Buffer]) -> str | None:
    """The ETag of the object if it holds exactly these parts; None also if there is none. Raises StoreError."""
    try:
        found = await store.head(key)
        if found.size_bytes != size_of(parts):
            return None
        rest = deque(memoryview(part).cast("B") for part in parts)
        for start in range(0, found.size_bytes, READ_BACK_BYTES):
            piece = await store.get_range(key, start, READ_BACK_BYTES)
            if piece.etag != found.etag or not _take_equal(rest, memoryview(piece.data)):
                return None
    except NotFound:
        return None  # deleted meanwhile: whosever it was, it is no longer there
    return found.etag


def _take_equal(rest: deque[memoryview], data: memoryview) -> bool:
    """Take as many bytes as `data` has from the front of `rest`; whether they are the same.

    A CRC-32C would not do: of data that carries CRC-32Cs of its own, as ours does, it tells little. Copied in pieces
    that stay in the cache, since memoryviews are compared item by item, which takes 30 times as long.
    """
    while data:
        part = rest.popleft()
        length = min(len(part), len(data), COMPARED_BYTES)
        if bytes(part[:length]) != bytes(data[:length]):
            return False
        if length < len(part):
            rest.appendleft(part[length:])
        data = data[length:]
    return True
