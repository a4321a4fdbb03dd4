"""Reading: the tail, segments by one ranged GET, the WAL, look-ups by time, and what moves while one reads."""

import gc

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from kafscale.config.limits import Limits
from kafscale.errors import KafkaError, NotFound
from kafscale.formats import segment as segment_format
from kafscale.formats.footer_reading import read_footer
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN, Manifest
from kafscale.formats.segment import HEADER
from kafscale.formats.transactions import Producer
from kafscale.log.read.reader import GAP_MAX_BYTES
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.batch_header import HEADER_BYTES, set_base_offset
from kafscale.wire.error_codes import CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import (
    NOW_MS,
    TOPIC,
    TOPIC_ID,
    MemoryLog,
    batch_of,
    memory_log,
    merge_segments,
    topic_spec,
    write_segment,
)
from tests.log.keyed_log import append_pairs

SIZE = len(batch_of(bytes(100)))


def key_at(base_offset: int, generation: int = 0, epoch: int = 1) -> SegmentKey:
    return SegmentKey(
        topic=TOPIC, topic_id=TOPIC_ID, partition=0, base_offset=base_offset, epoch=epoch, generation=generation
    )


def recording(store: MemoryStore) -> tuple[FaultyStore, list[tuple]]:
    """The store, and what is read from it: operation, key, and the range."""
    reads: list[tuple] = []

    class Recording(FaultyStore):
        async def get_range(self, key, start, length_bytes):
            reads.append(("range", key.rsplit("-")[-3].lstrip("0") or "0", start, length_bytes))
            return await super().get_range(key, start, length_bytes)

        async def get_tail(self, key, length_bytes):
            reads.append(("tail", key.rsplit("-")[-3].lstrip("0") or "0"))
            return await super().get_tail(key, length_bytes)

        async def get(self, key):
            reads.append(("whole", key))
            return await super().get(key)

    return Recording(store), reads


class HookedDisk(MemoryDisk):
    """Does something before the next read."""

    before_read = None

    async def read(self, name, position, length_bytes):
        before_read, self.before_read = self.before_read, None
        if before_read is not None:
            await before_read()
        return await super().read(name, position, length_bytes)


async def flushed_batches(log: MemoryLog, count: int, *, per_segment: int = 1000, size: int = 100) -> None:
    """Batches of one record each, `size` bytes of value that begin with their number."""
    for number in range(count):
        await log.append(log.partition(), b"%d " % number + bytes(size - len(b"%d " % number)))
        if (number + 1) % per_segment == 0:
            await log.log.flusher.flush_all()
    await log.log.flusher.flush_all()


def forget_footers(log: MemoryLog) -> None:
    log.log.reader.footers._cached.pop_all()


async def test_a_cold_read_is_one_tail_get_and_one_ranged_get_of_exactly_the_batches(autojump_clock):
    store, reads = recording(MemoryStore())
    async with memory_log(store, MemoryDisk(), cache_bytes=0) as log:
        await flushed_batches(log, 10)
        forget_footers(log)
        reads.clear()
        assert len(await log.read(log.partition(), 3, 4 * SIZE + 10)) == 4
        assert reads == [("tail", "0"), ("range", "0", HEADER.size + 3 * SIZE, 4 * SIZE)]
        reads.clear()
        assert [record.offset for record in await log.read(log.partition(), 7, 10 * SIZE)] == [7, 8, 9]
        assert reads == [("range", "0", HEADER.size + 7 * SIZE, 3 * SIZE)]


async def test_reading_a_fresh_segment_needs_no_footer(autojump_clock):
    store, reads = recording(MemoryStore())
    async with memory_log(store, MemoryDisk()) as log:
        await flushed_batches(log, 3)
        await log.read(log.partition(), 0)
        assert [kind for kind, *_ in reads] == ["range"]


def remembered_producers_count() -> int:
    gc.collect()
    return sum(isinstance(each, Producer) for each in gc.get_objects())


