"""The write-ahead log in the bucket (`--durability s3-wal`): objects with entries of all partitions.

docs/discussion/durability.md says when an object is written and deleted. Objects are acknowledged strictly in order:
when one and all before it are durable, `on_durable` tells the partitions, then the waiters wake. A failed PUT is
repeated until it succeeds. A broker that takes over (`kafscale.log.wal.s3_replay`) puts a fence at the number that this
one would write next, so that write is refused and `run` raises Fenced.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice, takewhile

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, Fenced, NotFound, PreconditionFailed, StorageFailed, StoreError
from kafscale.formats.wal_entries import (
    ENTRY_HEADER_BYTES,
    METADATA,
    RECORD_BATCH,
    WalEntry,
    WalFile,
    decode_run,
    run_bytes,
    run_start,
)
from kafscale.formats.wal_index import INDEXED_LEAST_BYTES, with_index
from kafscale.formats.wal_objects import (
    HEADER_BYTES,
    START,
    ObjectHeader,
    WalObject,
    WalPosition,
    decode_header,
    encode_object,
    wal_object,
)
from kafscale.log.wal.journal import (
    CROWDED_ENTRIES_COUNT,
    CROWDED_FRACTION,
    Handle,
    Journal,
    Round,
)
from kafscale.log.wal.s3_replay import EarlierLog
from kafscale.log.wal.streams import Earlier
from kafscale.metrics import Histogram, Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import guarded
from kafscale.store.paths import NumberedKey

UNDER_WAY_MAX_COUNT = 8  # PUTs at once: 8 of 8 MiB at 100 ms are 640 MiB/s
RETRY_SECONDS = 1.0  # after a PUT that the retrying store has given up on
DELETE_RETRY_SECONDS = 30.0
DELETED_AT_ONCE_COUNT = 100  # after one look at the claim: those of five seconds, where a PUT takes 50 ms
DELETED_LEAST_COUNT = 32  # without a pause before: else one look at the claim would be for few
DELETION_PAUSE_SECONDS = 1.0  # so that a look is for more than one, where flushes free one after the other
SMALL_OBJECT_BYTES = 64 << 10  # who reads one that is shorter waits for the request more than for its bytes

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class _Draft:
    """An object before it is in the bucket: being filled, then under way."""

    round: Round = attrs.field(factory=Round)
    entries: list[WalEntry] = attrs.field(factory=list)
    size_bytes: int = 0
    began_at: float = 0.0
    header: ObjectHeader | None = None
    key: str = ""
    is_durable: bool = False


@attrs.define(eq=False, kw_only=True, repr=False)
class S3Wal(Journal):
    """The log of one epoch, and what is left of `earlier` ones: a `Journal`, which metadata uses too.

    `on_durable` gets the record batches of each durable object, in order, before the rounds are done; it must not
    raise. The callbacks in `on_growth` are called afterwards. Each PUT is made within `around_put` of its round.
    `is_stream`: several brokers share the bucket, and the metadata is elsewhere.
    """

    store: ObjectStore
    namespace: str
    epoch: int
    interval_seconds: float = 0.25
    min_interval_seconds: float = 0.0
    object_bytes: int = 8 << 20
    max_bytes: int = 4 << 30
    on_durable: Callable[[Sequence[WalEntry]], None] = lambda entries: None
    earlier: Earlier = attrs.field(default=attrs.Factory(lambda self: EarlierLog(self.store, ()), takes_self=True))
    is_stream: bool = False
    around_put: Callable[[Round], AbstractContextManager[None]] = lambda journal_round: nullcontext()
    on_growth: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    put_seconds: Histogram = attrs.field(factory=Histogram, init=False)
    durable_position: WalPosition = attrs.field(init=False)
    metadata_position: WalPosition = attrs.field(init=False)  # the last object that has an entry of metadata
    _filling: _Draft = attrs.field(factory=_Draft, init=False)
    _full: deque[_Draft] = attrs.field(factory=deque, init=False)
    _under_way: deque[_Draft] = attrs.field(factory=deque, init=False)  # in order; the first may be done last
    _objects: deque[WalObject] = attrs.field(factory=deque, init=False)  # oldest first
    _began_at: float = attrs.field(default=-math.inf, init=False)  # the PUT of the last object
    _work: Signal = attrs.field(factory=Signal, init=False)
    _released: Signal = attrs.field(factory=Signal, init=False)
    _closed: StorageFailed | None = attrs.field(default=None, init=False)
    _fenced: Fenced | None = attrs.field(default=None, init=False)
    _next_number: int = attrs.field(default=1, init=False)
    _next_sequence: int = attrs.field(default=1, init=False)
    _durable_sequence: int = attrs.field(default=0, init=False)
    _trim_until: WalPosition = attrs.field(default=START, init=False)
    _objects_bytes: int = attrs.field(default=0, init=False)
    pending_count: int = attrs.field(default=0, init=False)  # record batches in these that are in no segment yet
    small_count: int = attrs.field(default=0, init=False)  # of SMALL_OBJECT_BYTES at most
    _entry_count: int = attrs.field(default=0, init=False)
    _written_bytes: int = attrs.field(default=0, init=False)
    _retry_count: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.durable_position = self.metadata_position = WalPosition(self.epoch, 0)

    # ---- what partitions and metadata use ---------------------------------------------------------------------

    def append(self, entry: WalEntry) -> Round:
        if self._closed is not None:
            raise StorageFailed(str(self._closed)) from self._closed
        size_bytes = ENTRY_HEADER_BYTES + len(entry.data)
        if self._filling.entries and self._filling.size_bytes + size_bytes > self.object_bytes:
            self._full.append(self._filling)
            self._filling = _Draft()
            self._work.set()
        draft = self._filling
        if not draft.entries:
            draft.began_at = trio.current_time()
            self._work.set()
        draft.entries.append(entry)
        draft.size_bytes += size_bytes
        return draft.round

    def retain(self, file: WalFile) -> None:
        assert file.pending_count > 0, f"{file.name}: retained after its last release"
        file.pending_count += 1
        self.pending_count += 1

    def release(self, file: WalFile, count: int = 1) -> None:
        file.pending_count -= count
        assert file.pending_count >= 0, f"{file.name}: released more entries than it held"
        self.pending_count -= count
        self._wake_deleter()

    def trim(self, until: WalPosition) -> None:
        """Note that a checkpoint has the metadata up to there."""
        self._trim_until = max(self._trim_until, until)
        self._wake_deleter()

    async def read(self, file: WalFile, places: Sequence[tuple[int, int]]) -> bytes:
        part = await self.store.get_range(file.name, run_start(places), run_bytes(places))
        return decode_run(memoryview(part.data), places, name=file.name, salt=file.header.salt)

    @property
    def is_crowded(self) -> bool:
        return self._objects_bytes >= self.max_bytes * CROWDED_FRACTION or self.pending_count >= CROWDED_ENTRIES_COUNT

    async def settle(self) -> None:
        drafts = [*self._under_way, *self._full]
        if self._filling.entries:
            drafts.append(self._filling)
        if drafts:
            await drafts[-1].round.wait()

    def register(self, metrics: Metrics) -> None:
        count, gauge = metrics.count, metrics.gauge
        help = "Objects of the log written to the bucket."
        count("kafscale_s3_wal_puts_total", help, lambda: sum(self.put_seconds.counts))
        help = "Record batches and metadata changes written to the log in the bucket."
        count("kafscale_s3_wal_entries_total", help, lambda: self._entry_count)
        count(
            "kafscale_s3_wal_written_bytes_total",
            "Bytes written to the log in the bucket.",
            lambda: self._written_bytes,
        )
        help = "PUTs of the log that failed and were begun again."
        count("kafscale_s3_wal_retries_total", help, lambda: self._retry_count)
        gauge("kafscale_s3_wal_objects", "Objects of the log in the bucket.", lambda: len(self._objects))
        gauge("kafscale_s3_wal_bytes", "Size of the log's objects in the bucket.", lambda: self._objects_bytes)
        gauge("kafscale_s3_wal_under_way", "PUTs of the log under way.", lambda: len(self._under_way))
        gauge("kafscale_s3_wal_queued_bytes", "Bytes that wait for a PUT of the log.", self._queued_bytes)
        help = "Record batches of the log in the bucket that are in no segment yet."
        gauge("kafscale_s3_wal_pending_entries", help, lambda: self.pending_count)
        help = "Time from the start of a PUT of the log to its success."
        metrics.adopt_histogram("kafscale_s3_wal_put_seconds", help, self.put_seconds)

    def _queued_bytes(self) -> int:
        return sum(draft.size_bytes for draft in (*self._under_way, *self._full, self._filling))

    # ---- what the broker runs ---------------------------------------------------------------------------------

    async def replay(self, handle: Handle, *, on_progress: Callable[[int], None] | None = None) -> None:
        """Replay the earlier epochs. Raises DamagedObject, StoreError."""
        replayed = await self.recover(self.earlier, handle, on_progress=on_progress)
        if self.is_stream:
            return
        self._objects.extendleft(reversed(replayed))
        self._objects_bytes += sum(object_.size_bytes for object_ in replayed)
        self._wake_deleter()

    async def recover(
        self, earlier: Earlier, handle: Handle, *, on_progress: Callable[[int], None] | None = None
    ) -> Sequence[WalObject]:
        """Replay what others have left, at any time. Returns the objects, which are not deleted from here.

        If it fails, entries that `handle` needed must be released too.
        """

        def count(entry: WalEntry) -> bool:
            is_needed = handle(entry)
            self.pending_count += is_needed and entry.kind == RECORD_BATCH
            return is_needed

        return await earlier.replay(count, on_progress=on_progress)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write appended entries, until cancelled; unacknowledged ones may be in the bucket then or not.

        Raises Fenced when another broker has taken over.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._delete_released)
                task_status.started()
                while self._fenced is None:
                    self._work.clear()
                    while (draft := self._take_due()) is not None:
                        self._number(draft)
                        nursery.start_soon(self._write, draft)
                    with trio.move_on_at(self._next_due_at()):
                        await self._work.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._close()
        assert self._fenced is not None
        raise self._fenced

    def _take_due(self) -> _Draft | None:
        if len(self._under_way) >= UNDER_WAY_MAX_COUNT:
            return None
        if self._full:
            return self._full.popleft()
        if self._filling.entries and self._next_due_at() <= trio.current_time():
            draft, self._filling = self._filling, _Draft()
            return draft
        return None

    def _next_due_at(self) -> float:
        if not self._filling.entries or len(self._under_way) >= UNDER_WAY_MAX_COUNT:
            return math.inf
        due_at = self._filling.began_at + (self.interval_seconds if self._under_way else 0.0)
        return max(due_at, self._began_at + self.min_interval_seconds)

    def _number(self, draft: _Draft) -> None:
        """Give the object its place in the log; its bytes never change from now on."""
        if self.is_stream and draft.size_bytes >= INDEXED_LEAST_BYTES:
            draft.entries = with_index(draft.entries)
            draft.size_bytes += ENTRY_HEADER_BYTES + len(draft.entries[0].data)
        for entry in draft.entries:
            entry.sequence = self._next_sequence
            self._next_sequence += 1
        draft.header = ObjectHeader(
            salt=random.getrandbits(32),
            epoch=self.epoch,
            entry_count=len(draft.entries),
            number=self._next_number,
            durable_number=self.durable_position.number,
            sequence=draft.entries[0].sequence,
            body_bytes=draft.size_bytes,
            has_transactions=any(entry.is_transactional for entry in draft.entries),
        )
        draft.key = NumberedKey(namespace=self.namespace, kind="wal", epoch=self.epoch, number=self._next_number).key
        self._next_number += 1
        self._began_at = trio.current_time()
        self._under_way.append(draft)

    async def _write(self, draft: _Draft) -> None:
        assert draft.header is not None
        began = trio.current_time()
        parts = encode_object(draft.header, draft.entries, durable_sequence=self._durable_sequence)
        try:
            with self.around_put(draft.round):
                await self._put(draft.key, parts)
        except Fenced as exc:
            self._fenced = exc
            self._work.set()
            return
        self.put_seconds.observe(trio.current_time() - began)
        draft.is_durable = True
        while self._under_way and self._under_way[0].is_durable and self._fenced is None:
            self._acknowledge(self._under_way.popleft())
        self._work.set()

    async def _put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Put an object, repeatedly until it is there. Raises Fenced if another one is."""
        attempts_count = 0
        while True:
            try:
                await self._put_or_find(key, parts)
                return
            except (StoreError, DamagedObject) as exc:
                attempts_count += 1
                if attempts_count == 1:
                    logger.error("writing %s failed, produces wait until it succeeds: %s", key, exc)
                self._retry_count += 1
                await trio.sleep(RETRY_SECONDS)

    async def _put_or_find(self, key: str, parts: Sequence[Buffer]) -> None:
        """Put the object, or find it from an earlier attempt whose reply was lost."""
        try:
            await self.store.put_if_absent(key, parts)
        except PreconditionFailed:
            with suppress(NotFound):  # then it was another one's: we delete nothing before it is acknowledged
                part = await self.store.get_range(key, 0, HEADER_BYTES)
                if decode_header(key, part.data).epoch == self.epoch:
                    return
            raise Fenced(
                f"{key} has been written by a broker that has taken over: this one, of epoch {self.epoch}, "
                "has been superseded"
            ) from None

    def _acknowledge(self, draft: _Draft) -> None:
        assert draft.header is not None
        written = wal_object(draft.key, self.epoch, draft.header)
        records: list[WalEntry] = []
        end = HEADER_BYTES
        for entry in draft.entries:
            entry.file = written
            entry.position = end + ENTRY_HEADER_BYTES
            end = entry.end
            if entry.kind == RECORD_BATCH:
                records.append(entry)
        written.pending_count = len(records)
        self._objects.append(written)
        self._objects_bytes += written.size_bytes
        self.small_count += written.size_bytes <= SMALL_OBJECT_BYTES
        self.pending_count += len(records)
        self._durable_sequence = draft.entries[-1].sequence
        self.durable_position = written.position
        if self.is_stream:
            self.trim(WalPosition(self.epoch, draft.header.durable_number))
        if any(entry.kind == METADATA for entry in draft.entries):
            self.metadata_position = written.position
        self._entry_count += len(draft.entries)
        self._written_bytes += written.size_bytes
        if records:
            self.on_durable(records)
        draft.round.succeed()
        for tell in self.on_growth:
            tell()

    def _close(self) -> None:
        self._closed = StorageFailed(str(self._fenced or "the write-ahead log in the bucket is closed"))
        for draft in (*self._under_way, *self._full, self._filling):
            draft.round.fail(self._closed)

    # ---- deletion ---------------------------------------------------------------------------------------------

    def _wake_deleter(self) -> None:
        if self._objects and self._is_unneeded(self._objects[0]):
            self._released.set()

    def _is_unneeded(self, written: WalObject) -> bool:
        if written.position == self.durable_position:
            return False
        return not written.pending_count and written.position <= self._trim_until

    async def _delete_released(self) -> None:
        try:
            while True:
                while unneeded := self._unneeded(DELETED_AT_ONCE_COUNT):
                    await self._delete(unneeded)
                    with trio.move_on_after(DELETION_PAUSE_SECONDS):
                        await self._wait_unneeded(DELETED_LEAST_COUNT)
                await self._wait_unneeded(1)
        except Fenced as exc:
            self._fenced = exc
            self._work.set()

    def _unneeded(self, max_count: int) -> Sequence[WalObject]:
        return list(islice(takewhile(self._is_unneeded, self._objects), max_count))

    async def _wait_unneeded(self, count: int) -> None:
        while len(self._unneeded(count)) < count:
            self._released.clear()
            await self._released.wait()

    async def _delete(self, unneeded: Sequence[WalObject]) -> None:
        """Delete these objects, however often it takes: a failed deletion may leave any of them."""
        keys = [written.name for written in unneeded]
        batches = [keys[:1], keys[1:]] if self.is_stream and keys[1:] else [keys]
        while True:
            try:
                await guarded(self.store).delete_in_turn(batches)
                break
            except StoreError as exc:
                logger.warning("%s could not be deleted yet: %s", unneeded[0].name, exc)
                await trio.sleep(DELETE_RETRY_SECONDS)
        for written in unneeded:
            self._objects.remove(written)  # a replay may have put others before it
            self._objects_bytes -= written.size_bytes
