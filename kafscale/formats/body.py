"""Read the batches of a segment from front to back in pieces, so that a large one need not fit into memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, StoreUnavailable
from kafscale.store.base import ObjectStore
from kafscale.wire.batch_header import HEADER_BYTES, LENGTH_END, parse_header

PIECE_BYTES = 4 << 20  # at 20 ms and 100 MB/s a GET, two thirds of the time are the transfer
CUTS_MAX_COUNT = 20  # of the replies for one object; each is gone on from, but not for ever


@attrs.frozen
class LocatedBatch:
    """One record batch and its position in the `.kfs`."""

    position: int
    data: memoryview


@attrs.define(eq=False, repr=False)
class BatchSplitter:
    """Cuts a segment's pieces into batches. `position` is that of the next batch, `end` where all end."""

    position: int
    end: int
    _kept: list[Buffer] = attrs.field(factory=list, init=False)
    _kept_bytes: int = attrs.field(default=0, init=False)
    _wanted_bytes: int = attrs.field(default=HEADER_BYTES, init=False)

    def feed(self, piece: Buffer) -> Iterator[LocatedBatch]:
        """Yield the batches that end in this piece; take them all. Raises KafkaError."""
        self._kept.append(piece)
        self._kept_bytes += len(piece)
        if self._kept_bytes < self._wanted_bytes:
            return
        view = memoryview(piece if len(self._kept) == 1 else b"".join(self._kept))
        start = 0
        self._wanted_bytes = HEADER_BYTES
        while len(view) - start >= HEADER_BYTES:
            size = self._size_of(view[start:])
            if start + size > len(view):
                self._wanted_bytes = size
                break
            found = LocatedBatch(self.position, view[start : start + size])
            self.position += size
            start += size
            yield found
        self._kept, self._kept_bytes = [bytes(view[start:])], len(view) - start

    def _size_of(self, view: memoryview) -> int:
        header = parse_header(view)
        if header.batch_length < HEADER_BYTES - LENGTH_END or self.position + header.size_bytes > self.end:
            raise CorruptBatch(
                f"a record batch of length {header.batch_length} {self.end - self.position} bytes before the end"
            )
        return header.size_bytes

    def finish(self) -> None:
        """End the input. Raises CorruptBatch if a batch is cut off."""
        if self._kept_bytes:
            raise CorruptBatch(f"a record batch is cut off after {self._kept_bytes} bytes")


async def read_pieces(store: ObjectStore, key: str, start: int, end: int) -> AsyncGenerator[Buffer, None]:
    """Yield the bytes of an object from `start` to `end` (exclusive), piece by piece.

    Raises NotFound, StoreError; StoreUnavailable if replies are cut off repeatedly.
    """
    cut_count = 0
    while start < end:
        wanted_bytes = min(PIECE_BYTES, end - start)
        data = (await store.get_range(key, start, wanted_bytes)).data
        cut_count += len(data) < wanted_bytes
        if not data or cut_count > CUTS_MAX_COUNT:
            raise StoreUnavailable(
                f"{key}: replies of the store come cut off, the last one after {len(data)} of {wanted_bytes} bytes "
                f"from {start} on"
            )
        yield data
        start += len(data)