async def test_cached_footers_hold_no_producers(autojump_clock):
    """Each footer held copies of up to all producers of its partition, past what the limit of producers bounds."""
    topics = [topic_spec(producer_id_expiration_ms=1 << 50)]
    limits = Limits(max_producer_ids_per_partition_count=5)
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics, limits=limits) as log:
        before = remembered_producers_count()
        for number in range(40):
            await append_pairs(log.partition(), "a=1", producer=ProducerStamp(number, 0, 0))
            await log.log.flusher.flush_all()
        footers = log.log.reader.footers
        assert len(footers._cached) == 40
        assert remembered_producers_count() == before + 5
        size_bytes = footers.size_bytes
        footers._cached.pop_all()
        for offset in range(40):
            await log.read(log.partition(), offset)
        assert len(footers._cached) == 40
        assert remembered_producers_count() == before + 5
        assert footers.size_bytes == size_bytes


async def test_many_readers_of_one_segment_share_the_read_of_its_footer(autojump_clock):
    store, reads = recording(MemoryStore())
    async with memory_log(store, MemoryDisk()) as log:
        await flushed_batches(log, 3)
        forget_footers(log)
        store.delay(On("get_tail"), 1.0)
        async with trio.open_nursery() as nursery:
            for offset in range(3):
                nursery.start_soon(log.read, log.partition(), offset)
        assert [kind for kind, *_ in reads].count("tail") == 1


async def test_the_tail_is_read_without_the_store(autojump_clock):
    store, reads = recording(MemoryStore())
    async with memory_log(store, MemoryDisk()) as log:
        for value in (b"a", b"b", b"c"):
            await log.append(log.partition(), value)
        assert log.log.reader.read_nowait(log.partition(), 3, 100) is None
        slices = log.log.reader.read_nowait(log.partition(), 1, 1 << 20)
        assert len(slices.buffers) == 1
        slices.release()
        assert await log.values(log.partition(), 1) == [b"b", b"c"]
        assert reads == []


@pytest.mark.parametrize("flushed", [False, True])
async def test_an_offset_inside_of_a_batch_returns_that_batch(autojump_clock, flushed):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        for _ in range(3):
            await log.append(log.partition(), b"a", b"b", b"c")
        if flushed:
            await log.log.flusher.flush_all()
        assert [record.offset for record in await log.read(log.partition(), 4)] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("place", ["tail", "wal", "bucket"])
async def test_a_first_batch_larger_than_the_limit_is_returned_alone(autojump_clock, place):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        for _ in range(3):
            await log.append(log.partition(), bytes(1000))
        if place == "wal":
            log.partition().spill()
        if place == "bucket":
            await log.log.flusher.flush_all()
        assert [record.offset for record in await log.read(log.partition(), 1, 10)] == [1]
        assert [record.offset for record in await log.read(log.partition(), 1, 0)] == [1]


async def test_a_read_of_rows_with_many_batches_stays_within_the_byte_limit(autojump_clock, monkeypatch):
    monkeypatch.setattr("kafscale.formats.segment.INDEX_ROWS_MAX_COUNT", 3)
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        await flushed_batches(log, 30)
        footer = await read_footer(log.store, key_at(0))
        assert len(footer.index.positions) <= 3
        for offset in range(30):
            for count in (1, 2, 7):
                read = await log.read(log.partition(), offset, count * SIZE)
                row_end = footer.row_of(offset) + 1
                starts = [*footer.index.base_offsets, 30]
                expected = min(offset + count, max(starts[row_end], offset + 1), 30)
                assert read[0].offset == offset
                assert len(read) <= count
                assert read[-1].offset >= min(expected - 1, offset + count - 1)
        assert [record.offset for record in await log.records(log.partition(), max_bytes=SIZE)] == list(range(30))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.data())
