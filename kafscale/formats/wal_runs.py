"""Decide which objects belong to the write-ahead log in the bucket: one rule for a start and for readers of a live log.

A broker has several objects under way, but acknowledges strictly in order. So an epoch's log is the run of numbers up
to the first gap, whether its broker knows of all PUTs or not. The broker that takes over puts a fence, an object
without entries, at the first free number of each earlier epoch; nothing behind it was acknowledged.

Objects are deleted in order, when a checkpoint has their metadata. `kept_until` is the position of a checkpoint that
was read before the log was listed: what is missing up to there was deleted. A fence up to there came late; in an epoch
that has ended before `kept_until`, only the last fence is one.

In a *stream* of several brokers the epoch is an incarnation, and its own objects tell what was deleted: its broker
deletes an object only when a later one, which stays, says that it was acknowledged. So objects are missing rightly up
to the greatest `durable number`, which is in the last object, or up to the number before a fence.

The leader may write between two pages of a listing, so a missing object is requested by key before it is reported. May
not import trio.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from itertools import count

import attrs

from kafscale.errors import DamagedObject, Fenced, NotFound
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_objects import HEADER_BYTES, ObjectHeader, WalPosition, decode_header
from kafscale.store.base import ObjectStore
from kafscale.store.paths import EPOCH_MAX, NumberedKey, parse_numbered_key, system_prefix

Listed = Mapping[int, int]  # of one epoch: number of an object -> its size in bytes


def position_of(key: NumberedKey) -> WalPosition:
    return WalPosition(key.epoch, key.number)


def is_gap(before: WalPosition, position: WalPosition) -> bool:
    """Tell whether objects of one epoch are missing between these two."""
    return before.epoch == position.epoch and before.number + 1 < position.number


def check_place(key: NumberedKey, header: ObjectHeader, expected: WalPosition | None) -> None:
    """Check an object's header against its key, and against the next expected epoch and entry. Raises DamagedObject."""
    if (header.epoch, header.number) != (key.epoch, key.number):
        raise DamagedObject(f"{key.key}: says that it is object {header.number} of epoch {header.epoch}")
    if expected is not None and expected.epoch == key.epoch and expected.number != header.sequence:
        raise DamagedObject(
            f"{key.key}: begins with entry {header.sequence}, but entry {expected.number} follows the object before it"
        )


def is_superseded(batch: EpochStart, epochs: Sequence[EpochStart], next_offset: int) -> bool:
    """Tell whether a broker of a later epoch has written a batch's offsets, or ended the log before them.

    `batch` is its leader epoch and base offset, `epochs` the history of the partition's log up to `next_offset`.
    """
    before = [start.epoch for start in epochs if start.start_offset <= batch.start_offset]
    if batch.start_offset < next_offset:
        return bool(before) and before[-1] != batch.epoch
    return bool(before) and before[-1] > batch.epoch


# ---- what counts ----------------------------------------------------------------------------------------------------


async def list_log(store: ObjectStore, namespace: str) -> Mapping[int, Listed]:
    return await _list(store, system_prefix("wal", namespace=namespace))


async def list_epoch(store: ObjectStore, namespace: str, epoch: int) -> Listed:
    prefix = system_prefix("wal", f"{epoch:010d}", namespace=namespace)
    return (await _list(store, prefix)).get(epoch, {})


async def _list(store: ObjectStore, prefix: str) -> Mapping[int, Listed]:
    listed: dict[int, dict[int, int]] = defaultdict(dict)
    async with aclosing(store.list(prefix)) as pages:
        async for page in pages:
            for info in page:
                key = parse_numbered_key(info.key)
                if key is not None:
                    listed[key.epoch][key.number] = info.size_bytes
    return listed


def wal_key(namespace: str, epoch: int, number: int) -> NumberedKey:
    return NumberedKey(namespace=namespace, kind="wal", epoch=epoch, number=number)


@attrs.frozen(kw_only=True)
class LogRun:
    """The valid objects of an epoch, by number, in order. At `end` there is a fence, or nothing.

    `late_fences` are before it, `leftover` behind it. Objects up to `kept_number` may have been deleted.
    """

    numbers: Sequence[int]
    end: int
    has_fence: bool
    late_fences: Sequence[int]
    leftover: Sequence[int]
    kept_number: int
    sizes: Sequence[int]


def find_run(epoch: int, listed: Listed, kept_until: WalPosition) -> LogRun:
    """Find the run of an epoch, which has holes only up to where objects were deleted."""
    kept = _kept_number(epoch, listed, kept_until)
    end = next(number for number in count(kept + 1) if listed.get(number, HEADER_BYTES) <= HEADER_BYTES)
    before = [number for number in sorted(listed) if number < end]
    numbers = [number for number in before if listed[number] > HEADER_BYTES]
    return LogRun(
        numbers=numbers,
        end=end,
        has_fence=end in listed,
        late_fences=[number for number in before if listed[number] <= HEADER_BYTES],
        leftover=[number for number in sorted(listed) if number > end],
        kept_number=kept,
        sizes=[listed[number] for number in numbers],
    )


def _kept_number(epoch: int, listed: Listed, kept_until: WalPosition) -> int:
    """Return the last object of the epoch that is known to have been acknowledged, or 0."""
    if epoch >= kept_until.epoch:
        return kept_until.number if epoch == kept_until.epoch else 0
    fences = [number for number, size_bytes in listed.items() if size_bytes <= HEADER_BYTES]
    return max(fences) - 1 if fences else max(listed, default=0)


