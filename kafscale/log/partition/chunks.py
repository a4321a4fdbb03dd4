"""The chunk pool: the memory that produced records live in from the socket until they are in the bucket.

One anonymous mapping that never grows, handed out as runs of whole chunks. A user of a run holds a `Lease`, which is
retained once for each further user. When the pool is exhausted, `acquire` waits: that is the backpressure on producers.
Waiters are served strictly in order, or a stream of small batches would starve a large one.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

import attrs
import trio

from kafscale.metrics import Metrics

CHUNK_BYTES = 16 * 1024  # 10,000 partitions with one small batch each take 160 MiB; Kafka's batch.size is 16 KiB too
SMALL_MAX_CHUNKS = 4  # runs up to this are taken from the low end, longer ones from the high end
PRESSURE_FRACTION = 0.75  # DESIGN section 4, "Memory": flushers are woken early from here on
POISON = 0xA5


@attrs.define(eq=False, repr=False)
class Lease:
    """A share of a run of chunks, made with one reference. The chunks are free after as many releases."""

    _pool: ChunkPool
    _first_chunk: int
    _chunk_count: int
    _view: memoryview
    _reference_count: int = attrs.field(default=1, init=False)

    @property
    def view(self) -> memoryview:
        """The requested bytes, writable. Not to be used after the last release."""
        assert self._reference_count > 0, "a lease was used after its last release"
        return self._view

    @property
    def held_bytes(self) -> int:
        """The size of the lease's whole chunks."""
        return self._chunk_count * self._pool.chunk_bytes

    def retain(self) -> None:
        assert self._reference_count > 0, "a lease was retained after its last release"
        self._reference_count += 1

    def release(self) -> None:
        """Give back one reference; after the last one the chunks are free and waiters are served."""
        assert self._reference_count > 0, "a lease was released once too often"
        self._reference_count -= 1
        if not self._reference_count:
            self._pool._free(self)


@attrs.define(eq=False, repr=False)
class _Waiter:
    size_bytes: int
    granted: trio.Event = attrs.field(factory=trio.Event, init=False)
    lease: Lease | None = attrs.field(default=None, init=False)