def test_any_fetch_returns_the_batches_from_its_offset_wherever_they_are(counts, data):
    """Batches in two segments, in the WAL and in the tail; read with any limit from any offset, all of it follows."""
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    first, second, spilled = sorted(data.draw(st.lists(st.integers(0, len(counts)), min_size=3, max_size=3)))
    start = data.draw(st.integers(0, ends[-1] - 1))
    max_bytes = data.draw(st.integers(0, 600))

    async def main() -> None:
        async with memory_log(MemoryStore(), MemoryDisk()) as log:
            for index, count in enumerate(counts):
                await log.append(log.partition(), *[b"%d" % n for n in range(ends[index] - count, ends[index])])
                if index + 1 in (first, second):
                    await log.log.flusher.flush_all()
                if index + 1 == spilled:
                    log.partition().spill()
            read = await log.records(log.partition(), start, max_bytes=max_bytes)
            assert [(record.offset, record.value) for record in read] == [
                (n, b"%d" % n) for n in range(start, ends[-1])
            ]
            held = [batch for batch in log.partition().tail.batches if batch.lease is not None]
            await log.log.flusher.flush_all()
            assert log.log.pool.used_bytes == 0, held

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_nothing_above_the_high_watermark_is_read(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(sync_seconds=5.0)) as log:
        await log.append(log.partition(), b"a")
        log.append_nowait(log.partition(), b"b")
        assert await log.values(log.partition()) == [b"a"]
        assert await log.read(log.partition(), 1) == []


# ---- what moves while one reads ------------------------------------------------------------------------------------


async def test_batches_that_are_flushed_while_they_are_read_from_the_wal_are_held(autojump_clock):
    """A commit used to delete the WAL file under the reader, which ended the broker, or free the chunks of the rest."""
    disk = HookedDisk()
    async with memory_log(MemoryStore(), disk, wal_segment_bytes=64 << 10) as log:
        partition = log.partition()
        for number in range(20):
            await log.append(partition, b"%d" % number + bytes(9000))
            if number == 9:
                partition.spill()
        disk.before_read = log.log.flusher.flush_all
        found = await log.read(partition, 0)
        assert partition.flushed_offset == 20
        assert [record.value for record in found] == [b"%d" % number + bytes(9000) for number in range(20)]
        assert log.log.pool.used_bytes == 0
        assert log.log.journal.pending_count == 0


async def test_a_read_that_waits_for_the_budget_ends_if_its_topic_is_deleted_meanwhile(autojump_clock):
    """It used to look for the batches for ever, and let nobody else run."""
    async with memory_log(MemoryStore(), MemoryDisk(), flush_interval_seconds=1e9) as log:
        await log.append(log.partition(), b"a")
        async with log.waiting_read(UNKNOWN_TOPIC_OR_PARTITION):
            log.log.close_topic(TOPIC)


async def test_neighbours_in_one_wal_file_are_read_back_together(autojump_clock):
    """Each batch used to be a read of its own: a replay of small batches was flushed at the speed of thread hops."""
    disk = MemoryDisk()
    topics = [topic_spec(2)]
    async with memory_log(MemoryStore(), disk, topics=topics, wal_segment_bytes=64 << 10) as log:
        written = [b"%d" % number + bytes(1000) for number in range(200)]
        for value in written:
            await log.append(log.partition(0), value)
            await log.append(log.partition(1), bytes(300))
        log.partition(0).spill()
        disk.operations["read"] = 0
        assert await log.values(log.partition(0)) == written
        assert disk.operations["read"] == len(log.log.journal.files.in_use)


async def test_one_read_of_the_wal_is_neither_too_long_nor_mostly_of_other_partitions(autojump_clock):
    disk = MemoryDisk()
    async with memory_log(MemoryStore(), disk, topics=[topic_spec(2)], wal_segment_bytes=8 << 20) as log:
        for _ in range(3):
            await log.append(log.partition(0), bytes(500_000))
        await log.append(log.partition(1), bytes(GAP_MAX_BYTES))
        await log.append(log.partition(0), bytes(1000))
        log.partition(0).spill()
        disk.operations["read"] = 0
        assert [len(value) for value in await log.values(log.partition(0))] == [500_000] * 3 + [1000]
        assert disk.operations["read"] == 3


