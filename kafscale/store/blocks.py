"""Memory for large objects, in reused blocks of 1 MiB: `--store memory:SIZE`.

Each page of new memory is a fault: copying 64 MiB into new memory takes 48 ms, into used memory 12 ms. `memmove` in a
thread delays the event loop by 0.5 to 2.7 ms, an assignment to slices by 5 to 8 ms.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import attrs

from kafscale.buffers import Buffer

BLOCK_BYTES = 1 << 20


@attrs.frozen(eq=False, repr=False)
class BlockObject:
    """The bytes of an object, in blocks that are full except for the last one."""

    size_bytes: int
    blocks: Sequence[memoryview]

    def read(self, start: int, length_bytes: int) -> bytes:
        """Return a copy, since the blocks are reused when the object is dropped; fewer bytes at the end."""
        end = min(start + length_bytes, self.size_bytes)
        pieces = []
        while start < end:
            number, position = divmod(start, BLOCK_BYTES)
            piece = self.blocks[number][position : position + end - start]
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces)


@attrs.define(eq=False, repr=False)
class BlockPool:
    _free: list[memoryview] = attrs.field(factory=list, init=False)

    def __len__(self) -> int:
        return len(self._free)

    def take(self, size_bytes: int) -> BlockObject:
        """Return an object of this size with undefined bytes."""
        count = -(-size_bytes // BLOCK_BYTES)
        used = [self._free.pop() for _ in range(min(count, len(self._free)))]
        new = [memoryview(mmap.mmap(-1, BLOCK_BYTES)) for _ in range(count - len(used))]
        return BlockObject(size_bytes, used + new)

    def give_back(self, dropped: BlockObject) -> None:
        """Take back the blocks of an object without readers."""
        self._free += dropped.blocks


def fill(target: BlockObject, parts: Sequence[Buffer]) -> None:
    """Copy the joined parts into the object. May be called in a thread."""
    rooms = iter(target.blocks)
    room = memoryview(b"")
    for part in parts:
        source = memoryview(part).cast("B")
        while source:
            room = room or next(rooms)
            size = min(len(room), len(source))
            _copy(room[:size], source[:size])
            room, source = room[size:], source[size:]


def _copy(target: memoryview, source: memoryview) -> None:
    if source.readonly:  # only what is writable tells ctypes its address
        target[:] = source
    else:
        to, origin = ctypes.c_char.from_buffer(target), ctypes.c_char.from_buffer(source)
        ctypes.memmove(ctypes.addressof(to), ctypes.addressof(origin), len(source))
