"""Streams: the log of each incarnation, where several brokers share a bucket (`s3-wal`). Replay and follow them.

A stream has record batches only. When an incarnation ends without releasing its partitions, the metadata names, for
each of them, the streams from which the next leader must recover:

    end       put a fence, before anything is listed: nothing more is acknowledged by that stream
    replay    what no segment has, of several streams in the order of the leaders
    lead      decide where the new epoch begins, serve, flush; then the partition needs the stream no more

These steps can be repeated after an interruption. The controller deletes streams that no partition needs
(`delete_unneeded`), except for their fences. The log of a broker that was alone before counts as one stream, numbered
by its last epoch: `alone_until`.

A broker can follow another one's stream (`FollowedStream`) to serve its acknowledged, unflushed batches: list the
objects, then GET the next number repeatedly while a fetch waits. Now and then it checks that the oldest object still
exists; it is deleted before any other, so then nothing was deleted. Otherwise it lists again, and begins anew if the
next object was deleted. An object counts when all before it exist, even if its writer does not know of its PUT yet:
who ends the stream puts the fence behind it. A reader of segments looks at the stream first: what has gone since is in
a segment.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.errors import NotFound, StorageFailed
from kafscale.formats.manifest import PartitionId
from kafscale.formats.wal_entries import WalEntry, WalFile, decode_run, run_bytes, run_start
from kafscale.formats.wal_index import LoggedBatch, LoggedObject
from kafscale.formats.wal_objects import HEADER_BYTES, WalObject, WalPosition, decode_header, wal_object
from kafscale.formats.wal_runs import LogEpoch, LogRun, check_place, list_epoch, list_log, wal_key
from kafscale.log.wal.journal import CROWDED_ENTRIES_COUNT, EntryJournal, Handle, Round
from kafscale.log.wal.s3_replay import FENCES_KEPT_COUNT, EarlierLog, end_stream, find_log
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import guarded
from kafscale.store.versions import undisturbed

DELETED_AT_ONCE_COUNT = 1000  # S3's, of one request

logger = logging.getLogger(__name__)

Recover = Mapping[PartitionId, Sequence[int]]  # the streams that each partition is to be recovered from, in order


class Earlier(Protocol):
    """The bucket's log of earlier brokers: `EarlierLog` or `EarlierStreams`."""

    async def replay(self, handle: Handle, *, on_progress: Callable[[int], None] | None = None) -> Sequence[WalObject]:
        """Replay it, as `EarlierLog.replay` does."""


@attrs.frozen(eq=False, repr=False)
class EarlierStreams:
    """Ended streams, and from which of them each partition is to be recovered."""

    logs: Mapping[int, EarlierLog]
    recover: Recover

    async def replay(self, handle: Handle, *, on_progress: Callable[[int], None] | None = None) -> Sequence[WalObject]:
        """Replay the entries of these partitions, each from its streams in order, as `EarlierLog.replay`."""
        replayed: list[WalObject] = []
        for number, partitions in passes(self.recover):
            handle_of = partial(_handle_of, partitions, handle)
            replayed += await self.logs[number].replay(handle_of, partitions=partitions, on_progress=on_progress)
        return replayed


def _handle_of(partitions: Collection[PartitionId], handle: Handle, entry: WalEntry) -> bool:
    return (entry.topic_id, entry.partition) in partitions and handle(entry)


def passes(recover: Recover) -> Iterator[tuple[int, Collection[PartitionId]]]:
    """Iterate over the streams and their partitions: each stream once, as far as the orders allow."""
    left = {partition_id: list(numbers) for partition_id, numbers in recover.items() if numbers}
    while left:
        later = {number for numbers in left.values() for number in numbers[1:]}
        first = {numbers[0] for numbers in left.values()}
        number = min(first - later or first)
        partitions = {partition_id for partition_id, numbers in left.items() if numbers[0] == number}
        yield number, partitions
        for partition_id in partitions:
            if not left[partition_id][1:]:
                del left[partition_id]
            else:
                del left[partition_id][0]


@attrs.define(eq=False, kw_only=True, repr=False)
class Streams:
    """Ends streams for the broker of an incarnation."""

    store: ObjectStore
    namespace: str
    incarnation: int
    alone_until: int
    _ended: dict[int, EarlierLog] = attrs.field(factory=dict, init=False)
    _ending: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def end(self, recover: Recover) -> EarlierStreams:
        """End these streams, each once. Raises DamagedObject, StoreError."""
        numbers = Counter(number for numbers_of_one in recover.values() for number in numbers_of_one)
        async with self._ending:
            for number in sorted(numbers):
                if number not in self._ended:
                    self._ended[number] = await self._end(number)
        return EarlierStreams({number: self._ended[number] for number in numbers}, recover)

    async def _end(self, number: int) -> EarlierLog:
        if number > self.alone_until:
            return await end_stream(self.store, self.namespace, number, taken_by=self.incarnation)
        kept_until = WalPosition(number, 0)  # each epoch before it has ended with a fence
        return await find_log(self.store, self.namespace, kept_until=kept_until, last_epoch=number)


