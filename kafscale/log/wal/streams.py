"""Streams: the write-ahead log in the bucket where several brokers share it, one of each incarnation (`s3-wal`).

A stream has record batches only. Its broker acknowledges by it, and deletes from it, as a broker alone does from its
log. When an incarnation ends without having released what it leads, the metadata says of each of these partitions that
who leads next has to recover from its stream:

    end       a fence, before anything is listed: from then on nothing more is acknowledged by that stream, and what
              it has of the partition will be found, in the stream or in a segment
    replay    what no segment has; of several streams in the order in which their brokers led the partition
    lead      decide where the new epoch begins, serve, flush; then the partition needs the stream no more

Ended in between, it is done again, by the same broker or another one. A stream that no partition needs any more, and
whose broker has been replaced, is deleted by the controller (`delete_unneeded`), all but its fence.

What a broker alone left in its log, before it became the first of several, counts as one stream, whose number is that
of its last epoch: `alone_until`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import attrs
import trio

from kafscale.formats.manifest import PartitionId
from kafscale.formats.wal_entries import WalEntry
from kafscale.formats.wal_objects import HEADER_BYTES, WalObject, WalPosition
from kafscale.formats.wal_runs import list_log, wal_key
from kafscale.log.wal.journal import Handle, ReplayProgress
from kafscale.log.wal.s3_replay import FENCES_KEPT_COUNT, EarlierLog, end_stream, find_log
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import guarded

DELETED_AT_ONCE_COUNT = 1000  # S3's, of one request

logger = logging.getLogger(__name__)

Recover = Mapping[PartitionId, Sequence[int]]  # the streams that each partition is to be recovered from, in order


class Earlier(Protocol):
    """The bucket's log of earlier brokers: `EarlierLog` or `EarlierStreams`."""

    async def replay(
        self, handle: Handle, *, on_progress: Callable[[ReplayProgress], None] | None = None
    ) -> Sequence[WalObject]:
        """Hand it to `handle`, as `EarlierLog.replay` does."""


@attrs.frozen(eq=False, repr=False)
class EarlierStreams:
    """Streams that have ended, and which of them each partition is to be recovered from."""

    logs: Mapping[int, EarlierLog]
    recover: Recover

    async def replay(
        self, handle: Handle, *, on_progress: Callable[[ReplayProgress], None] | None = None
    ) -> Sequence[WalObject]:
        """Hand the entries of these partitions to `handle`, of each in the order of its streams.

        Otherwise as `EarlierLog.replay`.
        """
        replayed: list[WalObject] = []
        for number, partitions in passes(self.recover):
            handle_of = partial(_handle_of, partitions, handle)
            replayed += await self.logs[number].replay(handle_of, partitions=partitions, on_progress=on_progress)
        return replayed


def _handle_of(partitions: Collection[PartitionId], handle: Handle, entry: WalEntry) -> bool:
    return (entry.topic_id, entry.partition) in partitions and handle(entry)


def passes(recover: Recover) -> Iterator[tuple[int, Collection[PartitionId]]]:
    """Iterate over the streams to read, and for which partitions each: a stream once, as far as their orders allow."""
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
        """End all of these streams. Raises DamagedObject, StoreError."""
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

    Which those are follows from one state of the metadata, whose next number is `before`; a stream that is not needed
    once never is again. Fences stay, those of the last FENCES_KEPT_COUNT; others go when all that they end has gone, as
    they tell that what is missing was deleted. What has been deleted when this fails stays so, and it can be called
    again.
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
