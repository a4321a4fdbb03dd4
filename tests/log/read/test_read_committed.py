"""What `read_committed` returns: everything that was committed, nothing else, and only what is decided."""

from __future__ import annotations

import random
from collections import defaultdict

import attrs
import pytest
import trio
import trio.testing

from kafscale.config import Durability
from kafscale.formats.manifest import Manifest
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.tail import Slices
from kafscale.log.read.file_ranges import FileRanges, FileSlice
from kafscale.log.read.reader import LogReader
from kafscale.metrics import Metrics
from kafscale.store.file import open_files
from kafscale.store.file.directory import Directory
from kafscale.store.file.open_files import FileSource
from kafscale.store.file.store import FileStore
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.error_codes import NOT_LEADER_OR_FOLLOWER
from tests.devtools.fakes.memory_log import MemoryLog, append_nowait, memory_log, merge_segments
from tests.devtools.fakes.transactions import NOW_MS, abort, commit, consumed_records, read_committed, send
from tests.devtools.world.determinism import seeds

NEVER_SECONDS = 1e9
SETTINGS = {"flush_interval_seconds": NEVER_SECONDS, "segment_merge_bytes": 0, "segment_bytes": 1024}
PRODUCER_COUNT = 4
STEPS_COUNT = 60


@attrs.define
class Expected:
    """What was written, and how each transaction ended: offsets of its records, and their values."""

    values: dict[int, bytes] = attrs.field(factory=dict)
    open: dict[int, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    aborted: set[int] = attrs.field(factory=set)
    sequences: dict[int, int] = attrs.field(factory=lambda: defaultdict(int))

    def committed(self, end_offset: int) -> list[bytes]:
        return [value for at, value in self.values.items() if at < end_offset and at not in self.aborted]


async def _step(log: MemoryLog, chance: random.Random, expected: Expected) -> None:
    partition, producer_id = log.partition(), chance.randrange(PRODUCER_COUNT)
    what = chance.random()
    value = b"%d." % partition.next_offset + bytes(chance.choice([0, 200]))
    if what < 0.5:
        sequence = expected.sequences[producer_id]
        at = await send(partition, value, producer_id=producer_id, sequence=sequence)
        expected.values[at] = value
        expected.open[producer_id].append(at)
        expected.sequences[producer_id] += 1
    elif what < 0.6:
        appended, round = append_nowait(partition, value, now_ms=NOW_MS)
        await round.wait()
        expected.values[appended.base_offset] = value
    elif what < 0.85:
        ended = expected.open.pop(producer_id, [])
        if chance.random() < 0.5:
            await commit(partition, producer_id=producer_id)
        else:
            await abort(partition, producer_id=producer_id)
            expected.aborted.update(ended)
    else:
        await log.log.flusher.flush_all()


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("seed", seeds(2, more=4))
async def test_all_that_was_committed_is_read_and_nothing_else(autojump_clock, durability, seed):
    chance, expected = random.Random(seed), Expected()
    disk, store = MemoryDisk(), MemoryStore()
    for epoch in (1, 2, 3):
        async with memory_log(store, disk, leader_epoch=epoch, durability=durability, **SETTINGS) as log:
            for _ in range(STEPS_COUNT):
                await _step(log, chance, expected)
                stable = log.partition().last_stable_offset
                first_open = [offsets[0] for offsets in expected.open.values() if offsets]
                assert stable == min([log.partition().high_watermark, *first_open])
                max_bytes = chance.choice([1, 500, 1 << 20])
                assert await read_committed(log, log.partition(), max_bytes=max_bytes) == expected.committed(stable)
            written = {*expected.values.values()}
            everything = [value for value in await log.values(log.partition()) if value in written]
            assert everything == list(expected.values.values()), "read_uncommitted leaves something out"
            disk = disk.crash()


def send_files(reader: LogReader, store: FileStore) -> None:
    """Let the kernel send files, as in a broker without a cache."""
    source = FileSource(store.directory, StoreMetrics.register(Metrics()))
    reader.files = FileRanges(source, reader.ranges.cache)
    reader.ranges.on_checked.append(reader.files.note_checked)


async def check_first_segment(reader: LogReader, partition: Partition) -> None:
    slices = await reader.read(partition, 0, 1 << 20)
    assert slices is not None
    slices.release()


async def test_a_file_slice_of_read_committed_ends_at_the_last_stable_offset(tmp_path, monkeypatch):
    """Once nothing of a segment was sent so that ends within a transaction: twice the CPU."""
    monkeypatch.setattr(open_files, "is_cached", lambda descriptor, start, length_bytes: True)
    store, value = FileStore(Directory.open(tmp_path)), bytes(8 << 10)
    async with memory_log(store, MemoryDisk(), **(SETTINGS | {"segment_bytes": 1 << 20})) as log:
        partition, reader = log.partition(), log.log.reader
        send_files(reader, store)
        for number in range(10):
            await send(partition, b"%d" % number + value, producer_id=1, sequence=number)
            await send(partition, b"aborted" + value, producer_id=2, sequence=number)
        await commit(partition, producer_id=1)
        await abort(partition, producer_id=2)
        first_open = await send(partition, b"open" + value, producer_id=3)
        for _ in range(9):
            _, round = append_nowait(partition, b"beside it" + value, now_ms=NOW_MS)
        await round.wait()
        await log.log.flusher.flush_all()
        assert len(partition.manifest.segments) == 1
        await check_first_segment(reader, partition)
        sent = reader.read_nowait(partition, 0, 1 << 20, committed=True)
        assert isinstance(sent, FileSlice)
        assert first_open - 5 < sent.end_offset <= first_open
        assert [each.producer_id for each in sent.aborted] == [2]
        sent.release()
        assert reader.read_nowait(partition, sent.end_offset, 1 << 20, committed=True) is None
        assert [each[:1] for each in await read_committed(log, partition)] == [b"%d" % number for number in range(10)]
        whole = reader.read_nowait(partition, 0, 1 << 20)
        assert isinstance(whole, FileSlice)
        assert whole.end_offset == partition.next_offset
        whole.release()
        await commit(partition, producer_id=3)
        assert len(await read_committed(log, partition, max_bytes=100_000)) == 20  # but markers and what was aborted


@pytest.mark.parametrize("place", ["tail", "segment", "forgotten"])
async def test_a_file_slice_of_read_committed_covers_a_segment_with_later_markers(tmp_path, monkeypatch, place):
    """Once the end of each segment that ends within a transaction was read and copied, in smaller answers."""
    monkeypatch.setattr(open_files, "is_cached", lambda descriptor, start, length_bytes: True)
    store, value = FileStore(Directory.open(tmp_path)), bytes(8 << 10)
    async with memory_log(store, MemoryDisk(), **(SETTINGS | {"segment_bytes": 1 << 20})) as log:
        partition, reader = log.partition(), log.log.reader
        send_files(reader, store)
        for number in range(10):
            await send(partition, b"aborted" + value, producer_id=1, sequence=number)
            await send(partition, b"committed" + value, producer_id=2, sequence=number)
        await log.log.flusher.flush_all()
        await check_first_segment(reader, partition)
        assert reader.read_nowait(partition, 0, 1 << 20, committed=True) is None
        await abort(partition, producer_id=1)
        await commit(partition, producer_id=2)
        if place != "tail":
            await log.log.flusher.flush_all()
        first, *others = partition.manifest.segments
        if place == "forgotten":
            reader.footers.forget(others[0])
            assert reader.read_nowait(partition, 0, 1 << 20, committed=True) is None
            await reader.footers.get(others[0])
        sent = reader.read_nowait(partition, 0, 1 << 20, committed=True)
        assert isinstance(sent, FileSlice)
        assert sent.end_offset == first.last_offset + 1
        assert [(each.producer_id, each.first_offset) for each in sent.aborted] == [(1, 0)]
        sent.release()
        assert await read_committed(log, partition) == [b"committed" + value] * 10


async def test_a_distant_marker_is_found_without_reading_footers_that_have_no_marker(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        partition = log.partition()
        await send(partition, b"aborted")
        for number in range(5):
            await log.log.flusher.flush_all()
            append_nowait(partition, b"plain %d" % number)
        await log.log.flusher.flush_all()
        await abort(partition)
        await log.log.flusher.flush_all()
        for segment in partition.manifest.segments:
            log.log.reader.footers.forget(segment)
        before = store.count("get_tail")
        slices = await log.log.reader.read(partition, 0, 1, committed=True)
        assert slices is not None
        assert [(each.producer_id, each.first_offset, each.marker_offset) for each in slices.aborted] == [(7, 0, 6)]
        assert store.count("get_tail") - before == 2, "the footer of what is read, and that of the marker's segment"
        slices.release()


async def test_no_other_footer_is_read_if_no_transaction_is_open(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        partition = log.partition()
        for number in range(3):
            await send(partition, b"x", sequence=number)
            await abort(partition)
            await log.log.flusher.flush_all()
        for segment in partition.manifest.segments:
            log.log.reader.footers.forget(segment)
        slices = await log.log.reader.read(partition, 0, 1, committed=True)
        assert slices is not None
        assert [each.marker_offset for each in slices.aborted] == [1]
        assert store.count("get_tail") == 1
        slices.release()


async def test_a_read_under_way_reports_aborted_transactions_after_the_partition_closes(autojump_clock):
    """It was handed over meanwhile, with which all that was known of its transactions was forgotten."""
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log, trio.open_nursery() as nursery:
        partition = log.partition()
        await send(partition, b"aborted")
        await log.log.flusher.flush_all()
        await abort(partition)
        await send(partition, b"undecided", sequence=1)
        gate = store.hold(On("get_range", times=1))
        found: list[list[bytes | None]] = []

        async def read() -> None:
            slices = await log.log.reader.read(partition, 0, 1, committed=True)
            assert slices is not None
            found.append([each.value for each in consumed_records(slices, 0, committed=True)])
            slices.release()

        nursery.start_soon(read)
        await gate.wait_arrived()
        log.log.close_partition(partition, NOT_LEADER_OR_FOLLOWER)
        assert partition.last_stable_offset == 2, "nor is what is open decided by that"
        gate.open()
        await trio.testing.wait_all_tasks_blocked()
        assert found == [[]]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_restarted_read_does_not_pass_the_end_offset_of_its_response(autojump_clock, committed):
    """The end moved on while a segment was merged under the reader: records came from behind the last stable offset."""
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        partition = log.partition()
        append_nowait(partition, b"plain")
        await send(partition, b"undecided")
        await log.log.flusher.flush_all()
        told = partition.last_stable_offset if committed else partition.high_watermark
        gate = store.hold(On("get_range"))
        found: list[Slices | None] = []

        async def read() -> None:
            found.append(await log.log.reader.read(partition, 0, 1 << 20, committed=committed))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await gate.wait_arrived(1)
            await commit(partition)
            await log.log.flusher.flush_all()
            sources = [segment.key for segment in partition.manifest.segments]
            partition.manifest = Manifest([await merge_segments(log, [0, 2])])
            await store.delete([key.key for key in sources])
            gate.open()
        (slices,) = found
        assert slices is not None
        assert slices.end_offset == told == (1 if committed else 2)
        slices.release()
