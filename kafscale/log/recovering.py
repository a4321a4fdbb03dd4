"""Partitions that come to a broker which serves, from one that has failed: they are replayed from its stream.

Each is restored by itself, then those of the same streams are replayed together, in one pass over these. A pass waits
for those that are expected, but not for long: then there is another one for those that have come meanwhile. So however
many there are, a stream is read a few times; and one that is damaged is in the way of nobody who does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, KafScaleError, StoreUnavailable
from kafscale.formats.manifest import PartitionId
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.log import Log
from kafscale.log.partition.partition import Partition
from kafscale.log.replaying import Replay, RestoreBefore
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import Streams

GATHER_SECONDS = 0.5  # that a pass waits for partitions which are being restored


@attrs.define(eq=False, repr=False)
class _Wanted:
    """A partition that waits for its replay."""

    partition: Partition
    numbers: Sequence[int]
    restore_before: RestoreBefore
    failure: KafScaleError | None = None
    is_done: bool = False


@attrs.define(eq=False, kw_only=True, repr=False)
class Recovering:
    """Replays streams into partitions of a log whose journal is a stream itself."""

    log: Log
    journal: S3Wal
    streams: Streams
    pass_count: int = attrs.field(default=0, init=False)
    _waiting: list[_Wanted] = attrs.field(factory=list, init=False)
    _replaying: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _expected: set[PartitionId] = attrs.field(factory=set, init=False)
    _has_come: Signal = attrs.field(factory=Signal, init=False)

    @contextmanager
    def expecting(self, partition_id: PartitionId) -> Iterator[None]:
        """Have passes wait for a partition, which is being restored in the block, until it comes to `replay`."""
        self._expected.add(partition_id)
        try:
            yield
        finally:
            self._note_come(partition_id)

    def _note_come(self, partition_id: PartitionId) -> None:
        self._expected.discard(partition_id)
        self._has_come.wake()

    async def end(self, partition_id: PartitionId, numbers: Sequence[int]) -> None:
        """End the streams that a partition is to be recovered from, before the bucket is listed.

        Raises DamagedObject, StoreError.
        """
        await self.streams.end({partition_id: numbers})

    async def replay(self, partition: Partition, numbers: Sequence[int], restore_before: RestoreBefore) -> None:
        """Bring back what these streams have of a partition that has been restored, and no segment has.

        `restore_before` is as for `Replay`. Raises DamagedObject, StoreError; part of it may have been brought back
        then.
        """
        wanted = _Wanted(partition, numbers, restore_before)
        self._waiting.append(wanted)
        self._note_come(partition.partition_id)
        async with self._replaying:
            if not wanted.is_done:
                await self._replay_waiting(wanted.numbers)
        if wanted.failure is not None:
            raise wanted.failure

    async def _replay_waiting(self, numbers: Sequence[int]) -> None:
        with trio.move_on_after(GATHER_SECONDS):
            while self._expected:
                await self._has_come.wait()
        batch = {each.partition.partition_id: each for each in self._waiting if each.numbers == numbers}
        self._waiting = [each for each in self._waiting if each.numbers != numbers]
        replay = Replay(
            journal=self.journal,
            pool=self.log.pool,
            partitions={partition_id: each.partition for partition_id, each in batch.items()},
            restore_before=lambda partition_id, begun: _restore(batch[partition_id], begun),
            kept=self.log.kept,
        )

        def handle(entry: WalEntry) -> bool:
            wanted = batch.get((entry.topic_id, entry.partition))
            if wanted is None or wanted.failure is not None or wanted.partition.closed:
                return False
            try:
                return replay.handle(entry)
            except DamagedObject as exc:
                wanted.failure = exc  # of this partition; the others can be led
                return False

        failure: KafScaleError | None = StoreUnavailable("the replay that it waited for was given up")
        try:
            earlier = await self.streams.end({partition_id: each.numbers for partition_id, each in batch.items()})
            self.pass_count += 1
            await self.journal.recover(earlier, handle)
            await replay.finish()
            failure = None
        except KafScaleError as exc:
            failure = exc
        finally:
            replay.give_up()  # nothing, unless it has failed
            for each in batch.values():
                each.is_done = True
                each.failure = each.failure or failure


async def _restore(wanted: _Wanted, begun: EpochStart) -> None:
    await wanted.restore_before(wanted.partition.partition_id, begun)
