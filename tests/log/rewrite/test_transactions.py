"""Merging, compaction and retention of segments with transactions."""

from __future__ import annotations

import trio

from kafscale.formats.footer_reading import read_footer
from kafscale.log.partition.partition import Partition
from kafscale.log.rewrite.compaction import find_cleanable
from kafscale.log.rewrite.merger import merged_footer, read_source
from kafscale.log.rewrite.retention import retained_from
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.batch_header import TRANSACTIONAL
from kafscale.wire.records import ProducerStamp, Record, build_batch
from tests.devtools.fakes.memory_log import MemoryLog, append_nowait, memory_log, topic_spec
from tests.devtools.fakes.transactions import NOW_MS, abort, commit, enrolled_nowait, read_committed, send

SETTINGS = {"flush_interval_seconds": 1e9}
COMPACTED = topic_spec(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, delete_retention_ms=0)


async def flush(log: MemoryLog) -> None:
    await log.log.flusher.flush_all()


async def test_a_merged_segment_lists_all_aborted_and_open_transactions(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), **SETTINGS) as log:
        partition = log.partition()
        await send(partition, b"a", producer_id=1)
        await flush(log)
        await abort(partition, producer_id=1)
        await send(partition, b"b", producer_id=2)
        await send(partition, b"c", producer_id=3)
        await flush(log)
        await abort(partition, producer_id=2)
        await flush(log)
        before = await read_committed(log, partition)
        segments = list(partition.manifest.segments)
        footer = await merged_footer(partition, [await read_source(log.store, each) for each in segments])
        assert [(each.producer_id, each.marker_offset) for each in footer.aborted] == [(1, 1), (2, 4)]
        assert [each.producer_id for each in footer.open_transactions] == [3]
        assert footer.version == 3
        sources = [await read_source(log.store, each) for each in segments]
        assert await log.log.merger.rewriter.replace(partition, segments, footer, [each.body for each in sources])
        assert [each.generation for each in partition.manifest.segments] == [1]
        assert await read_committed(log, partition) == before
        store = log.store
    async with memory_log(store, MemoryDisk(), leader_epoch=2, **SETTINGS) as log:
        assert list(log.partition().transactions.open) == [3]
        assert await read_committed(log, log.partition()) == before == []


async def keyed(partition: Partition, key: bytes, value: bytes, *, producer_id: int, sequence: int = 0) -> None:
    stamp = ProducerStamp(producer_id, 0, sequence)
    record = Record(key=key, value=value, timestamp_ms=NOW_MS)
    batch = enrolled_nowait(partition, memoryview(build_batch([record], attributes=TRANSACTIONAL, producer=stamp)))
    assert batch.round is not None
    await batch.round.wait()


async def compact(log: MemoryLog) -> None:
    await log.log.compactor.compact_all(lambda: [log.partition()])


async def test_compaction_removes_aborted_records_and_keeps_markers_they_need(
    autojump_clock,
):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[COMPACTED], **SETTINGS) as log:
        partition = log.partition()
        await keyed(partition, b"k", b"kept", producer_id=1)
        await commit(partition, producer_id=1)
        await keyed(partition, b"k", b"aborted", producer_id=2)
        await flush(log)
        await abort(partition, producer_id=2)
        await keyed(partition, b"other", b"open", producer_id=3)
        await flush(log)
        assert partition.last_stable_offset == 4
        await compact(log)
        assert any(each.generation for each in partition.manifest.segments), "nothing was compacted"
        assert [record.offset for record in await log.records(partition) if record.key == b"k"] == [0]
        assert await read_committed(log, partition) == [b"kept"]
        for number in range(3):  # the marker goes, once nothing is left of its transaction
            await trio.sleep(3600)
            await keyed(partition, b"other", b"more", producer_id=4, sequence=number)
            await commit(partition, producer_id=4)
            await flush(log)
            await compact(log)
            assert await read_committed(log, partition) == [b"kept"]
            await assert_each_aborted_has_its_marker(log)
        await abort(partition, producer_id=3)
        assert (await read_committed(log, partition))[-1] == b"more"


async def assert_each_aborted_has_its_marker(log: MemoryLog) -> None:
    offsets = {record.offset for record in await log.records(log.partition())}
    for segment in log.partition().manifest.segments:
        for aborted in (await read_footer(log.store, segment.key)).aborted:
            assert aborted.marker_offset in offsets


async def test_compaction_stops_at_the_last_stable_offset(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[COMPACTED], **SETTINGS) as log:
        partition = log.partition()
        await keyed(partition, b"k", b"open", producer_id=1)
        append_nowait(partition, b"x", now_ms=NOW_MS)
        await keyed(partition, b"k", b"later", producer_id=2)
        await commit(partition, producer_id=2)
        await flush(log)
        part = await find_cleanable(partition, log.log.reader.footers, NOW_MS)
        assert (part.end_offset, part.dirty_bytes, part.is_worth_it) == (0, 0, False)
        await commit(partition, producer_id=1)
        part = await find_cleanable(partition, log.log.reader.footers, NOW_MS)
        assert (part.end_offset, part.is_worth_it) == (4, True)


async def test_retention_stops_at_the_last_stable_offset(autojump_clock):
    for spec in (topic_spec(retention_ms=1), topic_spec(retention_ms=-1, retention_bytes=0)):
        async with memory_log(MemoryStore(), MemoryDisk(), topics=[spec], **SETTINGS) as log:
            partition = log.partition()
            for _ in range(2):
                await log.append(partition, b"x")
                await flush(log)
            await send(partition, b"open")
            await flush(log)
            await log.append(partition, b"x")
            await flush(log)
            newest_ms = {each.key: 0 for each in partition.manifest.segments}
            assert retained_from(partition, newest_ms, NOW_MS) == 2
            await commit(partition)
            assert retained_from(partition, newest_ms, NOW_MS) == 4