async def test_a_segment_that_was_merged_between_look_up_and_get_is_looked_up_again(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk()) as log:
        partition = log.partition()
        await flushed_batches(log, 6, per_segment=3)
        merged = await merge_segments(log, [0, 3])
        gate = store.hold(On("get_range"))
        found = []

        async def read() -> None:
            found.extend(await log.read(partition, 4))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await gate.wait_arrived(1)
            partition.manifest = Manifest([merged])
            await store.delete([key_at(0).key, key_at(3).key])
            gate.open()
        assert [record.offset for record in found] == [4, 5]


async def test_a_deleted_segment_without_a_replacement_raises_not_found(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        await flushed_batches(log, 3)
        await log.store.delete([key_at(0).key])
        with pytest.raises(NotFound):
            await log.read(log.partition(), 0)
        forget_footers(log)
        with pytest.raises(NotFound):
            await log.read(log.partition(), 0)


async def test_a_segment_damaged_before_a_read_is_quarantined_and_skipped(autojump_clock, caplog):
    for number in range(4):
        async with memory_log(MemoryStore(), MemoryDisk()) as log:
            await flushed_batches(log, 6, per_segment=3)
            content = bytes((await log.store.get(key_at(0).key)).data)
            other = bytes((await log.store.get(key_at(3).key)).data)
            damaged = (content[: HEADER.size + SIZE], b"", content[:40] + content[41:], other)[number]
            forget_footers(log)
            await log.store.put(key_at(0).key, [damaged])
            assert [record.offset for record in await log.records(log.partition(), 0)] == [3, 4, 5]
            assert log.log.quarantined_count() == 1
            assert bytes((await log.store.get(key_at(0).key)).data) == damaged
        assert caplog.text.count("is damaged and quarantined") == number + 1


async def test_a_damaged_footer_is_rebuilt_once_by_concurrent_reads(autojump_clock, caplog):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        await flushed_batches(log, 6, per_segment=3)
        content = bytes((await log.store.get(key_at(0).key)).data)
        forget_footers(log)
        await log.store.put(key_at(0).key, [content[:-1]])
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(log.read, log.partition(), 0)
        assert [record.offset for record in await log.records(log.partition(), 0)] == [*range(6)]
        assert bytes((await log.store.get(key_at(0).key)).data) == content
        assert log.log.quarantined_count() == 0
    assert caplog.text.count("has been rebuilt") == 1


# ---- damaged batches ----------------------------------------------------------------------------------------------

DAMAGED = 20  # its offset
IN_BATCH = {"length": 8, "magic": 16, "CRC": 17, "last offset": 26, "record": HEADER_BYTES + 20}


async def flip(log: MemoryLog, offset: int, position: int) -> bytes:
    """Damage one byte of a batch in the bucket. Returns the object as it was."""
    content = bytes((await log.store.get(key_at(0).key)).data)
    at = HEADER.size + offset * SIZE + position
    await log.store.put(key_at(0).key, [content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]])
    return content


async def offsets_from(log: MemoryLog, offset: int, max_bytes: int = 1 << 20) -> list[int]:
    return [record.offset for record in await log.read(log.partition(), offset, max_bytes)]


async def expect_damage(log: MemoryLog, offset: int) -> None:
    with pytest.raises(KafkaError, match=key_at(0).key) as caught:
        await log.read(log.partition(), offset)
    assert caught.value.code == CORRUPT_MESSAGE


@pytest.fixture(params=[1024, 4], ids=["a batch a row", "several batches a row"])
def rows_max_count(request, monkeypatch):
    """How many rows the index of a segment has at most."""
    monkeypatch.setattr(segment_format, "INDEX_ROWS_MAX_COUNT", request.param)
    return request.param


