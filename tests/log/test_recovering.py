"""Partitions that are replayed together from the streams of a broker that has failed."""

from __future__ import annotations

from contextlib import nullcontext

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.errors import DamagedObject, StoreUnavailable
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_entries import WalEntry
from kafscale.formats.wal_objects import ObjectHeader, wal_object
from kafscale.log.hand_over import Recovering
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import TOPIC_ID, batch_of, memory_log, topic_spec


@attrs.define(eq=False)
class Journal:
    """Streams with a record of each partition, which are read when that may go on, unless they are damaged."""

    is_local = True
    may_go_on: trio.Event = attrs.field(factory=trio.Event)
    damaged: set[int] = attrs.field(factory=set)

    async def recover(self, earlier, handle) -> None:
        await self.may_go_on.wait()
        if any(self.damaged.intersection(numbers) for numbers in earlier.values()):
            raise DamagedObject("a stream is damaged")
        for index in range(2):
            handle(WalEntry(TOPIC_ID, index, 1, 0, bytes(batch_of(b"record"))))


class Streams:
    async def end(self, recover):
        return recover


async def restore_before(_partition_id, _begun: EpochStart) -> None:
    raise AssertionError


async def test_waiters_of_an_abandoned_replay_fail(autojump_clock) -> None:
    """It was opened without the records that only the stream had, and that had been acknowledged."""
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        journal = Journal()
        recovering = Recovering(log=log.log, journal=journal, streams=Streams())
        first, second = (log.log.new_partition(topic_spec(2), index) for index in range(2))
        given_up = trio.CancelScope()

        async def replay_until_given_up() -> None:
            with given_up:
                await recovering.replay(first, (1,), restore_before)

        async def give_up() -> None:
            await wait_all_tasks_blocked()
            given_up.cancel()

        async with trio.open_nursery() as nursery:
            with recovering.expecting(second.partition_id):
                nursery.start_soon(replay_until_given_up)
                await wait_all_tasks_blocked()
                nursery.start_soon(give_up)
                with trio.fail_after(60), pytest.raises(StoreUnavailable, match="given up"):
                    await recovering.replay(second, (1,), restore_before)
        assert (recovering.pass_count, given_up.cancelled_caught) == (1, True)
        journal.may_go_on.set()
        await recovering.replay(second, (1,), restore_before)
        assert second.next_offset == 1


async def test_a_damaged_stream_blocks_only_the_partitions_that_need_the_stream(autojump_clock) -> None:
    """All that waited together failed together, and tried again together."""
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        journal = Journal(damaged={1})
        journal.may_go_on.set()
        recovering = Recovering(log=log.log, journal=journal, streams=Streams())
        first, second = (log.log.new_partition(topic_spec(2), index) for index in range(2))

        async def replay_first() -> None:
            with pytest.raises(DamagedObject):
                await recovering.replay(first, (1,), restore_before)

        async with trio.open_nursery() as nursery:
            with recovering.expecting(second.partition_id):
                nursery.start_soon(replay_first)
                await wait_all_tasks_blocked()
                await recovering.replay(second, (2,), restore_before)
        assert (first.next_offset, second.next_offset, recovering.pass_count) == (0, 1, 2)


@attrs.define(eq=False)
class LateJournal:
    """A stream with two records where a segment came late, which may not be read to its end; it counts what is kept."""

    ends_in: str
    is_local = True
    kept_count: int = 0
    read_count: int = 0

    async def recover(self, earlier, handle) -> None:
        header = ObjectHeader(salt=0, epoch=2, entry_count=2, number=1, durable_number=0, sequence=1, body_bytes=0)
        file = wal_object("key", 2, header)
        for offset in range(2):
            entry = WalEntry(TOPIC_ID, 0, 2, offset, bytes(batch_of(b"record")))
            entry.file = file
            assert handle(entry)
            self.kept_count += 1
        if self.ends_in == "stream":
            raise StoreUnavailable("it ends here")

    async def read(self, file, places) -> bytes:
        self.read_count += 1
        if self.ends_in == "second" and self.read_count == 2:
            raise StoreUnavailable("the second record can't be read")
        return bytes(batch_of(b"record"))

    def release(self, file, count: int = 1) -> None:
        self.kept_count -= count


@pytest.mark.parametrize("ends_in", ["stream", "segments", "second", "nothing"])
async def test_deferred_requests_are_released_when_a_replay_fails(autojump_clock, ends_in: str) -> None:
    """It was counted for ever, each time that the replay was tried again: a log with so much to keep flushes always."""
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        journal = LateJournal(ends_in)
        recovering = Recovering(log=log.log, journal=journal, streams=Streams())
        partition = log.log.new_partition(topic_spec(), 0)
        partition.epochs, partition.next_offset = [EpochStart(1, 0)], 2

        async def restore(_partition_id, _begun: EpochStart) -> None:
            if ends_in == "segments":
                raise StoreUnavailable("the bucket is away")
            partition.restore((), None)

        with nullcontext() if ends_in == "nothing" else pytest.raises(StoreUnavailable):
            await recovering.replay(partition, (1,), restore)
        assert journal.kept_count == len(partition.tail.batches) == {"second": 1, "nothing": 2}.get(ends_in, 0)
