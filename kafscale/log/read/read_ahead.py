"""Read ahead of consumers that go through a partition in order: docs/decisions/0015-read-ahead.md.

A stream is one consumer's path through one partition: a fetch continues the stream that ended where it begins. Nothing
waits for a piece: it is skipped if there is no room, and a fetch reads for itself. While more than WASTE_MAX_FRACTION
of the served bytes were read in vain, a stream may be ahead only by that fraction of the bytes it took.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable

import attrs
import trio

from kafscale.errors import DamagedObject, StoreError
from kafscale.formats.manifest import Segment
from kafscale.formats.segment import Footer
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.tail import Slices
from kafscale.log.read.checking import are_whole
from kafscale.log.read.disk_cache import DiskCache
from kafscale.log.read.footers import Footers
from kafscale.log.read.ranges import whole
from kafscale.log.read.segment_cache import Range, SegmentCache
from kafscale.metrics import Metrics
from kafscale.store.wrappers.limiter import PrefetchStore

logger = logging.getLogger(__name__)

SEQUENTIAL_COUNT = 3  # fetches one behind the other, from which on a stream is read ahead of
PIECES_PER_WINDOW = 4  # so a stream has up to four GETs under way, and one piece takes a quarter of its time to use up
STREAM_PIECES_MAX_COUNT = 16  # where segments are small, a piece is not more than one of them
PIECES_MAX_COUNT = 64  # under way at once, of all streams; the store's limit is lower as a rule
CACHE_MAX_FRACTION = 0.5  # of the cache for reading ahead, all streams together
STREAMS_MAX_COUNT = 1024
STREAM_IDLE_SECONDS = 30.0  # Kafka's consumers fetch again within max.poll.interval.ms, but hold as much themselves
WASTE_MAX_FRACTION = 0.1


@attrs.define(eq=False, repr=False)
class ReadAheadStatistics:
    """Sums since the start. Read bytes are used, wasted, or still ahead of their stream."""

    served_bytes: int = 0  # to fetches, from segments, whether it had been read ahead or not
    read_bytes: int = 0
    used_bytes: int = 0
    wasted_bytes: int = 0
    no_room_count: int = 0
    failed_count: int = 0


@attrs.define(eq=False, repr=False)
class _Piece:
    """A range requested ahead of a stream, up to `end_offset`.

    `range` is pinned until the stream has passed it; None if it could not be read. `is_own` if it was not in the cache.
    """

    range: Range | None
    size_bytes: int
    end_offset: int
    is_own: bool


@attrs.define(eq=False, repr=False)
class _Stream:
    """One consumer's path through a partition, and the pieces ahead of it."""

    partition: Partition
    fetch_count: int = 0
    taken_bytes: int = 0
    used_at: float = 0.0
    window_bytes: int = 0
    least_piece_bytes: int = 0  # what the last fetch took
    ahead_offset: int = 0
    pieces: deque[_Piece] = attrs.field(factory=deque)
    is_over: bool = False

    @property
    def ahead_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