@pytest.mark.parametrize("forgets", [True, False], ids=["footer read anew", "footer known"])
@pytest.mark.parametrize("field", IN_BATCH)
async def test_damaged_records_are_not_served(autojump_clock, caplog, field, forgets, rows_max_count):
    """A segment that the checkpoint knew was served as it was, and only the client saw the wrong CRC."""
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        await flushed_batches(log, 40)
        content = await flip(log, DAMAGED, IN_BATCH[field])
        if forgets:
            forget_footers(log)
        for _ in range(2):
            assert await offsets_from(log, 0) == [*range(DAMAGED)]
            await expect_damage(log, DAMAGED)
        if field != "length":  # else where the next one begins is not known
            assert await offsets_from(log, DAMAGED + 1) == [*range(DAMAGED + 1, 40)]
        assert log.log.quarantined_count() == 0
        assert log.log.reader.ranges.cache.find(key_at(0), HEADER.size + DAMAGED * SIZE) is None
        assert log.log.reader.ranges.budget.used_bytes == 0
        (told,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        last = 39 if field == "length" else DAMAGED
        assert f"{key_at(0).key}: the record batch with offsets {DAMAGED} to {last} is damaged" in told
        assert "run `kafscale verify`" in told
        await log.store.put(key_at(0).key, [content])
        assert [record.offset for record in await log.records(log.partition())] == [*range(40)]


async def test_a_repeated_fetch_of_a_damaged_batch_does_not_read_the_whole_segment(autojump_clock):
    store, reads = recording(MemoryStore())
    async with memory_log(store, MemoryDisk()) as log:
        await flushed_batches(log, 40)
        await flip(log, DAMAGED, HEADER_BYTES)
        await expect_damage(log, DAMAGED)
        reads.clear()
        await expect_damage(log, DAMAGED)
        assert [kind for kind, *_ in reads] == ["tail", "range", "range"]


async def test_a_reply_that_comes_damaged_once_is_read_again(autojump_clock, caplog):
    """The object is whole: consumers notice nothing."""

    class DamagedReplies(FaultyStore):
        left_count = 0

        async def get_range(self, key, start, length_bytes):
            part = await super().get_range(key, start, length_bytes)
            if not self.left_count:
                return part
            self.left_count -= 1
            return attrs.evolve(part, data=bytes(part.data[:-1]) + bytes([part.data[-1] ^ 1]))

    store = DamagedReplies(MemoryStore())
    async with memory_log(store, MemoryDisk()) as log:
        await flushed_batches(log, 3)
        store.left_count = 1
        assert await offsets_from(log, 0) == [0, 1, 2]
        assert not store.left_count
        assert log.log.reader.ranges.cache.size_bytes > 0
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_look_up_by_time_does_not_go_past_damaged_records(autojump_clock, rows_max_count):
    """The first record that is late enough may be among them."""
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        for number in range(40):
            await log.append(log.partition(), bytes(100), timestamps_ms=[NOW_MS + number])
        await log.log.flusher.flush_all()
        await flip(log, DAMAGED, HEADER_BYTES + 20)
        is_alone = rows_max_count > 40
        for wanted, is_found in ((DAMAGED - 1, True), (DAMAGED, False), (DAMAGED + 1, is_alone), (39, True)):
            if is_found:
                found = await log.log.reader.find_timestamp(log.partition(), NOW_MS + wanted)
                assert found is not None
                assert found.offset == wanted
            else:
                with pytest.raises(KafkaError) as caught:
                    await log.log.reader.find_timestamp(log.partition(), NOW_MS + wanted)
                assert caught.value.code == CORRUPT_MESSAGE


# ---- holes --------------------------------------------------------------------------------------------------------


async def test_a_hole_between_segments_is_skipped_after_a_restart(autojump_clock):
    """A restart infers the end of a segment from where the next begins; one in between may have gone."""
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk()) as log:
        await flushed_batches(log, 9, per_segment=3)
        await store.delete([key_at(3).key, key_at(3).of_kind("index").key])
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        assert log.partition().manifest.segments[0].last_offset == 5
        for offset in (3, 4, 5):
            assert [record.offset for record in await log.read(log.partition(), offset)] == [6, 7, 8]
        assert [record.offset for record in await log.records(log.partition())] == [0, 1, 2, 6, 7, 8]
        forget_footers(log)
        found = await log.log.reader.find_timestamp(log.partition(), 0)
        assert found.offset == 0