async def delete_unneeded(
    store: ObjectStore, namespace: str, needed: Collection[int], *, before: int, alone_until: int
) -> None:
    """Delete the streams that are not `needed`, of incarnations below `before`. Raises StoreError, Fenced.

    `needed` and `before` are of one state of the metadata; an unneeded stream is never needed again. The last
    FENCES_KEPT_COUNT fences stay, and others go after everything that they end, since they tell that missing objects
    were deleted. Can be repeated after a failure.
    """
    is_alone_needed = any(number <= alone_until for number in needed)
    unneeded = {
        epoch: listed
        for epoch, listed in (await list_log(store, namespace)).items()
        if epoch < before and epoch not in needed and not (is_alone_needed and epoch <= alone_until)
    }
    without_fences = sorted(unneeded)[:-FENCES_KEPT_COUNT]
    keys: list[str] = []
    old_fences: list[str] = []
    for epoch, listed in sorted(unneeded.items()):
        fence = max((number for number, size_bytes in listed.items() if size_bytes <= HEADER_BYTES), default=0)
        keys += [wal_key(namespace, epoch, number).key for number in sorted(listed) if number != fence]
        if fence and epoch in without_fences:
            old_fences.append(wal_key(namespace, epoch, fence).key)
    if keys or old_fences:
        await guarded(store).delete_in_turn([*_batches(keys), *_batches(old_fences)])
        count = len(keys) + len(old_fences)
        logger.info("%d objects of write-ahead logs that have been recovered are deleted", count)


def _batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(keys), DELETED_AT_ONCE_COUNT):
        yield keys[at : at + DELETED_AT_ONCE_COUNT]


LOOK_BACK_SECONDS = 5.0  # from one look back to the next
PAUSE_MAX_SECONDS = 1.0  # between two looks: much can't have been written, flushed and deleted meanwhile
KEPT_MAX_COUNT = 10_000  # objects: of 50 ms each, those of eight minutes


@attrs.define(eq=False, repr=False)
class ObjectMemory:
    """The bytes of an object, which live while they are referenced: a `Memory` that is never reused."""

    view: memoryview

    @property
    def held_bytes(self) -> int:
        return len(self.view)

    def retain(self) -> None: ...

    def release(self) -> None: ...


@attrs.define(eq=False, repr=False)
class FollowedObject:
    """An object of the stream; `memory` has its bytes while there is room for them."""

    written: WalObject
    next_sequence: int
    batches: Mapping[PartitionId, Sequence[LoggedBatch]]
    memory: ObjectMemory | None

    @property
    def batch_count(self) -> int:
        return sum(map(len, self.batches.values()))


@attrs.define(eq=False, repr=False)
class Contents:
    """The bytes of the latest objects of all followed streams. `on_evicted` gets those that no longer fit."""

    max_bytes: int
    on_evicted: Callable[[FollowedObject], None]
    used_bytes: int = attrs.field(default=0, init=False)
    _objects: deque[FollowedObject] = attrs.field(factory=deque, init=False)

    def add(self, followed: FollowedObject) -> None:
        self._objects.append(followed)
        self.used_bytes += followed.written.size_bytes
        while self.used_bytes > self.max_bytes:
            oldest = self._objects.popleft()
            self.used_bytes -= oldest.written.size_bytes
            self.on_evicted(oldest)
            oldest.memory = None


