"""Compaction of a log in memory: what consumers see before, meanwhile, afterwards and after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafscale.log.compaction import Compactor
from kafscale.log.compaction_plan import first_dirty_offset
from kafscale.log.partition import Partition
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.memory_log import NOW_MS, MemoryLog, memory_log, topic_spec
from kafscale.wire.records import Record, batches, build_batch, iterate_records, parse_header

HOUR_MS = 3_600_000
COMPACT = {"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0}


def compactor(log: MemoryLog, *, now_ms: int = NOW_MS, **changes: Any) -> Compactor:
    settings: dict[str, Any] = {"map_bytes": 1 << 20, "target_bytes": 1 << 20, **changes}
    return Compactor(
        store=log.store,
        footers=log.log.reader.footers,
        deleter=log.log.deleter,
        partitions=lambda: list(log.log.partitions.values()),
        interval_seconds=15.0,
        now_ms=lambda: now_ms,
        **settings,
    )


def pair(text: str) -> Record:
    """A record from `key=value`, or the tombstone `key`."""
    key, _, value = text.partition("=")
    return Record(key=key.encode(), value=value.encode() or None, timestamp_ms=NOW_MS)


async def append(partition: Partition, *texts: str, **batch: Any) -> int:
    """One batch, durable; returns its base offset."""
    data = memoryview(build_batch([pair(each) for each in texts], **batch))
    placed = partition.place_nowait(data)
    assert placed is not None
    appended = partition.append(parse_header(data), placed, NOW_MS)
    assert partition.latest_round is not None
    await partition.latest_round.wait()
    return appended.base_offset


async def append_segments(log: MemoryLog, *segments: Iterable[str]) -> None:
    """A segment of one batch for each."""
    for texts in segments:
        await append(log.partition(), *texts)
        await log.log.flusher.flush_all()


async def fetched(log: MemoryLog, *, max_bytes: int = 1 << 30) -> dict[int, str]:
    """What a consumer sees that begins at the log start, by offset, as `key=value` or `key`."""
    partition, reader = log.partition(), log.log.reader
    seen: dict[int, str] = {}
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        slices = reader.read_nowait(partition, offset, max_bytes) or await reader.read(partition, offset, max_bytes)
        for buffer in slices.buffers:
            for batch in batches(memoryview(buffer)):
                for record in iterate_records(batch):
                    assert record.offset not in seen, "a record came twice"
                    seen[record.offset] = text_of(record)
        assert slices.end_offset > offset, "a consumer would ask for the same offset for ever"
        offset = slices.end_offset
        slices.release()
    return seen


def text_of(record: Record) -> str:
    assert record.key is not None
    return record.key.decode() if record.value is None else f"{record.key.decode()}={record.value.decode()}"


async def test_the_latest_record_of_each_key_is_kept_at_its_offset(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, ["a=1", "b=1"], ["a=2", "c=1"], ["b=2"])
        await compactor(log).compact_all()
        assert await fetched(log) == {2: "a=2", 3: "c=1", 4: "b=2"}
        assert await fetched(log, max_bytes=1) == {2: "a=2", 3: "c=1", 4: "b=2"}
        assert len(log.partition().manifest.segments) == 1
        assert first_dirty_offset(log.partition()) == 5