@attrs.define(eq=False, repr=False, kw_only=True)
class ReadAhead:
    """Reads ahead of streams, each by at most `max_bytes`, 0 for not at all. Active while `run` runs."""

    store: PrefetchStore
    footers: Footers
    cache: SegmentCache
    max_bytes: int
    disk: DiskCache | None = None
    statistics: ReadAheadStatistics = attrs.field(factory=ReadAheadStatistics, init=False)
    held_bytes: int = attrs.field(default=0, init=False)  # pinned in the cache for streams that are not there yet
    _streams: OrderedDict[tuple[Partition, int], _Stream] = attrs.field(factory=OrderedDict, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _under_way_count: int = attrs.field(default=0, init=False)

    def register(self, metrics: Metrics) -> None:
        ahead = self.statistics
        metrics.count(
            "kafscale_segment_served_bytes_total", "Bytes of segments sent to consumers.", lambda: ahead.served_bytes
        )
        metrics.counts(
            "kafscale_readahead_bytes_total",
            "Bytes read ahead of consumers: read, and of these used or wasted.",
            "event",
            lambda: {"read": ahead.read_bytes, "used": ahead.used_bytes, "wasted": ahead.wasted_bytes},
        )
        help = "Reads ahead that did not begin because the memory cache was full."
        metrics.count("kafscale_readahead_no_room_total", help, lambda: ahead.no_room_count)
        metrics.count(
            "kafscale_readahead_failures_total", "Failed reads ahead of consumers.", lambda: ahead.failed_count
        )

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def consumed(self, partition: Partition, offset: int, slices: Slices) -> None:
        """Note that a fetch from `offset` was served from a segment."""
        self.statistics.served_bytes += slices.size_bytes
        if not self.max_bytes or self._nursery is None or partition.closed:
            return
        now = trio.current_time()
        while self._streams and next(iter(self._streams.values())).used_at < now - STREAM_IDLE_SECONDS:
            self._end(self._streams.popitem(last=False)[1])
        place = partition, slices.end_offset
        stream = self._streams.pop((partition, offset), None)
        if stream is None:
            if place in self._streams:
                return  # the same once more, or a second consumer beside the first
            stream = _Stream(partition)
        elif place in self._streams:
            self._end(self._streams.pop(place))
        self._streams[place] = stream
        if len(self._streams) > STREAMS_MAX_COUNT:
            self._end(self._streams.popitem(last=False)[1])
        stream.used_at = now
        self._advance(stream, slices)
        self._extend(stream)

    def forget(self, partition: Partition) -> None:
        """End the streams of a partition that was handed over."""
        for place in [place for place in self._streams if place[0] is partition]:
            self._end(self._streams.pop(place))

    # ---- streams ------------------------------------------------------------------------------------------------

    def _advance(self, stream: _Stream, slices: Slices) -> None:
        stream.fetch_count += 1
        stream.taken_bytes += slices.size_bytes
        stream.ahead_offset = max(stream.ahead_offset, slices.end_offset)
        while stream.pieces and stream.pieces[0].end_offset <= slices.end_offset:
            passed = stream.pieces.popleft()
            if passed.range is not None:
                self._let_go(passed)
                self.statistics.used_bytes += passed.size_bytes if passed.is_own else 0
        stream.least_piece_bytes = slices.size_bytes
        if slices.size_bytes > self.max_bytes:
            stream.window_bytes = 0  # its own GETs are large enough
        elif stream.fetch_count >= SEQUENTIAL_COUNT:
            stream.window_bytes = min(max(2 * stream.window_bytes, slices.size_bytes), self.max_bytes)

    def _end(self, stream: _Stream) -> None:
        stream.is_over = True
        for piece in stream.pieces:
            if piece.range is not None:
                self._let_go(piece)
                self.statistics.wasted_bytes += piece.size_bytes if piece.is_own else 0
        stream.pieces.clear()

    def _let_go(self, piece: _Piece) -> None:
        assert piece.range is not None
        self.held_bytes -= piece.size_bytes
        piece.range.release()
        piece.range = None

    def _allowed_bytes(self, stream: _Stream) -> int:
        if self.statistics.wasted_bytes > self.statistics.served_bytes * WASTE_MAX_FRACTION:
            return min(stream.window_bytes, int(stream.taken_bytes * WASTE_MAX_FRACTION))
        return stream.window_bytes

    # ---- pieces -------------------------------------------------------------------------------------------------

    def _extend(self, stream: _Stream) -> None:
        allowed_bytes = self._allowed_bytes(stream)
        piece_bytes = max(stream.least_piece_bytes, allowed_bytes // PIECES_PER_WINDOW)
        while (
            stream.ahead_bytes + piece_bytes <= allowed_bytes
            and len(stream.pieces) < STREAM_PIECES_MAX_COUNT
            and self._under_way_count < PIECES_MAX_COUNT
        ):
            segment = stream.partition.manifest.find(stream.ahead_offset)
            if segment is None:
                return  # the rest is in the memory tail
            footer = self.footers.get_nowait(segment)
            if footer is None:
                self._start(self._read_footer, stream, segment)
                return
            if footer.last_offset < stream.ahead_offset:
                stream.ahead_offset = max(segment.last_offset, footer.last_offset) + 1
            elif not self._ask(stream, segment, footer, piece_bytes):
                self.statistics.no_room_count += 1
                return

    def _ask(self, stream: _Stream, segment: Segment, footer: Footer, piece_bytes: int) -> bool:
        """Pin the next piece, and begin to read it if need be; False if there is no room."""
        row = footer.row_of(max(stream.ahead_offset, segment.base_offset))
        start = footer.row_start(row)
        if self.held_bytes + piece_bytes > self.cache.max_bytes * CACHE_MAX_FRACTION:
            return False
        found = self.cache.find(segment.key, start)
        if found is not None:
            piece = _Piece(found if found.is_cached else None, found.size_bytes, footer.offset_at(found.end), False)
        else:
            end = footer.row_start(footer.rows_within(row, piece_bytes))
            if self.disk is not None:
                end = self.disk.end_of(segment.key, start, end)
            wanted = self.cache.reserve(segment.key, start, self.cache.gap_end(segment.key, start, end))
            if wanted is None:
                return False
            piece = _Piece(wanted, wanted.size_bytes, footer.offset_at(wanted.end), True)
            self._start(self._read, piece, wanted)
        if piece.range is not None:
            piece.range.retain()
            self.held_bytes += piece.size_bytes
        stream.pieces.append(piece)
        stream.ahead_offset = piece.end_offset
        return True

    def _start(self, read: Callable[..., Awaitable[None]], *args: object) -> None:
        assert self._nursery is not None
        self._under_way_count += 1
        self._nursery.start_soon(read, *args)

    async def _read(self, piece: _Piece, wanted: Range) -> None:
        data: memoryview | None = None
        try:
            data = None if self.disk is None else await self.disk.read(wanted)
            if data is None:
                part = await self.store.get_range(wanted.key.key, wanted.start, wanted.size_bytes)
                read = None if part is None else whole(part, wanted)
                if read is not None and not await are_whole(read):
                    raise DamagedObject(f"{wanted.key.key}: a record batch behind byte {wanted.start} is damaged")
                data = read
        except (StoreError, DamagedObject) as exc:
            self._failed(exc)
        finally:
            self._under_way_count -= 1
            if data is not None:
                self.statistics.read_bytes += wanted.size_bytes
                self.cache.landed(wanted, data)
            else:
                self.cache.failed(wanted, None)  # a fetch that waits for it tries for itself
                if piece.range is not None:
                    self._let_go(piece)
            wanted.release()

    async def _read_footer(self, stream: _Stream, segment: Segment) -> None:
        try:
            await self.footers.prefetch(segment, self.store)
        except (StoreError, DamagedObject) as exc:
            self._failed(exc)
        finally:
            self._under_way_count -= 1
        # What a thread has read comes although `run` has been cancelled meanwhile.
        if self._nursery is not None and not stream.is_over and self.footers.get_nowait(segment) is not None:
            self._extend(stream)

    def _failed(self, exc: Exception) -> None:
        """Only count it: if the failure lasts, a fetch meets and reports it."""
        self.statistics.failed_count += 1
        logger.debug("reading ahead failed: %s", exc)