async def find_keys(
    store: ObjectStore, namespace: str, kept_until: WalPosition, *, last_epoch: int = EPOCH_MAX
) -> Sequence[NumberedKey]:
    """Find the objects that a start would replay, in order. Those behind `last_epoch` are streams.

    A fence behind an epoch is put before the next epoch's first object; a listing without it was made in between, and
    is repeated. Raises DamagedObject if an acknowledged object is missing, StoreError.
    """
    listed = await _list_until(store, namespace, last_epoch)
    if _is_between(listed, kept_until):
        listed = await _list_until(store, namespace, last_epoch)
    keys: list[NumberedKey] = []
    for number in sorted(listed):
        epoch = LogEpoch(store, namespace, number)
        keys += epoch.keys(await epoch.look(listed[number], kept_until))
    return keys


async def find_shared_keys(store: ObjectStore, namespace: str, alone_until: int) -> Sequence[NumberedKey]:
    """Find the objects of all streams, and of the log of a broker alone up to epoch `alone_until`.

    In order within each stream. Raises as `find_keys`, and NotFound if a needed object was deleted.
    """
    keys: list[NumberedKey] = []
    for number, listed in sorted((await list_log(store, namespace)).items()):
        if max(listed.values()) > HEADER_BYTES:
            epoch = LogEpoch(store, namespace, number)
            if number <= alone_until:
                run = await epoch.look(listed, WalPosition(alone_until, 0))
            else:
                run = await epoch.look_at_stream(listed)
            keys += epoch.keys(run)
    return keys


async def _list_until(store: ObjectStore, namespace: str, last_epoch: int) -> Mapping[int, Listed]:
    return {epoch: found for epoch, found in (await list_log(store, namespace)).items() if epoch <= last_epoch}


def _is_between(listed: Mapping[int, Listed], kept_until: WalPosition) -> bool:
    """Tell whether an epoch with objects comes behind one without an end."""
    last = max((epoch for epoch, sizes in listed.items() if max(sizes.values()) > HEADER_BYTES), default=-1)
    followed = [epoch for epoch in listed if kept_until.epoch <= epoch < last]
    return not all(find_run(epoch, listed[epoch], kept_until).has_fence for epoch in followed)


@attrs.frozen
class LogEpoch:
    """An epoch of the log whose end is being searched. `taken_by` is the epoch of the searching broker."""

    store: ObjectStore
    namespace: str
    epoch: int
    taken_by: int = EPOCH_MAX

    async def look_at_stream(self, listed: Listed) -> LogRun:
        """Find the run of a stream. Raises as `look`, NotFound too."""
        return await self.look(listed, WalPosition(self.epoch, await self.told_number(listed)))

    async def told_number(self, listed: Listed) -> int:
        """Return the last object that the stream itself tells was acknowledged. Raises NotFound, StoreError."""
        fences = [number for number, size_bytes in listed.items() if size_bytes <= HEADER_BYTES]
        ended = max(fences, default=1) - 1
        last = max((number for number, size_bytes in listed.items() if size_bytes > HEADER_BYTES), default=0)
        return max(ended, (await self._header(last)).durable_number) if last > ended else ended

    async def look(self, listed: Listed, kept_until: WalPosition) -> LogRun:
        """Find the run of objects. Raises DamagedObject, Fenced, StoreError."""
        run = find_run(self.epoch, listed, kept_until)
        while await self._has_come(run):
            listed = await list_epoch(self.store, self.namespace, self.epoch)
            run = find_run(self.epoch, listed, kept_until)
        if not listed and run.end > 1:
            raise DamagedObject(
                f"{self.key(run.end).key} is missing: of an epoch that wrote objects at least one stays"
            )
        for number in run.late_fences:
            await self._check_fence(number)
        if run.has_fence and self.epoch >= kept_until.epoch:
            await self._check_fence(run.end)
        return run

    async def _header(self, number: int) -> ObjectHeader:
        key = self.key(number).key
        return decode_header(key, (await self.store.get_range(key, 0, HEADER_BYTES)).data)

    def keys(self, run: LogRun) -> Sequence[NumberedKey]:
        return [self.key(number) for number in run.numbers]

    def key(self, number: int) -> NumberedKey:
        return wal_key(self.namespace, self.epoch, number)

    async def _check_fence(self, number: int) -> None:
        key = self.key(number).key
        header = decode_header(key, (await self.store.get(key)).data)
        if not header.is_fence:
            raise DamagedObject(f"{key}: cut off behind the header")
        if header.epoch > self.taken_by:
            raise Fenced(f"a broker of epoch {header.epoch} has taken over while this one was starting: {key}")

    async def _has_come(self, run: LogRun) -> bool:
        """Tell whether the object at the end of the run exists by now, if a later one says that it was acknowledged.

        Raises DamagedObject if it must exist.
        """
        for number in run.leftover:
            if (await self._header(number)).durable_number >= run.end:
                missing = self.key(run.end).key
                if run.has_fence:
                    raise DamagedObject(f"{missing} is a fence: it had been acknowledged before {self.key(number).key}")
                try:
                    await self.store.head(missing)
                except NotFound as exc:
                    reason = f"it had been acknowledged when {self.key(number).key} was written"
                    raise DamagedObject(f"{missing} is missing: {reason}") from exc
                return True
        return False