async def test_a_hole_behind_the_last_segment_is_skipped(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        await flushed_batches(log, 3)
        partition = log.partition()
        partition.log_start_offset = 10
        partition.skip_to(10)
        await log.append(partition, b"behind")
        assert [record.offset for record in await log.read(partition, 5)] == [10]


async def test_a_hole_inside_of_a_segment_is_skipped(autojump_clock, monkeypatch):
    """As compaction leaves them: offsets without a record, inside of a row and between two."""
    monkeypatch.setattr("kafscale.formats.segment.INDEX_ROWS_MAX_COUNT", 2)
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        await flushed_batches(log, 1)
        footer = await read_footer(log.store, key_at(0))
        parts = []
        for offset in (0, 1, 5, 8, 13, 20, 21):
            batch = batch_of(b"%d" % offset)
            set_base_offset(batch, offset, 1)
            parts.append(bytes(batch))
        segment = await write_segment(log, b"".join(parts), like=footer)
        partition = log.partition()
        forget_footers(log)
        partition.manifest = Manifest([segment])
        partition.next_offset = partition.flushed_offset = partition.high_watermark = 22
        kept = [0, 1, 5, 8, 13, 20, 21]
        for max_bytes in (1, 200, 1 << 20):
            for offset in range(22):
                found = [record.offset for record in await log.records(partition, offset, max_bytes=max_bytes)]
                assert found == [each for each in kept if each >= offset]


# ---- by time ------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=8),
    st.integers(-1, 10),
    st.data(),
)
def test_the_first_record_at_or_after_a_timestamp_is_found_in_any_layout_of_the_log(batches_of_times, wanted, data):
    count = len(batches_of_times)
    flush_after = data.draw(st.sets(st.integers(0, count)))
    spilled_after = data.draw(st.integers(0, count))
    times = [each for batch in batches_of_times for each in batch]
    log_start = data.draw(st.integers(0, len(times)))
    restart = data.draw(st.booleans())

    async def main() -> None:
        store, disk = MemoryStore(), MemoryDisk()
        async with memory_log(store, disk) as log:
            for index, batch in enumerate(batches_of_times):
                await log.append(log.partition(), *[b""] * len(batch), timestamps_ms=batch)
                if index in flush_after:
                    await log.log.flusher.flush_all()
                if index == spilled_after:
                    log.partition().spill()
            if not restart:
                await check(log)
        if restart:
            async with memory_log(store, disk.crash(), leader_epoch=2) as log:
                assert all(
                    each.max_timestamp_ms == MAX_TIMESTAMP_UNKNOWN for each in log.partition().manifest.segments[:-1]
                )
                await check(log)

    async def check(log: MemoryLog) -> None:
        partition = log.partition()
        partition.delete_records(log_start)
        reader = log.log.reader
        found = await reader.find_timestamp(partition, wanted)
        late = [offset for offset in range(log_start, len(times)) if times[offset] >= wanted]
        assert (found and (found.offset, found.timestamp_ms, found.leader_epoch)) == (
            (late[0], times[late[0]], 1) if late else None
        )
        latest = await reader.find_max_timestamp(partition)
        readable = times[log_start:]
        assert (latest and (latest.offset, latest.timestamp_ms)) == (
            (log_start + readable.index(max(readable)), max(readable)) if readable else None
        )

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_timestamp_search_continues_in_the_segment_if_the_tail_is_flushed(autojump_clock):
    disk = HookedDisk()
    async with memory_log(MemoryStore(), disk) as log:
        partition = log.partition()
        await log.append(partition, b"late but deleted", b"early", timestamps_ms=[9, 1])
        await log.append(partition, b"late", timestamps_ms=[9])
        partition.spill()
        partition.delete_records(1)
        disk.before_read = log.log.flusher.flush_all
        found = await log.log.reader.find_timestamp(partition, 5)
        assert partition.flushed_offset == 3
        assert found.offset == 2


