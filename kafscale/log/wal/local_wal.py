"""The write-ahead log of all partitions on the local disk: group commit and replay. `replay`, then `tasks`.

`append` is synchronous, and its order is the order of the log. Entries that arrive during a sync share the next one and
its `Round`. There is no queue to bound here: the data of every entry is in the chunk pool or in a bounded frame. A
failed write or sync is final, because the content of the page cache is unknown then; on a full disk appends wait.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import attrs
import trio

from kafscale.buffers import size_of
from kafscale.concurrency.signals import Signal
from kafscale.errors import StorageFailed, StorageFull
from kafscale.formats.wal_entries import (
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    WalEntry,
    WalFile,
    decode_run,
    encode,
    encode_file_header,
    run_bytes,
    run_start,
    topic_name_entry,
)
from kafscale.log.wal.direct_io import PAGE_BYTES
from kafscale.log.wal.disk import NO_SPACE_ERRORS, Disk
from kafscale.log.wal.journal import (
    CROWDED_ENTRIES_COUNT,
    CROWDED_FRACTION,
    Handle,
    Journal,
    KeptAside,
    Round,
)
from kafscale.log.wal.local_files import NO_SPACE_RETRY_SECONDS, LocalFiles, Room
from kafscale.log.wal.local_replay import Extents, ExtentStore, FilesReplay
from kafscale.metrics import Histogram, Metrics
from kafscale.store.file.slices import SLICE_BYTES

DRAIN_SECONDS = 5.0  # the bound on writing what was accepted before the cancellation
NO_SPACE_MAX_SECONDS = 20.0  # a wait for a round; Kafka's clients give up a request after 30 s
WAITING_MAX_COUNT = 400_000  # entries, at 360 bytes of memory for each that waits for its flush
SYNC_SECONDS_WEIGHT = 0.2  # of the newest sync in their moving average
LARGE_ENTRY_BYTES = SLICE_BYTES // 2  # two of them share no slice of a write
FULL_MAX_COUNT = 4  # rounds that wait with one: and one is under way, of the five that a producer has in flight

logger = logging.getLogger(__name__)


class LeadLease(Protocol):
    """Permission to acknowledge."""

    def is_good(self) -> bool:
        """Tell whether it holds now."""

    async def wait(self) -> None:
        """Wait until it holds. Raises Fenced if it never will."""


@attrs.frozen(kw_only=True)
class LocalLog:
    """The parts of a log on the local disk: see `Wal`."""

    disk: Disk
    lease: LeadLease | None = None
    extents: ExtentStore | None = None


@attrs.define(eq=False, repr=False)
class LocalRound(Round):
    """The entries that the next sync makes durable."""

    _entries: list[WalEntry] = attrs.field(factory=list, init=False)
    _size_bytes: int = attrs.field(default=0, init=False)

    def fail(self, failure: StorageFailed) -> None:
        self._entries.clear()
        super().fail(failure)


@attrs.define(eq=False, kw_only=True, repr=False)
class Wal(Journal):
    """The log on one disk, a `Journal`.

    `on_durable` is called with each durable group of entries, in order, before the rounds are done; it must not raise.
    Without a good `lease` both wait. The callbacks in `on_growth` are called when a file is begun, or can't be, while
    the log `is_crowded`. `topic_name` tells the name of an entry's topic, which each file has before that topic's first
    batch. `extents` keeps the note of files; without it, missing files are not found. `sync_interval_seconds` bounds
    how long a sync may be put off to take more along.

    The limit is `max_bytes` of files, or `waiting_max_count` pending entries, whose memory is needed wherever their
    data is. So a file gets at most an eighth of these.
    """

    disk: Disk
    on_durable: Callable[[Sequence[WalEntry]], None]
    lease: LeadLease | None = None
    topic_name: Callable[[WalEntry], str] | None = None
    extents: ExtentStore | None = None
    segment_bytes: int = 64 << 20
    max_bytes: int = 4 << 30
    waiting_max_count: int = WAITING_MAX_COUNT
    sync_interval_seconds: float = 0.002
    on_growth: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    sync_seconds: Histogram = attrs.field(factory=Histogram, init=False)
    files: LocalFiles = attrs.field(init=False)
    topic_names: Mapping[bytes, str] = attrs.field(factory=dict, init=False)  # by id, as the replay has found them
    _named: set[bytes] = attrs.field(factory=set, init=False)  # topics whose name the last file has
    _room: Room = attrs.field(init=False)  # of the files
    _full: deque[LocalRound] = attrs.field(factory=deque, init=False)  # those that end with a large entry
    _filling: LocalRound = attrs.field(factory=LocalRound, init=False)
    _syncing: LocalRound | None = attrs.field(default=None, init=False)
    _has_transactions: bool = attrs.field(default=False, init=False)  # among what was written
    _work: Signal = attrs.field(factory=Signal, init=False)
    _wake_count: int = attrs.field(default=1, init=False)  # how many entries must be queued to wake the syncer
    _closed: StorageFailed | None = attrs.field(default=None, init=False)
    _last_round_count: int = attrs.field(default=0, init=False)
    _last_sync_time: float = attrs.field(default=-math.inf, init=False)
    _mean_sync_seconds: float = attrs.field(default=0.0, init=False)
    _entry_count: int = attrs.field(default=0, init=False)  # written since the start
    _written_bytes: int = attrs.field(default=0, init=False)
    _starting: trio.TaskStatus[None] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.files = LocalFiles(
            disk=self.disk,
            segment_bytes=self.segment_bytes,
            max_bytes=self.max_bytes,
            waiting_max_count=self.waiting_max_count,
            on_no_space=self._no_space,
            extents=Extents(self.extents, self.disk.location),
        )
        self._room = self.files.room

    # What the partitions use.

    @property
    def is_local(self) -> bool:
        return True

    @property
    def is_last_word(self) -> bool:
        return self.lease is None or self.lease.is_good()

    @property
    def is_full(self) -> bool:
        return self._room.out_of_space and self._room.stalled_since is not None

    @property
    def lacks_room(self) -> bool:
        return self._room.disk_is_full and self._room.stalled_since is not None

    @property
    def is_crowded(self) -> bool:
        return (
            self._room.out_of_space
            or self.files.size_bytes >= self.max_bytes * CROWDED_FRACTION
            or self.pending_count >= CROWDED_ENTRIES_COUNT
        )

    @property
    def pending_count(self) -> int:
        return self.files.pending_count

    async def wait_for_room(self) -> None:
        while self.is_full:
            await self._room.resumed.wait()

    def append(self, entry: WalEntry) -> Round:
        if self._closed is not None:
            raise StorageFailed(str(self._closed)) from self._closed
        round = self._filling
        round._entries.append(entry)
        round._size_bytes += ENTRY_HEADER_BYTES + len(entry.data)
        if len(entry.data) >= LARGE_ENTRY_BYTES and len(self._full) < FULL_MAX_COUNT:
            self._full.append(round)
            self._filling = LocalRound()
            self._work.set()
        elif len(round._entries) == self._wake_count:
            self._work.set()
        return round

    def retain(self, file: WalFile) -> None:
        assert file.pending_count > 0, f"{file.name}: retained after its last release"
        file.pending_count += 1

    def release(self, file: WalFile, count: int = 1) -> None:
        file.pending_count -= count
        assert file.pending_count >= 0, f"{file.name}: released more entries than it held"
        if self.files.can_delete():
            self.files.wake()

    async def read(self, file: WalFile, places: Sequence[tuple[int, int]]) -> bytes:
        try:
            content = await self.disk.read(file.name, run_start(places), run_bytes(places))
        except OSError as exc:
            raise self.files.failure(f"read {file.name}", exc) from exc
        name = f"{self.disk.location}/{file.name}"
        return decode_run(memoryview(content), places, name=name, salt=file.header.salt)

    def register(self, metrics: Metrics) -> None:
        count, gauge, files = metrics.count, metrics.gauge, self.files
        help = "Writes to the WAL, each with one fsync."
        count("kafscale_wal_syncs_total", help, lambda: sum(self.sync_seconds.counts))
        count("kafscale_wal_entries_total", "Record batches written to the WAL.", lambda: self._entry_count)
        count("kafscale_wal_written_bytes_total", "Bytes written to the WAL.", lambda: self._written_bytes)
        help = "Times that the WAL waited for its next file."
        count("kafscale_wal_rotation_stalls_total", help, lambda: files.stall_count)
        gauge("kafscale_wal_files", "Files of the WAL.", lambda: len(files.in_use))
        gauge("kafscale_wal_bytes", "Size of the WAL files.", lambda: files.size_bytes)
        gauge(
            "kafscale_wal_pending_entries",
            "Entries of the WAL that are not in the bucket yet.",
            lambda: self.pending_count,
        )
        gauge("kafscale_wal_queued_bytes", "Bytes that wait for a sync of the WAL.", self._queued_bytes)
        help = "1 while appends wait because the disk is full."
        gauge("kafscale_wal_out_of_space", help, lambda: self._room.out_of_space)
        metrics.adopt_histogram(
            "kafscale_wal_sync_seconds", "Latency of a write to the WAL with its fsync.", self.sync_seconds
        )

    def _queued_bytes(self) -> int:
        return sum(round._size_bytes for round in self._rounds())

    # What the broker runs.

    async def replay(self, handle: Handle, *, on_progress: Callable[[int], None] | None = None) -> None:
        """Replay the files. Raises DamagedObject if acknowledged entries are damaged, StorageFailed."""
        replay = FilesReplay(self.disk, handle, on_progress, self.files.extents)
        try:
            await replay.run()
        except OSError as exc:
            raise self.files.failure("replay it", exc) from exc
        self.files.restore(replay)
        self.topic_names = replay.topic_names

    @property
    def has_lost_entries(self) -> bool:
        return self.files.extents.has_lost

    async def settle_loss(self) -> None:
        await self.files.extents.settle()

    async def keep_aside(self, kept: KeptAside) -> None:
        await self.files.keep_aside(kept, self.topic_names)

    @property
    def tasks(self) -> Sequence[Callable[..., Awaitable[None]]]:
        return self.files.prepare, self.run

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write and sync appended entries, after a cancellation the accepted ones. Raises StorageFailed."""
        try:
            self._starting = task_status
            await self._rotate(0)
            self._report_started()
            while True:
                await self._work.wait()
                await self._gather()
                await self._sync()
        except trio.Cancelled:
            with trio.CancelScope(deadline=trio.current_time() + DRAIN_SECONDS, shield=True):
                while self.files.in_use and any(round._entries for round in self._rounds()):
                    await self._sync()
                with suppress(StorageFull, StorageFailed):  # then the next start expects more files than it needs
                    await self.files.note(is_end=True)
            raise
        except StorageFailed as exc:
            self._closed = exc
            raise
        finally:
            self._close()

    # The syncer.

    def _report_started(self) -> None:
        if self._starting is not None:
            self._starting.started()
            self._starting = None

    async def _gather(self) -> None:
        """Delay the sync for a moment after the last one, if that will save one.

        A sync under way gathers by itself, so waiting pays only when syncs are slower than the interval, and only for
        the peers of the last round, who were just answered and are likely to come back.
        """
        if self._full or not 0 < self.sync_interval_seconds < self._mean_sync_seconds:
            return
        if len(self._filling._entries) >= self._last_round_count:
            return
        self._work.clear()
        self._wake_count = self._last_round_count
        with trio.CancelScope(deadline=self._last_sync_time + self.sync_interval_seconds):
            await self._work.wait()

    async def _sync(self) -> None:
        """Make one round durable. After a cancellation the next call continues the same round."""
        if self._syncing is None:
            if self._full:
                self._syncing = self._full.popleft()
            else:
                self._syncing, self._filling = self._filling, LocalRound()
            if not self._full and not self._filling._entries:
                self._work.clear()
            self._wake_count = 1
            self._last_round_count = len(self._syncing._entries)
        round = self._syncing
        while round._entries:
            await self._write_group(round)
        self._syncing = None
        round.succeed()

    async def _write_group(self, round: LocalRound) -> None:
        file = self.files.in_use[-1]
        group = self._fitting(round, file)
        if not group or not self._can_tell(file, group):
            first = round._entries[0]
            await self._rotate(_size_bytes([first, *self._names_for([first], set())]))
            return
        names = self._names_for(group, self._named)
        for sequence, entry in enumerate([*names, *group], self.files.durable_sequence + 1):
            entry.sequence = sequence
        buffers = encode([*names, *group], durable_sequence=self.files.durable_sequence, salt=file.header.salt)
        position = file.end
        if not file.header.started:
            file.header = attrs.evolve(file.header, started=True, sequence=self.files.durable_sequence + 1)
        if position == FILE_HEADER_BYTES:
            buffers.insert(0, encode_file_header(file.header))
            position = 0
        end = position + size_of(buffers)  # up to the end of the page or file: a partly written page is read first
        buffers.append(bytes(min(-end % PAGE_BYTES, max(0, file.size_bytes - end))))
        began = trio.current_time()
        try:
            await self.disk.write_and_sync(file.name, buffers, position)
        except OSError as exc:
            if exc.errno not in NO_SPACE_ERRORS:
                raise self.files.failure(f"write {file.name}", exc) from exc
            await self._wait_to_write_again(file)
            return
        self._room.resume()
        self._last_sync_time = trio.current_time()
        seconds = self._last_sync_time - began
        self.sync_seconds.observe(seconds)
        self._mean_sync_seconds += SYNC_SECONDS_WEIGHT * (seconds - self._mean_sync_seconds)
        if self.lease is not None and not self.lease.is_good():
            await self.lease.wait()  # cancelled, it writes the same again
        self._commit(names, group, file)
        del round._entries[: len(group)]
        self.on_durable(group)

    def _can_tell(self, file: WalFile, group: Sequence[WalEntry]) -> bool:
        """Mark the file as one with transactions; False if its header is already written."""
        self._has_transactions = self._has_transactions or any(entry.is_transactional for entry in group)
        if not self._has_transactions or file.header.has_transactions:
            return True
        if file.end > FILE_HEADER_BYTES:
            return False
        file.header = attrs.evolve(file.header, has_transactions=True)
        return True

    async def _wait_to_write_again(self, file: WalFile) -> None:
        """Wait for space; the next attempt writes the same bytes from the first on."""
        if self._room.stalled_since is None:
            self._room.stall()
            logger.warning("no space to write to %s in %s: produces wait for some", file.name, self.disk.location)
        self._room.out_of_space = self._room.disk_is_full = True
        self._put_off_rounds()
        self._tell_crowded()
        await trio.sleep(NO_SPACE_RETRY_SECONDS)

    async def _rotate(self, entry_bytes: int) -> None:
        await self.files.rotate(entry_bytes)
        self._named.clear()
        if self.is_crowded:
            self._tell_crowded()

    def _no_space(self) -> None:
        """Handle a full disk when the next file is needed: waiters and a start fail after a deadline."""
        self._put_off_rounds()
        self._report_started()
        self._tell_crowded()

    def _tell_crowded(self) -> None:
        for tell in self.on_growth:
            tell()

    def _put_off_rounds(self) -> None:
        stalled_since = self._room.stalled_since
        if stalled_since is None or trio.current_time() - stalled_since < NO_SPACE_MAX_SECONDS:
            return
        for round in self._rounds():
            if round._entries:
                round.put_off()

    def _fitting(self, round: LocalRound, file: WalFile) -> list[WalEntry]:
        """Return the first entries that the file has room for, with the names of their topics."""
        room = file.size_bytes - file.end
        fitting = round._entries[: max(0, self.waiting_max_count // 8 - file.entry_count)]
        names = self._names_for(fitting, self._named)
        if round._size_bytes + _size_bytes(names) <= room:
            return fitting
        unnamed = {name.topic_id: name for name in names}
        for index, entry in enumerate(fitting):
            name = unnamed.pop(entry.topic_id, None)
            room -= _size_bytes([entry] if name is None else [name, entry])
            if room < 0:
                return fitting[:index]
        return fitting

    def _names_for(self, group: Sequence[WalEntry], named: Collection[bytes]) -> list[WalEntry]:
        if self.topic_name is None:
            return []
        unnamed = {entry.topic_id: entry for entry in group if entry.topic_id not in named}
        return [topic_name_entry(topic_id, self.topic_name(entry)) for topic_id, entry in unnamed.items()]

    def _commit(self, names: Sequence[WalEntry], group: Sequence[WalEntry], file: WalFile) -> None:
        start, end = file.end, file.end + _size_bytes(names)
        self._named.update(entry.topic_id for entry in names)
        for entry in group:
            entry.file = file
            entry.position = position = end + ENTRY_HEADER_BYTES
            end = position + len(entry.data)
        file.end = end
        file.pending_count += len(group)
        file.entry_count += len(group)
        self.files.durable_sequence = group[-1].sequence
        self._entry_count += len(group)
        self._written_bytes += end - start

    def _close(self) -> None:
        if self._closed is None:
            self._closed = StorageFailed("the WAL is closed")
        for round in self._rounds():
            if not round.done:
                round.fail(self._closed)

    def _rounds(self) -> Sequence[LocalRound]:
        return [*([] if self._syncing is None else [self._syncing]), *self._full, self._filling]


def _size_bytes(entries: Iterable[WalEntry]) -> int:
    return sum(ENTRY_HEADER_BYTES + len(entry.data) for entry in entries)
