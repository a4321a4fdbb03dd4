"""The write-ahead log in the bucket, which `--durability s3-wal` acknowledges by: objects of entries of all partitions.

What arrives together goes into one object, whichever partitions it is for, so the number of PUTs follows from time and
bytes alone. The interval is an upper bound: when nothing is under way an entry goes at once, what arrives meanwhile
shares the next object, which goes when the one under way is done, or when its first entry has waited for the interval,
or when it is as large as an object may be. A bounded number is under way at once; past it objects queue, and what is in
them is bounded by the chunk pool.

Objects are acknowledged strictly in order, however their PUTs end: when one is durable and all before it are, the
partitions are told first, by `on_durable`, and then whoever waits for its `Round` wakes. A PUT that fails is tried
again until it succeeds, and produces wait: nothing is lost and nothing acknowledged early while the store is away.

Keys are made of epoch and number, and every PUT is conditional. A broker that takes over (`kafscale.log.wal.s3_replay`)
puts a fence at the number that this one would have to write next, so the write is refused and `run` raises Fenced. With
one sequence of numbers for all epochs the fence would be the newer broker's first object, but then an older broker's
later objects, which can be in the bucket already, would be in the newer one's way.

An object is deleted when all of its entries are in segments, and the metadata up to it in a checkpoint; one at a time
and oldest first, so that a crash leaves no gap. The newest stays, so that the numbers are not forgotten.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs
import trio

from kafscale.errors import Fenced, NotFound, PreconditionFailed, StorageFailed, StoreError
from kafscale.formats.wal_entries import (
    ENTRY_HEADER_BYTES,
    RECORD_BATCH,
    WalEntry,
    WalFile,
    decode_run,
    run_bytes,
    run_start,
)
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
from kafscale.log.wal.local_wal import CROWDED_ENTRIES_COUNT, CROWDED_FRACTION, Round
from kafscale.log.wal.s3_replay import EarlierLog
from kafscale.metrics import Histogram
from kafscale.store.base import Buffer, ObjectStore
from kafscale.store.paths import NumberedKey

UNDER_WAY_MAX_COUNT = 8  # PUTs at once: 8 of 8 MiB at 100 ms are 640 MiB/s
RETRY_SECONDS = 1.0  # after a PUT that the retrying store has given up on
DELETE_RETRY_SECONDS = 30.0

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Draft:
    """An object before it is in the bucket: being filled, then under way."""

    round: Round = attrs.field(factory=Round)
    entries: list[WalEntry] = attrs.field(factory=list)
    size_bytes: int = 0
    began_at: float = 0.0
    header: ObjectHeader | None = None
    key: str = ""
    is_durable: bool = False


@attrs.frozen
class S3WalStatistics:
    """A look at the log. `queued_*` is what waits, `object_*` what is in the bucket and not deleted yet."""

    put_count: int
    entry_count: int
    written_bytes: int
    under_way_count: int
    queued_count: int
    queued_bytes: int
    object_count: int
    object_bytes: int
    pending_count: int
    retry_count: int


@attrs.define(eq=False, kw_only=True)
class S3Wal:
    """The log of one epoch, and what is left of earlier ones.

    `on_durable` gets the record batches of each object that has become durable, in order, before anybody else is told.
    It must not raise. `on_crowded` is called when there is one more while the log `is_crowded`.
    """

    store: ObjectStore
    namespace: str
    epoch: int
    interval_seconds: float = 0.25
    object_bytes: int = 8 << 20
    max_bytes: int = 4 << 30
    on_durable: Callable[[Sequence[WalEntry]], None] = attrs.field(default=lambda entries: None)
    on_crowded: Callable[[], None] = attrs.field(default=lambda: None)
    put_seconds: Histogram = attrs.field(factory=Histogram, init=False)
    durable_position: WalPosition = attrs.field(init=False)
    metadata_position: WalPosition = attrs.field(init=False)  # the last object that has an entry of metadata
    _filling: _Draft = attrs.field(factory=_Draft, init=False)
    _full: deque[_Draft] = attrs.field(factory=deque, init=False)
    _under_way: deque[_Draft] = attrs.field(factory=deque, init=False)  # in order; the first may be done last
    _objects: deque[WalObject] = attrs.field(factory=deque, init=False)  # oldest first
    _work: trio.Event = attrs.field(factory=trio.Event, init=False)
    _released: trio.Event = attrs.field(factory=trio.Event, init=False)
    _closed: StorageFailed | None = attrs.field(default=None, init=False)
    _fenced: Fenced | None = attrs.field(default=None, init=False)
    _next_number: int = attrs.field(default=1, init=False)
    _next_sequence: int = attrs.field(default=1, init=False)
    _durable_sequence: int = attrs.field(default=0, init=False)
    _trim_until: WalPosition = attrs.field(default=START, init=False)
    _objects_bytes: int = attrs.field(default=0, init=False)
    _pending_count: int = attrs.field(default=0, init=False)  # record batches in these that are in no segment yet
    _entry_count: int = attrs.field(default=0, init=False)
    _written_bytes: int = attrs.field(default=0, init=False)
    _retry_count: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.durable_position = self.metadata_position = WalPosition(self.epoch, 0)

    # ---- what partitions and metadata use ---------------------------------------------------------------------

    def append(self, entry: WalEntry) -> Round:
        """Queue an entry behind all earlier ones; it is durable when the round is done.

        Raises StorageFailed when the log is closed; the entry is not queued then.
        """
        if self._closed is not None:
            raise StorageFailed(str(self._closed)) from self._closed
        size_bytes = ENTRY_HEADER_BYTES + len(entry.data)
        if self._filling.entries and self._filling.size_bytes + size_bytes > self.object_bytes:
            self._full.append(self._filling)
            self._filling = _Draft()
            self._work.set()
        draft = self._filling
        entry.sequence = self._next_sequence
        self._next_sequence += 1
        if not draft.entries:
            draft.began_at = trio.current_time()
            self._work.set()
        draft.entries.append(entry)
        draft.size_bytes += size_bytes
        return draft.round

    def retain(self, file: WalFile) -> None:
        """Keep an object that has entries pending, for a reader of one of them who will `release` it."""
        assert file.pending_count > 0, f"{file.name}: retained after its last release"
        file.pending_count += 1
        self._pending_count += 1

    def release(self, file: WalFile, count: int = 1) -> None:
        """Say that `count` entries of the object are in segments, or are no longer wanted."""
        file.pending_count -= count
        assert file.pending_count >= 0, f"{file.name}: released more entries than it held"
        self._pending_count -= count
        self._wake_deleter()

    def trim(self, until: WalPosition) -> None:
        """Say that the metadata up to there is kept elsewhere."""
        self._trim_until = max(self._trim_until, until)
        self._wake_deleter()

    async def read(self, file: WalFile, places: Sequence[tuple[int, int]]) -> bytes:
        """The data of entries that are not released yet, one behind the other, by one ranged GET; as `Wal.read`.

        Raises DamagedObject, StoreError.
        """
        part = await self.store.get_range(file.name, run_start(places), run_bytes(places))
        return decode_run(memoryview(part.data), places, name=file.name, salt=file.header.salt)

    @property
    def is_crowded(self) -> bool:
        """Whether more should be flushed than is: a start would read very much back, or there is much to remember."""
        return self._objects_bytes >= self.max_bytes * CROWDED_FRACTION or self._pending_count >= CROWDED_ENTRIES_COUNT

    async def settle(self) -> None:
        """Wait until everything that was appended before is durable. Raises StorageFailed."""
        drafts = [*self._under_way, *self._full]
        if self._filling.entries:
            drafts.append(self._filling)
        if drafts:
            await drafts[-1].round.wait()

    def statistics(self) -> S3WalStatistics:
        waiting = [*self._under_way, *self._full, self._filling]
        return S3WalStatistics(
            put_count=sum(self.put_seconds.counts),
            entry_count=self._entry_count,
            written_bytes=self._written_bytes,
            under_way_count=len(self._under_way),
            queued_count=sum(len(draft.entries) for draft in waiting),
            queued_bytes=sum(draft.size_bytes for draft in waiting),
            object_count=len(self._objects),
            object_bytes=self._objects_bytes,
            pending_count=self._pending_count,
            retry_count=self._retry_count,
        )

    # ---- what the broker runs ---------------------------------------------------------------------------------

    async def replay(self, earlier: EarlierLog, handle: Callable[[WalEntry], bool]) -> None:
        """Hand every entry of earlier epochs to `handle`, in order; to be called once.

        What it says that it needs is pending until it is released. Raises DamagedObject, StoreError.
        """
        replayed = await earlier.replay(handle)
        self._objects.extendleft(reversed(replayed))
        self._objects_bytes += sum(each.size_bytes for each in replayed)
        self._pending_count += sum(each.pending_count for each in replayed)
        self._wake_deleter()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what is appended, until cancelled; what is not acknowledged by then may be in the bucket or not.

        Raises Fenced when another broker has taken over.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._delete_released)
                task_status.started()
                while self._fenced is None:
                    self._work = trio.Event()
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
        """The next object to write, if one is due and may go."""
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
        return self._filling.began_at + (self.interval_seconds if self._under_way else 0.0)

    def _number(self, draft: _Draft) -> None:
        """Give the object its place in the log; its bytes are the same from now on, however often they are sent."""
        draft.header = ObjectHeader(
            salt=random.getrandbits(32),
            epoch=self.epoch,
            entry_count=len(draft.entries),
            number=self._next_number,
            durable_number=self.durable_position.number,
            sequence=draft.entries[0].sequence,
            body_bytes=draft.size_bytes,
        )
        draft.key = NumberedKey(namespace=self.namespace, kind="wal", epoch=self.epoch, number=self._next_number).key
        self._next_number += 1
        self._under_way.append(draft)

    async def _write(self, draft: _Draft) -> None:
        assert draft.header is not None
        began = trio.current_time()
        parts = encode_object(draft.header, draft.entries, durable_sequence=self._durable_sequence)
        try:
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
        """Until it is there. Raises Fenced if something else is."""
        attempts_count = 0
        while True:
            try:
                await self._put_or_find(key, parts)
                return
            except StoreError as exc:
                attempts_count += 1
                if attempts_count == 1:
                    logger.error("writing %s failed, produces wait until it succeeds: %s", key, exc)
                self._retry_count += 1
                await trio.sleep(RETRY_SECONDS)

    async def _put_or_find(self, key: str, parts: Sequence[Buffer]) -> None:
        """An earlier attempt of ours, whose reply was lost, may have written it: nobody else has our epoch."""
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
        self._pending_count += len(records)
        self._durable_sequence = draft.entries[-1].sequence
        self.durable_position = written.position
        if len(records) < len(draft.entries):
            self.metadata_position = written.position
        self._entry_count += len(draft.entries)
        self._written_bytes += written.size_bytes
        if records:
            self.on_durable(records)
        draft.round.succeed()
        if self.is_crowded:
            self.on_crowded()

    def _close(self) -> None:
        """Refuse further appends and fail whoever still waits."""
        self._closed = StorageFailed(str(self._fenced or "the write-ahead log in the bucket is closed"))
        for draft in (*self._under_way, *self._full, self._filling):
            draft.round.fail(self._closed)

    # ---- deletion ---------------------------------------------------------------------------------------------

    def _wake_deleter(self) -> None:
        if self._can_delete():
            self._released.set()

    def _can_delete(self) -> bool:
        if not self._objects or self._objects[0].position == self.durable_position:
            return False
        oldest = self._objects[0]
        return not oldest.pending_count and oldest.position <= self._trim_until

    async def _delete_released(self) -> None:
        while True:
            while self._can_delete():
                oldest = self._objects[0]
                try:
                    await self.store.delete([oldest.name])
                except StoreError as exc:
                    logger.warning("%s could not be deleted yet: %s", oldest.name, exc)
                    await trio.sleep(DELETE_RETRY_SECONDS)
                else:
                    self._objects.remove(oldest)  # a replay may have put others before it
                    self._objects_bytes -= oldest.size_bytes
            self._released = trio.Event()
            await self._released.wait()