@pytest.mark.parametrize("held", ["get_tail", "get_range"])
@pytest.mark.parametrize("look_up", ["find_timestamp", "find_max_timestamp"])
async def test_a_segment_that_was_merged_during_a_look_up_by_time_is_looked_up_again(autojump_clock, look_up, held):
    """The client was told KAFKA_STORAGE_ERROR, though nothing was lost."""
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), cache_bytes=0) as log:
        partition, reader = log.partition(), log.log.reader
        for number in range(6):
            await log.append(partition, bytes(100), timestamps_ms=[number])
            await log.log.flusher.flush_all()
        merged = await merge_segments(log, range(6))
        forget_footers(log)
        gate = store.hold(On(held))
        found = []

        async def look() -> None:
            if look_up == "find_timestamp":
                found.append(await reader.find_timestamp(partition, 4))
            else:
                found.append(await reader.find_max_timestamp(partition))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await gate.wait_arrived(1)
            partition.manifest = Manifest([merged])
            await store.delete([key_at(offset).key for offset in range(6)])
            gate.open()
        assert [each.offset for each in found] == [4 if look_up == "find_timestamp" else 5]


async def test_a_largest_timestamp_is_looked_up_again_if_segments_without_one_were_merged(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), cache_bytes=0) as log:
        partition = log.partition()
        for number in range(4):
            await log.append(partition, bytes(100), timestamps_ms=[9 - number])
            await log.log.flusher.flush_all()
        merged = await merge_segments(log, [2, 3])
        first, second, *others = partition.manifest.segments
        unknown = [attrs.evolve(each, max_timestamp_ms=MAX_TIMESTAMP_UNKNOWN) for each in others]
        partition.manifest = Manifest([first, second, *unknown])
        forget_footers(log)
        gate = store.hold(On("get_tail", key_at(2).key))
        found = []

        async def look() -> None:
            found.append(await log.log.reader.find_max_timestamp(partition))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await gate.wait_arrived(1)
            partition.manifest = Manifest([first, second, merged])
            await store.delete([key_at(2).key, key_at(3).key])
            gate.open()
        assert [each.offset for each in found] == [0]


async def test_a_segment_that_is_gone_for_good_is_not_found_by_a_look_up_by_time(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), cache_bytes=0) as log:
        await flushed_batches(log, 3)
        forget_footers(log)
        await log.store.delete([key_at(0).key])
        with pytest.raises(NotFound):
            await log.log.reader.find_timestamp(log.partition(), 0)


async def test_a_look_up_by_time_ends_if_its_topic_is_deleted_meanwhile(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), cache_bytes=0) as log:
        partition = log.partition()
        await flushed_batches(log, 3)
        forget_footers(log)
        gate = store.hold(On("get_tail"))
        codes = []

        async def look() -> None:
            with pytest.raises(KafkaError) as refused:
                await log.log.reader.find_timestamp(partition, 0)
            codes.append(refused.value.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await gate.wait_arrived(1)
            log.log.close_topic(TOPIC)
            await store.delete([key_at(0).key])
            gate.open()
        assert codes == [UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_timestamp_search_reads_only_the_needed_rows(autojump_clock):
    store, reads = recording(MemoryStore())
    async with memory_log(store, MemoryDisk()) as log:
        for number in range(10):
            await log.append(log.partition(), bytes(100), timestamps_ms=[number])
        await log.log.flusher.flush_all()
        log.partition().delete_records(4)
        assert (await log.log.reader.find_timestamp(log.partition(), 0)).offset == 4
        assert (await log.log.reader.find_timestamp(log.partition(), 7)).offset == 7
        assert reads == [
            ("range", "0", HEADER.size + 4 * SIZE, SIZE),
            ("range", "0", HEADER.size + 7 * SIZE, SIZE),
        ]
