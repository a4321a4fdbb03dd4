"""What is submitted reaches the log in batches that are shared, and is called back in order, whatever happens there."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.cluster.coordinator.entries import LATE_RETRY_SECONDS, Appended
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.coordinator.writer import (
    BATCH_RECORDS_COUNT,
    BATCH_TARGET_BYTES,
    RecordWriter,
)
from kafscale.cluster.groups.common.log_records import offset_record
from kafscale.errors import KafkaError, StorageFailed
from kafscale.log.wal.journal import Round
from kafscale.wire.error_codes import NOT_LEADER_OR_FOLLOWER
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue
from kafscale.wire.records import Record
from tests.cluster.groups.group_log import MemoryOffsetsLog


def record(number: int, metadata: str = "") -> Record:
    offset = OffsetCommitValue(offset=number, commit_timestamp_ms=0, metadata=metadata)
    return offset_record("g", TopicPartition("t", number), offset).encode()


def numbers(log: MemoryOffsetsLog, partition: int = 0) -> list[list[int]]:
    """Return the offsets in each batch, without their keys' order."""
    found = []
    for batch in log.read(partition):
        found.append([int.from_bytes((each.value or b"")[2:10]) for each in batch.records])
    return found


@attrs.define(eq=False)
class Bench:
    """A group log that runs, and what it has called back."""

    log: MemoryOffsetsLog
    groups: RecordWriter
    told: list[tuple[int, bool]] = attrs.field(factory=list)
    late: list[int] = attrs.field(factory=list)

    def submit(self, *of: int, partition: int = 0, essential: bool = False) -> None:
        first = of[0]
        self.groups.submit(
            partition,
            [record(number) for number in of],
            lambda durable: self.told.append((first, durable)),
            late=lambda: self.late.append(first),
            essential=essential,
        )


@pytest.fixture
async def bench(autojump_clock: MockClock, nursery: trio.Nursery) -> Bench:
    log = MemoryOffsetsLog()
    groups = RecordWriter(log)
    await nursery.start(groups.run)
    return Bench(log, groups)


async def test_submissions_made_during_an_append_share_the_next_batch(autojump_clock: MockClock, bench: Bench) -> None:
    bench.log.gate = trio.Event()
    bench.submit(1)
    bench.submit(2)
    await wait_all_tasks_blocked()
    bench.submit(3, 4)
    bench.submit(5)
    bench.submit(6, partition=1)
    await wait_all_tasks_blocked()
    assert bench.told == []
    bench.log.gate.set()
    await wait_all_tasks_blocked()
    assert numbers(bench.log) == [[1, 2], [3, 4, 5]]
    assert numbers(bench.log, 1) == [[6]], "another partition waits for nobody"
    assert [each for each in bench.told if each[0] != 6] == [(1, True), (2, True), (3, True), (5, True)]


