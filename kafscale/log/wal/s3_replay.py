"""Taking over the write-ahead log in the bucket at a start: where it ends, a fence at that place, and its entries.

A broker has several objects under way at once, so behind the first number that is missing there may be later ones. It
acknowledges strictly in order, so what counts of an epoch is the run of numbers up to the first gap. `take_over` puts a
fence into that gap, for each epoch before its own: the object that an older broker must still write before it can
acknowledge anything more. Whichever of the two conditional writes comes first decides, for both, whether that object is
part of the log:

    the fence is first      the older broker's write is refused; it has not acknowledged it and never will, nor
                            anything behind it, which is deleted here
    the object is first     the fence is refused; the object is part of the log, and the fence goes behind it

A conditional write can also arrive late: when what was at its number has been deleted, and then nothing refuses it. It
may be a fence of a start that was killed, or an object whose writer tried again. Deleted is in order, and only what a
checkpoint of the metadata has, so `kept_until` tells: whatever is missing up to there was acknowledged and then
deleted. A fence up to there is a leftover. An object up to there is replayed for safety's sake, and found not to be
needed. In an epoch that has ended before `kept_until`, only the last fence is one.

Whoever led before may go on deleting for a moment, what it had decided to while it led. So an object that was listed
may be gone when it is read; up to `kept_until` that is as if it had not been listed.

A gap behind `kept_until` that comes before an object which was made when the missing one had been acknowledged is
damage. So is one up to there, if what comes before it is still needed. But a listing comes in pages, and whoever led
before may go on writing between two of them: of an object that came when its page had been made, a later page tells
that it was acknowledged. So what is missing is looked for itself before it is called missing.

Fences stay when everything before them is deleted, so that a broker that was suspended for hours still meets its own:
one object of some 60 bytes for each start, of which the last FENCES_KEPT_COUNT are kept.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import count

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.concurrency.nurseries import ungrouped
from kafscale.errors import DamagedObject, Fenced, NotFound, PreconditionFailed
from kafscale.formats.wal_entries import RECORD_BATCH, WalEntry
from kafscale.formats.wal_objects import (
    HEADER_BYTES,
    START,
    ObjectHeader,
    WalObject,
    WalPosition,
    decode_header,
    decode_object,
    encode_header,
    wal_object,
)
from kafscale.log.wal.journal import Handle, ReplayProgress
from kafscale.store.base import ObjectStore
from kafscale.store.paths import EPOCH_MAX, NumberedKey, parse_numbered_key, system_prefix

FENCES_KEPT_COUNT = 1000  # starts that a broker may have been suspended for and still be stopped
READS_AT_ONCE_COUNT = 8  # whole objects in memory while replaying
SLICE_COUNT = 1000  # entries between two checkpoints

logger = logging.getLogger(__name__)


Listed = Mapping[int, int]  # of one epoch: number of an object -> its size in bytes


@attrs.frozen(eq=False, repr=False)
class EarlierLog:
    """The log of all epochs before ours: the keys of what counts, in order, without the fences.

    What was deleted up to `kept_until`, even since it was listed, was in order.
    """

    store: ObjectStore
    keys: Sequence[NumberedKey]
    kept_until: WalPosition = START

    async def replay(
        self,
        handle: Handle,
        *,
        after: WalPosition = START,
        on_progress: Callable[[ReplayProgress], None] | None = None,
    ) -> Sequence[WalObject]:
        """Hand every entry behind `after` to `handle`, in order; its data is a view that is valid during the call only.

        `handle` says whether the entry is still needed: then it is pending in its object until it is released. Returns
        the objects, of which at most READS_AT_ONCE_COUNT are in memory at once; `on_progress` is called after so many.
        Raises DamagedObject, StoreError, of which NotFound says that an object behind `kept_until` has gone since it
        was listed.
        """
        wanted = [key for key in self.keys if _position(key) > after]
        replayed: list[WalObject] = []
        expected: WalPosition | None = None
        entry_count = read_bytes = 0
        for start in range(0, len(wanted), READS_AT_ONCE_COUNT):
            group = wanted[start : start + READS_AT_ONCE_COUNT]
            for key, content in await self._read_all(group):
                header, entries = decode_object(key.key, content)
                if replayed and _is_gap(replayed[-1].position, _position(key)):
                    _check_unneeded(replayed, key)
                    expected = None
                _check_place(key, header, expected)
                expected = WalPosition(key.epoch, header.sequence + header.entry_count)
                replayed.append(await _replay_object(wal_object(key.key, key.epoch, header), entries, handle))
                entry_count += header.entry_count
                read_bytes += len(content)
            if on_progress is not None:
                on_progress(ReplayProgress(len(replayed), len(wanted), entry_count, read_bytes))
        return replayed

    async def _read_all(self, keys: Sequence[NumberedKey]) -> Sequence[tuple[NumberedKey, Buffer]]:
        """Read the objects that are still there, and return them in order."""
        contents: dict[NumberedKey, Buffer] = {}

        async def read(key: NumberedKey) -> None:
            try:
                contents[key] = (await self.store.get(key.key)).data
            except NotFound:
                if _position(key) > self.kept_until:
                    raise
                logger.info("%s has been deleted since it was listed: all in it is kept elsewhere", key.key)

        with ungrouped():
            async with trio.open_nursery() as nursery:
                for each in keys:
                    nursery.start_soon(read, each)
        return [(each, contents[each]) for each in keys if each in contents]


def _position(key: NumberedKey) -> WalPosition:
    return WalPosition(key.epoch, key.number)


def _is_gap(before: WalPosition, position: WalPosition) -> bool:
    """Tell whether objects of one epoch are missing between these two."""
    return before.epoch == position.epoch and before.number + 1 < position.number


def _check_unneeded(replayed: Sequence[WalObject], following: NumberedKey) -> None:
    """Check that what is missing before `following` was deleted: then nothing before it is needed.

    Raises DamagedObject.
    """
    needed = next((each for each in replayed if each.pending_count), None)
    if needed is not None:
        missing = attrs.evolve(following, number=replayed[-1].position.number + 1)
        raise DamagedObject(f"{missing.key} is missing: nothing behind {needed.name} can have been deleted on purpose")


def _check_place(key: NumberedKey, header: ObjectHeader, expected: WalPosition | None) -> None:
    """Check what the object says of itself against its key, and against the one before. Raises DamagedObject.

    `expected` is the epoch of that one, and the number of the entry behind its last.
    """
    if (header.epoch, header.number) != (key.epoch, key.number):
        raise DamagedObject(f"{key.key}: says that it is object {header.number} of epoch {header.epoch}")
    if expected is not None and expected.epoch == key.epoch and expected.number != header.sequence:
        raise DamagedObject(
            f"{key.key}: begins with entry {header.sequence}, but entry {expected.number} follows the object before it"
        )


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


async def take_over(store: ObjectStore, namespace: str, epoch: int, *, kept_until: WalPosition) -> EarlierLog:
    """End the log of every epoch before `epoch`, which the caller has claimed, and return what it holds.

    `kept_until`: what is missing up to there was deleted, as its metadata is kept elsewhere. Raises DamagedObject,
    Fenced if a later epoch has begun, StoreError.
    """
    listed = await list_log(store, namespace)
    if any(later > epoch for later in listed):
        raise Fenced(f"a broker of epoch {max(listed)} has taken over while this one, of epoch {epoch}, was starting")
    first = max(0, epoch - FENCES_KEPT_COUNT)
    keys: list[NumberedKey] = []
    for each in sorted({*listed, *range(max(first, kept_until.epoch), epoch)}):
        found = await _Epoch(store, namespace, each, taken_by=epoch).end(listed.get(each, {}), kept_until)
        keys += found
        if each < first and not found:
            await _delete(store, [_key(namespace, each, number) for number in sorted(listed[each])])
    return EarlierLog(store, keys, kept_until)


async def find_log(store: ObjectStore, namespace: str, *, kept_until: WalPosition) -> EarlierLog:
    """Return what `take_over` would return at a start, with nothing written. Raises DamagedObject, StoreError."""
    listed = await list_log(store, namespace)
    keys: list[NumberedKey] = []
    for each in sorted(listed):
        epoch = _Epoch(store, namespace, each, taken_by=EPOCH_MAX)
        keys += epoch.keys(await epoch.look(listed[each], kept_until))
    return EarlierLog(store, keys, kept_until)


async def list_log(store: ObjectStore, namespace: str) -> Mapping[int, Listed]:
    """Every object of the log, by epoch. Raises StoreError."""
    listed: dict[int, dict[int, int]] = defaultdict(dict)
    async with aclosing(store.list(system_prefix("wal", namespace=namespace))) as pages:
        async for page in pages:
            for info in page:
                key = parse_numbered_key(info.key)
                if key is not None:
                    listed[key.epoch][key.number] = info.size_bytes
    return listed


def _key(namespace: str, epoch: int, number: int) -> NumberedKey:
    return NumberedKey(namespace=namespace, kind="wal", epoch=epoch, number=number)


async def _delete(store: ObjectStore, keys: Sequence[NumberedKey]) -> None:
    """One at a time and in order, so that a crash leaves no gap."""
    for each in keys:
        await store.delete([each.key])


@attrs.frozen(kw_only=True)
class LogRun:
    """What counts of an epoch: the objects with these numbers, in order. At `end` there is a fence, or nothing.

    `late_fences` are before it, `leftover` behind it.
    """

    numbers: Sequence[int]
    end: int
    has_fence: bool
    late_fences: Sequence[int]
    leftover: Sequence[int]


def find_run(epoch: int, listed: Listed, kept_until: WalPosition) -> LogRun:
    """Holes only up to where what is missing was deleted, as it is kept elsewhere; from there on without a gap."""
    kept = _kept_number(epoch, listed, kept_until)
    end = next(number for number in count(kept + 1) if listed.get(number, HEADER_BYTES) <= HEADER_BYTES)
    before = [number for number in sorted(listed) if number < end]
    return LogRun(
        numbers=[number for number in before if listed[number] > HEADER_BYTES],
        end=end,
        has_fence=end in listed,
        late_fences=[number for number in before if listed[number] <= HEADER_BYTES],
        leftover=[number for number in sorted(listed) if number > end],
    )


def _kept_number(epoch: int, listed: Listed, kept_until: WalPosition) -> int:
    """The last object of the epoch that is known to have been acknowledged, 0 if none is."""
    if epoch >= kept_until.epoch:
        return kept_until.number if epoch == kept_until.epoch else 0
    fences = [number for number, size_bytes in listed.items() if size_bytes <= HEADER_BYTES]
    return max(fences) - 1 if fences else max(listed, default=0)


async def _read_header(store: ObjectStore, key: NumberedKey) -> ObjectHeader:
    return decode_header(key.key, (await store.get_range(key.key, 0, HEADER_BYTES)).data)


@attrs.frozen
class _Epoch:
    """One epoch of the log, whose end is looked for."""

    store: ObjectStore
    namespace: str
    epoch: int
    taken_by: int

    async def end(self, listed: Listed, kept_until: WalPosition) -> Sequence[NumberedKey]:
        """Put a fence behind the run of objects, unless there is one, and return that run."""
        while True:
            run = await self.look(listed, kept_until)
            if run.has_fence or await self._fence(run.end):
                for number in run.leftover:
                    logger.warning("%s was never acknowledged and is deleted", self._key(number).key)
                await _delete(self.store, [self._key(number) for number in (*run.late_fences, *run.leftover)])
                return self.keys(run)
            listed = (await list_log(self.store, self.namespace)).get(self.epoch, {})

    async def look(self, listed: Listed, kept_until: WalPosition) -> LogRun:
        """Look where the run of objects ends. Raises DamagedObject, Fenced, StoreError."""
        run = find_run(self.epoch, listed, kept_until)
        while await self._has_come(run):
            listed = (await list_log(self.store, self.namespace)).get(self.epoch, {})
            run = find_run(self.epoch, listed, kept_until)
        if not listed and run.end > 1:
            raise DamagedObject(
                f"{self._key(run.end).key} is missing: of an epoch that wrote objects at least one stays"
            )
        for number in run.late_fences:
            await self._check_fence(number)
        if run.has_fence and self.epoch >= kept_until.epoch:
            await self._check_fence(run.end)
        return run

    async def _header(self, number: int) -> ObjectHeader:
        return await _read_header(self.store, self._key(number))

    def keys(self, run: LogRun) -> Sequence[NumberedKey]:
        return [self._key(number) for number in run.numbers]

    def _key(self, number: int) -> NumberedKey:
        return _key(self.namespace, self.epoch, number)

    async def _check_fence(self, number: int) -> None:
        """Check that an object which is as short as a fence is one."""
        key = self._key(number).key
        header = decode_header(key, (await self.store.get(key)).data)
        if not header.is_fence:
            raise DamagedObject(f"{key}: cut off behind the header")
        if header.epoch > self.taken_by:
            raise Fenced(f"a broker of epoch {header.epoch} has taken over while this one was starting: {key}")

    async def _has_come(self, run: LogRun) -> bool:
        """Tell whether there is an object, by now, where the run seems to end. Raises DamagedObject if there must be.

        It is asked for only where a later one says that it had been acknowledged.
        """
        for number in run.leftover:
            if (await self._header(number)).durable_number >= run.end:
                missing = self._key(run.end).key
                try:
                    await self.store.head(missing)
                except NotFound as exc:
                    reason = f"it had been acknowledged when {self._key(number).key} was written"
                    raise DamagedObject(f"{missing} is missing: {reason}") from exc
                return True
        return False

    async def _fence(self, number: int) -> bool:
        """Put a fence, and tell whether it is in place; if not, the broker of that epoch has been faster."""
        header = ObjectHeader(
            salt=0,
            epoch=self.taken_by,
            entry_count=0,
            number=number,
            durable_number=number - 1,
            sequence=0,
            body_bytes=0,
        )
        try:
            await self.store.put_if_absent(self._key(number).key, [encode_header(header)])
        except PreconditionFailed:
            return False
        return True