@attrs.define(eq=False, kw_only=True, repr=False)
class FollowedStream:
    """Reads a stream. `on_object` gets new objects, in order; `on_lost` is called for a gap by deletions."""

    store: ObjectStore
    namespace: str
    incarnation: int
    contents: Contents
    on_object: Callable[[FollowedObject], None]
    on_lost: Callable[[FollowedStream], None]
    objects: deque[FollowedObject] = attrs.field(factory=deque, init=False)  # without a gap; oldest first
    has_ended: bool = attrs.field(default=False, init=False)  # by a fence
    looked_at: float = attrs.field(default=-math.inf, init=False)
    _next_number: int = attrs.field(default=0, init=False)  # 0 before it is listed
    _oldest_number: int = attrs.field(default=0, init=False)  # when it was listed last, or the first to come
    _looked_back_at: float = attrs.field(default=-math.inf, init=False)
    _batch_count: int = attrs.field(default=0, init=False)
    _looking: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _begun_count: int = attrs.field(default=0, init=False)
    _done_count: int = attrs.field(default=0, init=False)

    @property
    def next_number(self) -> int:
        """The number of the next object; 0 if it is not known."""
        return self._next_number

    async def catch_up(self) -> None:
        """Read everything acknowledged before this call. Raises DamagedObject, StoreError."""
        begun_before = self._begun_count
        async with self._looking:
            if self._done_count > begun_before:
                return
            self._begun_count += 1
            began = self._begun_count
            await self._look()
            self._done_count = began

    def begin_anew(self) -> None:
        """List the stream again at the next look, as known objects are gone."""
        self.objects.clear()
        self._next_number = self._batch_count = 0
        self.on_lost(self)

    async def _look(self) -> None:
        now = trio.current_time()
        paused_seconds, self.looked_at = now - self.looked_at, now
        if not self._next_number:
            await self._list()
        while not self.has_ended and await self._get_next():
            self._looked_back_at = now
        if not self.has_ended and (
            paused_seconds > PAUSE_MAX_SECONDS or now - self._looked_back_at > LOOK_BACK_SECONDS
        ):
            await self._look_back()
            self._looked_back_at = now

    async def _list(self) -> None:
        run = await undisturbed(self._find_run)
        keys = [wal_key(self.namespace, self.incarnation, number) for number in run.numbers]
        kept_until = WalPosition(self.incarnation, run.kept_number)
        earlier = EarlierLog(self.store, keys, kept_until, dict(zip(keys, run.sizes, strict=True)))
        self.objects.clear()
        self._batch_count = 0
        for group in earlier.groups(keys):
            for key, data in await earlier.read_all(group):
                await self._take(key.number, data)
        self._next_number, self.has_ended = run.end, run.has_fence
        self._oldest_number = _oldest_of(run)
        self._looked_back_at = self.looked_at

    async def _find_run(self) -> LogRun:
        listed = await list_epoch(self.store, self.namespace, self.incarnation)
        return await LogEpoch(self.store, self.namespace, self.incarnation).look_at_stream(listed)

    async def _get_next(self) -> bool:
        """Read the next object; False if it does not exist."""
        number = self._next_number
        try:
            data = (await self.store.get(wal_key(self.namespace, self.incarnation, number).key)).data
        except NotFound:
            return False
        if len(data) <= HEADER_BYTES and decode_header(str(number), data).is_fence:
            self.has_ended = True
            return False
        await self._take(number, data)
        self._next_number = number + 1
        return True

    async def _take(self, number: int, data: Buffer) -> None:
        key = wal_key(self.namespace, self.incarnation, number)
        view = memoryview(data)
        logged = LoggedObject.decode(key, view)
        last = self.objects[-1] if self.objects else None
        expected: WalPosition | None = None
        if last is not None and last.written.position.number + 1 == number:
            expected = WalPosition(self.incarnation, last.next_sequence)
        check_place(key, logged.header, expected)
        followed = FollowedObject(
            wal_object(key.key, self.incarnation, logged.header),
            logged.header.sequence + logged.header.entry_count,
            logged.batches,
            ObjectMemory(view),
        )
        await trio.lowlevel.checkpoint()
        self.objects.append(followed)
        self._batch_count += followed.batch_count
        while len(self.objects) > KEPT_MAX_COUNT or self._batch_count > CROWDED_ENTRIES_COUNT:
            self._batch_count -= self.objects.popleft().batch_count
        self.contents.add(followed)
        self.on_object(followed)

    async def _look_back(self) -> None:
        if await self._has_all():
            return
        run = await undisturbed(self._find_run)
        while not self.has_ended and await self._get_next():
            pass
        if self._next_number <= run.kept_number:
            self.begin_anew()
            await self._list()
        else:
            self._oldest_number = _oldest_of(run)

    async def _has_all(self) -> bool:
        """Tell whether nothing was deleted since the stream was listed."""
        if self._oldest_number == self._next_number:
            return False  # nothing has come
        try:
            await self.store.head(wal_key(self.namespace, self.incarnation, self._oldest_number).key)
        except NotFound:
            return False
        return True


def _oldest_of(run: LogRun) -> int:
    return run.numbers[0] if run.numbers else run.end


@attrs.frozen(eq=False, repr=False)
class FollowedJournal(EntryJournal):
    """The journal of partitions that this broker only follows: it reads objects and keeps none."""

    store: ObjectStore

    def append(self, entry: WalEntry) -> Round:
        raise StorageFailed("the partition is led by another broker")

    def retain(self, file: WalFile) -> None: ...

    def release(self, file: WalFile, count: int = 1) -> None: ...

    async def read(self, file: WalFile, places: Sequence[tuple[int, int]]) -> bytes:
        """Read entries by one ranged GET. Raises NotFound if they have been flushed; DamagedObject, StoreError."""
        part = await self.store.get_range(file.name, run_start(places), run_bytes(places))
        return decode_run(memoryview(part.data), places, name=file.name, salt=file.header.salt)
