"""Take over the log in the bucket at a start: find its end, put a fence there, and read its entries.

`kafscale.formats.wal_runs` decides which objects belong to the log. `take_over` puts a fence into the first gap of each
earlier epoch, at the number that the older broker must write before it can acknowledge anything more. Of the two
conditional writes the first one decides, for both brokers:

    the fence     the older broker's write is refused; nothing from there on was acknowledged, and is deleted here
    the object    the fence is refused; the object belongs to the log, and the fence goes behind it

A conditional write can arrive late, after the object at its number was deleted. So a fence up to `kept_until` is
ignored, and an object up to there is replayed, and found not to be needed. The earlier leader may go on with deletions
for a moment: a listed object that is gone is ignored up to `kept_until`. A gap behind `kept_until` is damage if a later
object tells that the missing one was acknowledged; so is a gap up to there if an entry before it is still needed.

`end_stream` does the same with the stream of one incarnation (`kafscale.log.wal.streams`). The last FENCES_KEPT_COUNT
fences stay, about 60 bytes each, so that a broker that was suspended for long still meets its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.concurrency.nurseries import for_each
from kafscale.errors import DamagedObject, Fenced, NotFound, PreconditionFailed
from kafscale.formats.manifest import PartitionId
from kafscale.formats.wal_entries import RECORD_BATCH, WalEntry
from kafscale.formats.wal_index import HEAD_BYTES, INDEXED_LEAST_BYTES, SpanRun, decode_spans, find_index, runs_of
from kafscale.formats.wal_objects import (
    START,
    ObjectHeader,
    WalObject,
    WalPosition,
    decode_header,
    decode_object,
    encode_header,
    wal_object,
)
from kafscale.formats.wal_runs import (
    Listed,
    LogEpoch,
    LogRun,
    check_place,
    find_keys,
    is_gap,
    list_epoch,
    list_log,
    position_of,
    wal_key,
)
from kafscale.log.wal.journal import Handle
from kafscale.store.base import ObjectStore
from kafscale.store.paths import EPOCH_MAX, NumberedKey
from kafscale.store.versions import undisturbed

FENCES_KEPT_COUNT = 1000  # starts that a broker may have been suspended for and still be stopped
READS_AT_ONCE_COUNT = 8  # whole objects in memory while replaying, of which it is not known how large they are
SMALL_READS_AT_ONCE_COUNT = 32  # a stream that is not busy has 20 small objects for each second
READ_AT_ONCE_BYTES = 64 << 20
SLICE_COUNT = 1000  # entries between two checkpoints

T = TypeVar("T")

logger = logging.getLogger(__name__)


@attrs.frozen(eq=False, repr=False)
class EarlierLog:
    """The log of all earlier epochs: the keys of its objects, in order, without the fences.

    An object up to `kept_until` may have been deleted. `sizes` are those that are known.
    """

    store: ObjectStore
    keys: Sequence[NumberedKey]
    kept_until: WalPosition = START
    sizes: Mapping[NumberedKey, int] = attrs.field(factory=dict)

    async def replay(
        self,
        handle: Handle,
        *,
        after: WalPosition = START,
        partitions: Collection[PartitionId] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Sequence[WalObject]:
        """Hand every entry behind `after` to `handle`, in order; its data is valid during the call only.

        Entries that `handle` needs are pending until released. With `partitions`, other entries may not be read.
        Returns the objects; several are in memory at once. Raises DamagedObject, StoreError; NotFound if an object
        behind `kept_until` has gone.
        """
        wanted = [key for key in self.keys if position_of(key) > after]
        replayed: list[WalObject] = []
        expected: WalPosition | None = None
        entry_count = 0
        for group in self.groups(wanted):
            for key, read in await self._read_objects(group, partitions):
                header = read.header
                if replayed and is_gap(replayed[-1].position, position_of(key)):
                    _check_unneeded(replayed, key)
                    expected = None
                check_place(key, header, expected)
                expected = WalPosition(key.epoch, header.sequence + header.entry_count)
                replayed.append(await _replay_object(wal_object(key.key, key.epoch, header), read.entries, handle))
                entry_count += len(read.entries)
            if on_progress is not None:
                on_progress(entry_count)
        return replayed

    def groups(self, wanted: Iterable[NumberedKey]) -> Iterator[Sequence[NumberedKey]]:
        group: list[NumberedKey] = []
        group_bytes = 0
        for key in wanted:
            size_bytes = self.sizes.get(key, READ_AT_ONCE_BYTES // READS_AT_ONCE_COUNT)
            if group and (len(group) == SMALL_READS_AT_ONCE_COUNT or group_bytes + size_bytes > READ_AT_ONCE_BYTES):
                yield group
                group, group_bytes = [], 0
            group.append(key)
            group_bytes += size_bytes
        if group:
            yield group

    async def read_all(self, keys: Sequence[NumberedKey]) -> Sequence[tuple[NumberedKey, Buffer]]:
        """Read the objects that still exist, in order."""

        async def read(key: NumberedKey) -> Buffer:
            return (await self.store.get(key.key)).data

        return await self._all_that_are_there(keys, read)

    async def _read_objects(
        self, keys: Sequence[NumberedKey], partitions: Collection[PartitionId] | None
    ) -> Sequence[tuple[NumberedKey, ReadObject]]:
        async def read(key: NumberedKey) -> ReadObject:
            if partitions is not None and self.sizes.get(key, 0) > INDEXED_LEAST_BYTES:
                return await read_entries_of(self.store, key.key, partitions)
            return await read_object(self.store, key.key)

        return await self._all_that_are_there(keys, read)

    async def _all_that_are_there(
        self, keys: Sequence[NumberedKey], read_one: Callable[[NumberedKey], Awaitable[T]]
    ) -> Sequence[tuple[NumberedKey, T]]:
        contents: dict[NumberedKey, T] = {}

        async def read(key: NumberedKey) -> None:
            try:
                contents[key] = await read_one(key)
            except NotFound:
                if position_of(key) > self.kept_until:
                    raise
                logger.info("%s has been deleted since it was listed: all in it is kept elsewhere", key.key)

        await for_each(keys, read, tasks_count=len(keys))
        return [(key, contents[key]) for key in keys if key in contents]


def _check_unneeded(replayed: Sequence[WalObject], following: NumberedKey) -> None:
    """Check that objects missing before `following` were deleted: then nothing before them is needed."""
    needed = next((object_ for object_ in replayed if object_.pending_count), None)
    if needed is not None:
        missing = attrs.evolve(following, number=replayed[-1].position.number + 1)
        raise DamagedObject(f"{missing.key} is missing: nothing behind {needed.name} can have been deleted on purpose")


async def _replay_object(
    replayed: WalObject, entries: Sequence[WalEntry], handle: Callable[[WalEntry], bool]
) -> WalObject:
    for number, entry in enumerate(entries, start=1):
        entry.file = replayed
        if handle(entry) and entry.kind == RECORD_BATCH:
            replayed.pending_count += 1
        if number % SLICE_COUNT == 0:
            await trio.lowlevel.checkpoint()
    return replayed


# ---- where the log ends ----------------------------------------------------------------------------------------------


async def take_over(
    store: ObjectStore, namespace: str, epoch: int, *, kept_until: WalPosition, ignores_later: bool = False
) -> EarlierLog:
    """End the log of every epoch before `epoch`, which the caller has claimed, and return what it holds.

    Objects up to `kept_until` may have been deleted, as a checkpoint has their metadata. `ignores_later`: later epochs
    are streams of brokers that share the bucket; otherwise Fenced is raised for one. Raises DamagedObject, StoreError.
    """
    listed = await list_log(store, namespace)
    if ignores_later:
        listed = {earlier: found for earlier, found in listed.items() if earlier < epoch}
    if any(later > epoch for later in listed):
        raise Fenced(f"a broker of epoch {max(listed)} has taken over while this one, of epoch {epoch}, was starting")
    first = max(0, epoch - FENCES_KEPT_COUNT)
    keys: list[NumberedKey] = []
    for earlier in sorted({*listed, *range(max(first, kept_until.epoch), epoch)}):
        ending = _Epoch(store, namespace, earlier, taken_by=epoch, fence_epoch=epoch)
        found = await ending.end(listed.get(earlier, {}), kept_until)
        keys += found
        if earlier < first and not found:
            await _delete(store, [wal_key(namespace, earlier, number) for number in sorted(listed[earlier])])
    return EarlierLog(store, keys, kept_until)


async def find_log(
    store: ObjectStore, namespace: str, *, kept_until: WalPosition, last_epoch: int = EPOCH_MAX
) -> EarlierLog:
    """Return what `take_over` would return, without writing. Raises DamagedObject, StoreError."""
    return EarlierLog(store, await find_keys(store, namespace, kept_until, last_epoch=last_epoch), kept_until)


async def end_stream(store: ObjectStore, namespace: str, incarnation: int, *, taken_by: int) -> EarlierLog:
    """End the stream of an incarnation that may lead no more, and return what it holds.

    `taken_by` is the incarnation that takes over; several may do so at once, and again. Raises DamagedObject,
    StoreError.
    """
    run = await _Epoch(store, namespace, incarnation, fence_epoch=taken_by).end_stream()
    keys = [wal_key(namespace, incarnation, number) for number in run.numbers]
    kept_until = WalPosition(incarnation, run.kept_number)
    return EarlierLog(store, keys, kept_until, dict(zip(keys, run.sizes, strict=True)))


async def _delete(store: ObjectStore, keys: Sequence[NumberedKey]) -> None:
    """Delete one at a time and in order, so that a crash leaves no gap."""
    for key in keys:
        await store.delete([key.key])


@attrs.frozen
class _Epoch(LogEpoch):
    """One epoch of the log, to be ended by a fence of `fence_epoch`."""

    fence_epoch: int = attrs.field(kw_only=True)

    async def end(self, listed: Listed, kept_until: WalPosition) -> Sequence[NumberedKey]:
        """Put a fence behind the run of objects, unless there is one, and return their keys."""
        while True:
            run = await self.look(listed, kept_until)
            if await self._has_ended(run):
                return self.keys(run)
            listed = await list_epoch(self.store, self.namespace, self.epoch)

    async def end_stream(self) -> LogRun:
        while True:
            run = await undisturbed(self._look_at_stream)
            if await self._has_ended(run):
                return run

    async def _look_at_stream(self) -> LogRun:
        return await self.look_at_stream(await list_epoch(self.store, self.namespace, self.epoch))

    async def _has_ended(self, run: LogRun) -> bool:
        """Put a missing fence, and delete what is outside of the run. False if that broker was faster."""
        if not (run.has_fence or await self._fence(run.end)):
            return False
        for number in run.leftover:
            logger.warning("%s was never acknowledged and is deleted", self.key(number).key)
        await _delete(self.store, [self.key(number) for number in (*run.late_fences, *run.leftover)])
        return True

    async def _fence(self, number: int) -> bool:
        """Put a fence; False if an object is there."""
        header = ObjectHeader(
            salt=0,
            epoch=self.fence_epoch,
            entry_count=0,
            number=number,
            durable_number=number - 1,
            sequence=0,
            body_bytes=0,
        )
        try:
            await self.store.put_if_absent(self.key(number).key, [encode_header(header)])
        except PreconditionFailed:
            return False
        return True


WHOLE_FRACTION = 0.75  # of an object: who wants that much gets all of it by one GET


@attrs.frozen(eq=False, repr=False)
class ReadObject:
    """The entries of an object; their data are views."""

    header: ObjectHeader
    entries: Sequence[WalEntry]


async def read_object(store: ObjectStore, key: str) -> ReadObject:
    """Read all entries. Raises NotFound, DamagedObject, StoreError."""
    return ReadObject(*decode_object(key, (await store.get(key)).data))


async def read_entries_of(store: ObjectStore, key: str, partitions: Collection[PartitionId]) -> ReadObject:
    """Read at least the entries of these partitions, in order. Raises NotFound, DamagedObject, StoreError."""
    head = await store.get_range(key, 0, HEAD_BYTES)
    header = decode_header(key, head.data)
    index = find_index(key, header, head.data)
    runs = [] if index is None else runs_of(index[wanted] for wanted in index.keys() & set(partitions))
    if index is None or sum(run.size_bytes for run in runs) > head.object_size_bytes * WHOLE_FRACTION:
        return await read_object(store, key)
    entries: dict[int, Sequence[WalEntry]] = {}  # by where they begin

    async def read(run: SpanRun) -> None:
        part = await store.get_range(key, run.start, run.size_bytes)
        if len(part.data) != run.size_bytes:
            raise DamagedObject(f"{key}: cut off, {len(part.data)} of {run.size_bytes} bytes at {run.start}")
        entries[run.start] = decode_spans(key, header, run, part.data)

    await for_each(runs, read, tasks_count=len(runs))
    return ReadObject(header, [entry for run in runs for entry in entries[run.start]])
