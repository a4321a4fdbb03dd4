"""Lists of buffers that are written in order without being joined.

The length of a buffer is its size in bytes. Work is linear in the number of buffers. Imports nothing of KafScale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Final

Buffer = bytes | bytearray | memoryview

IOV_MAX_COUNT: Final = 1024  # the most buffers that one system call takes on Linux


def size_of(buffers: Iterable[Sized]) -> int:
    return sum(map(len, buffers))


def cut(buffers: Iterable[Buffer], size_bytes: int) -> Iterator[list[Buffer]]:
    """Return the bytes in lists of `size_bytes`, the last one shorter; buffers stay whole where possible."""
    gathered: list[Buffer] = []
    room_bytes = size_bytes
    for buffer in buffers:
        while len(buffer) >= room_bytes:
            view = memoryview(buffer)
            yield [*gathered, view[:room_bytes]]
            buffer, gathered, room_bytes = view[room_bytes:], [], size_bytes
        if buffer:
            gathered.append(buffer)
            room_bytes -= len(buffer)
    if gathered:
        yield gathered


def pieces(buffers: Iterable[Buffer], max_bytes: int) -> Iterator[memoryview]:
    """Return the bytes in pieces of at most `max_bytes`: small buffers are joined, large ones only cut."""
    joined = bytearray()
    for buffer in buffers:
        if len(joined) + len(buffer) <= max_bytes:
            joined += buffer
            continue
        if joined:
            yield memoryview(joined)
            joined = bytearray()
        if len(buffer) <= max_bytes // 2:
            joined += buffer
            continue
        yield from slices_of(buffer, max_bytes)
    if joined:
        yield memoryview(joined)


def slices_of(buffer: Buffer, max_bytes: int) -> Iterator[memoryview]:
    """Return slices of `max_bytes`, the last one shorter."""
    view = memoryview(buffer)
    for start in range(0, len(view), max_bytes):
        yield view[start : start + max_bytes]


def drop_first(buffers: list[Buffer], size_bytes: int) -> None:
    """Remove `size_bytes` from the front of the list, as after a partial write, and empty buffers there."""
    dropped_count = 0
    for buffer in buffers:
        if size_bytes < len(buffer):
            if size_bytes:
                buffers[dropped_count] = memoryview(buffer)[size_bytes:]
            break
        size_bytes -= len(buffer)
        dropped_count += 1
    del buffers[:dropped_count]


def copy_into(target: memoryview, buffers: Iterable[Buffer]) -> int:
    """Copy the joined buffers to the start of the target, and return their size. They must fit."""
    end = 0
    for buffer in buffers:
        start, end = end, end + len(buffer)
        target[start:end] = buffer
    return end