async def test_records_submitted_before_the_writer_runs_are_written(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    bench = Bench(log := MemoryOffsetsLog(), RecordWriter(log))
    bench.submit(1)
    await nursery.start(bench.groups.run)
    await wait_all_tasks_blocked()
    assert (numbers(log), bench.told) == ([[1]], [(1, True)])


async def test_a_batch_is_bounded_and_a_large_submission_takes_several(autojump_clock: MockClock, bench: Bench) -> None:
    count = 2 * BATCH_RECORDS_COUNT + 1
    bench.submit(*range(count))
    bench.submit(count)
    await wait_all_tasks_blocked()
    found = numbers(bench.log)
    assert [len(each) for each in found] == [BATCH_RECORDS_COUNT, BATCH_RECORDS_COUNT, 1, 1]
    assert [number for each in found for number in each] == list(range(count + 1))
    assert bench.told == [(0, True), (count, True)]


async def test_batches_have_a_bound_in_bytes(autojump_clock: MockClock, bench: Bench) -> None:
    large = [record(number, "x" * (BATCH_TARGET_BYTES // 3)) for number in range(5)]
    bench.groups.submit(0, large, lambda durable: bench.told.append((0, durable)))
    await wait_all_tasks_blocked()
    assert [len(each) for each in numbers(bench.log)] == [2, 2, 1]


async def test_only_essential_records_wait_for_room(autojump_clock: MockClock, bench: Bench) -> None:
    bench.log.full = True
    bench.submit(1)
    await wait_all_tasks_blocked()
    assert bench.told == [(1, False)]
    bench.submit(2, essential=True)
    await wait_all_tasks_blocked()
    assert (bench.told, bench.late) == ([(1, False)], [2])
    bench.log.make_room()
    await wait_all_tasks_blocked()
    assert bench.told == [(1, False), (2, True)]
    assert numbers(bench.log) == [[2]]


async def test_records_waiting_for_room_are_dropped_when_their_partition_is_resigned(
    autojump_clock: MockClock, bench: Bench
) -> None:
    """Another broker may have written of the same groups meanwhile: then this would count instead."""
    bench.log.full = True
    bench.submit(1, essential=True)
    await wait_all_tasks_blocked()
    bench.submit(2, essential=True)
    bench.submit(3, partition=1, essential=True)
    bench.groups.resign(0)
    bench.submit(4, essential=True)
    bench.log.make_room()
    await wait_all_tasks_blocked()
    assert sorted(bench.told) == [(1, False), (2, False), (3, True), (4, True)]
    assert (numbers(bench.log), numbers(bench.log, 1)) == ([[4]], [[3]])


@pytest.mark.parametrize("failure", [StorageFailed("gone"), KafkaError(NOT_LEADER_OR_FOLLOWER)])
async def test_a_failed_append_is_reported_and_later_ones_are_tried(
    autojump_clock: MockClock, bench: Bench, failure: Exception
) -> None:
    bench.log.failure = failure
    bench.submit(1)
    await wait_all_tasks_blocked()
    bench.log.failure = None
    bench.submit(2)
    await wait_all_tasks_blocked()
    assert bench.told == [(1, False), (2, True)]


async def test_a_slow_append_is_reported_late_and_called_back_when_durable(
    autojump_clock: MockClock, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    round = Round()

    def append(partition: int, records: Sequence[Record]) -> Appended:
        return Appended(round)

    monkeypatch.setattr(bench.groups, "log", SlowLog(append))
    bench.submit(1)
    await wait_all_tasks_blocked()
    round.put_off()
    await trio.sleep(LATE_RETRY_SECONDS / 2)
    assert (set(bench.late), bench.told) == ({1}, [])
    round.succeed()
    await trio.sleep(LATE_RETRY_SECONDS)
    assert bench.told == [(1, True)]


@attrs.define(eq=False)
class SlowLog:
    """A log of which a test decides what an append gives."""

    append: object

    async def wait_for_room(self, partition: int, records: Sequence[Record]) -> None:
        raise AssertionError("there is room")


async def test_wait_settled_returns_after_earlier_submissions_are_settled(
    autojump_clock: MockClock, bench: Bench
) -> None:
    await bench.groups.wait_settled(0)
    bench.log.gate = trio.Event()
    bench.submit(1)
    settled: list[int] = []

    async def wait() -> None:
        await bench.groups.wait_settled(0)
        settled.append(len(bench.told))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert settled == []
        bench.log.gate.set()
    assert settled == [1]
    assert numbers(bench.log) == [[1]], "to wait writes nothing"


async def test_a_callback_that_follows_another_append_runs_after_earlier_submissions(
    autojump_clock: MockClock, bench: Bench
) -> None:
    for _ in range(20):  # who is woken first is left to chance
        bench.told.clear()
        gate = bench.log.gate = trio.Event()
        bench.submit(1)
        await wait_all_tasks_blocked()
        other = bench.log.append(0, [record(100)])
        assert other is not None
        bench.groups.follow(0, other, lambda durable: bench.told.append((100, durable)))
        bench.submit(2)
        await wait_all_tasks_blocked()
        assert bench.told == []
        gate.set()
        await wait_all_tasks_blocked()
        assert sorted(bench.told) == [(1, True), (2, True), (100, True)]
        assert bench.told[0] == (1, True)
    bench.log.gate = None
    durable = bench.log.append(0, [record(101)])
    assert durable is not None
    bench.groups.follow(0, durable, lambda durable: bench.told.append((101, durable)))
    await wait_all_tasks_blocked()
    assert bench.told[-1] == (101, True)


async def test_a_callback_that_follows_a_lost_append_reports_failure(autojump_clock: MockClock, bench: Bench) -> None:
    lost = Round()
    lost.fail(StorageFailed("gone"))
    bench.groups.follow(0, Appended(lost), lambda durable: bench.told.append((1, durable)))
    await wait_all_tasks_blocked()
    assert bench.told == [(1, False)]


async def test_a_submission_reports_the_offsets_of_its_records(autojump_clock: MockClock, bench: Bench) -> None:
    places: list[list[int]] = []
    for count in (2, 3, 1):
        records = [record(number) for number in range(count)]
        bench.groups.submit(0, records, lambda durable: None, placed=lambda offsets: places.append([*offsets]))
    await wait_all_tasks_blocked()
    bench.log.append(0, [record(9)])
    many = [record(number) for number in range(BATCH_RECORDS_COUNT + 1)]
    bench.groups.submit(0, many, lambda durable: None, placed=lambda offsets: places.append([*offsets]))
    await wait_all_tasks_blocked()
    assert places == [[0, 1], [2, 3, 4], [5], [*range(7, 7 + len(many))]]