@attrs.define(eq=False, repr=False)
class ChunkPool:
    """Runs of chunks from one mapping of `requested_size_bytes`, rounded down to whole chunks.

    Free runs are sorted by address and merged with their neighbours. Small requests take the lowest run that fits,
    large ones the highest, so that small batches, which stay longest, do not fragment the room for large ones.

    The callbacks in `on_pressure` are called when usage rises above 75 %, and whenever an `acquire` must wait. `poison`
    overwrites freed chunks, for tests.
    """

    requested_size_bytes: int
    chunk_bytes: int = CHUNK_BYTES
    poison: bool = attrs.field(default=False, kw_only=True)
    on_pressure: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    _memory: memoryview = attrs.field(init=False)
    _chunk_count: int = attrs.field(init=False)
    _used_chunks: int = attrs.field(default=0, init=False)
    _pressure_chunks: int = attrs.field(init=False)
    _lease_count: int = attrs.field(default=0, init=False)
    _free_starts: list[int] = attrs.field(init=False)  # first chunk of each free run, ascending, no two adjacent
    _free_counts: list[int] = attrs.field(init=False)  # length of each, in the same order
    _waiters: deque[_Waiter] = attrs.field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        self._chunk_count = self.requested_size_bytes // self.chunk_bytes
        assert self._chunk_count > 0, "a chunk pool of less than one chunk"
        mapping = mmap.mmap(-1, self._chunk_count * self.chunk_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory = memoryview(mapping)
        self._pressure_chunks = int(self._chunk_count * PRESSURE_FRACTION)
        self._free_starts = [0]
        self._free_counts = [self._chunk_count]

    @property
    def size_bytes(self) -> int:
        return self._chunk_count * self.chunk_bytes

    @property
    def used_bytes(self) -> int:
        return self._used_chunks * self.chunk_bytes

    @property
    def under_pressure(self) -> bool:
        """Tell whether more than 75 % is used, or somebody waits."""
        return self._used_chunks >= self._pressure_chunks or bool(self._waiters)

    @property
    def waiting_count(self) -> int:
        return len(self._waiters)

    def acquire_nowait(self, size_bytes: int) -> Lease | None:
        """Return a lease of `size_bytes`, or None when no run is long enough or others are waiting already.

        Raises ValueError for a size that the pool can never have.
        """
        if self._waiters:
            self._check_size(size_bytes)
            return None
        return self._take(size_bytes)

    async def acquire(self, size_bytes: int) -> Lease:
        """Wait for a lease, in the order of the calls. Raises ValueError if it exceeds the whole pool."""
        self._check_size(size_bytes)
        await trio.lowlevel.checkpoint()
        lease = self.acquire_nowait(size_bytes)
        if lease is not None:
            return lease
        waiter = _Waiter(size_bytes)
        self._waiters.append(waiter)
        self._tell_pressure()
        try:
            await waiter.granted.wait()
        except trio.Cancelled:
            if waiter.lease is not None:  # given to it after it was cancelled, and before it learned of that
                waiter.lease.release()
            else:
                self._waiters.remove(waiter)
                self._serve_waiters()  # it may have been the one that held back the others
            raise
        assert waiter.lease is not None
        return waiter.lease

    def register(self, metrics: Metrics) -> None:
        metrics.gauge("kafscale_pool_bytes", "Size of the chunk pool.", lambda: self.size_bytes)
        metrics.gauge("kafscale_pool_used_bytes", "Bytes of the chunk pool in use.", lambda: self.used_bytes)
        metrics.gauge(
            "kafscale_pool_waiting", "Produces that wait for memory of the chunk pool.", lambda: self.waiting_count
        )

    def _check_size(self, size_bytes: int) -> None:
        if not 0 < size_bytes <= self.size_bytes:
            raise ValueError(f"a lease of {size_bytes} bytes from a pool of {self.size_bytes}")

    def _take(self, size_bytes: int) -> Lease | None:
        count = -(-size_bytes // self.chunk_bytes)
        if count <= 0 or count > self._chunk_count - self._used_chunks:
            self._check_size(size_bytes)
            return None
        start = self._take_lowest(count) if count <= SMALL_MAX_CHUNKS else self._take_highest(count)
        if start is None:
            return None
        position = start * self.chunk_bytes
        lease = Lease(self, start, count, self._memory[position : position + size_bytes])
        self._lease_count += 1
        used_before = self._used_chunks
        self._used_chunks += count
        if used_before < self._pressure_chunks <= self._used_chunks:
            self._tell_pressure()
        return lease

    def _tell_pressure(self) -> None:
        for tell in self.on_pressure:
            tell()

    def _take_lowest(self, count: int) -> int | None:
        for index, free_count in enumerate(self._free_counts):
            if free_count >= count:
                start = self._free_starts[index]
                self._free_starts[index] += count
                self._shorten(index, count)
                return start
        return None

    def _take_highest(self, count: int) -> int | None:
        for index in range(len(self._free_counts) - 1, -1, -1):
            free_count = self._free_counts[index]
            if free_count >= count:
                start = self._free_starts[index] + free_count - count
                self._shorten(index, count)
                return start
        return None

    def _shorten(self, index: int, count: int) -> None:
        self._free_counts[index] -= count
        if not self._free_counts[index]:
            del self._free_starts[index], self._free_counts[index]

    def _free(self, lease: Lease) -> None:
        start, count = lease._first_chunk, lease._chunk_count
        if self.poison:
            position, size = start * self.chunk_bytes, count * self.chunk_bytes
            self._memory[position : position + size] = bytes([POISON]) * size
        self._used_chunks -= count
        self._lease_count -= 1
        starts, counts = self._free_starts, self._free_counts
        index = bisect_left(starts, start)
        joins_next = index < len(starts) and starts[index] == start + count
        if index and starts[index - 1] + counts[index - 1] == start:
            index -= 1
            counts[index] += count
            if joins_next:
                counts[index] += counts[index + 1]
                del starts[index + 1], counts[index + 1]
        elif joins_next:
            starts[index] = start
            counts[index] += count
        else:
            starts.insert(index, start)
            counts.insert(index, count)
        # No other run was long enough for the first waiter, so it is worth a look only if the one made here is.
        if self._waiters and counts[index] * self.chunk_bytes >= self._waiters[0].size_bytes:
            self._serve_waiters()

    def _serve_waiters(self) -> None:
        while self._waiters:
            lease = self._take(self._waiters[0].size_bytes)
            if lease is None:
                return
            waiter = self._waiters.popleft()
            waiter.lease = lease
            waiter.granted.set()
