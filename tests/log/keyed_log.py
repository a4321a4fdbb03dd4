"""Records with keys in a `MemoryLog`, as text: what a table is built from, and what tests of compaction compare.

`a=1` is a record of key and value, `a` the tombstone of that key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafscale.log.partition.partition import Partition
from kafscale.log.partition.tail import Slices
from kafscale.wire.batch_header import batches, parse_header
from kafscale.wire.records import Record, build_batch, iterate_records
from tests.devtools.fakes.memory_log import NOW_MS, MemoryLog


def pair(text: str, timestamp_ms: int = NOW_MS) -> Record:
    """A record, or a tombstone."""
    key, _, value = text.partition("=")
    return Record(key=key.encode(), value=value.encode() or None, timestamp_ms=timestamp_ms)


async def append_pairs(partition: Partition, *texts: str, timestamp_ms: int = NOW_MS, **batch: Any) -> int:
    """One batch, durable; returns its base offset."""
    return await append_batch(partition, memoryview(build_batch([pair(text, timestamp_ms) for text in texts], **batch)))


async def append_batch(partition: Partition, data: memoryview) -> int:
    """A batch as it is, durable; returns its base offset."""
    placed = partition.place_nowait(data)
    assert placed is not None
    appended = partition.append(parse_header(data), placed, NOW_MS)
    assert partition.latest_round is not None
    await partition.latest_round.wait()
    return appended.base_offset


async def append_segments(log: MemoryLog, *segments: Iterable[str]) -> None:
    """A segment of one batch for each."""
    for texts in segments:
        await append_pairs(log.partition(), *texts)
        await log.log.flusher.flush_all()


async def fetched(log: MemoryLog, *, max_bytes: int = 1 << 30) -> dict[int, str]:
    """Return what a consumer sees that begins at the log start, by offset."""
    partition, reader = log.partition(), log.log.reader
    seen: dict[int, str] = {}
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        slices = reader.read_nowait(partition, offset, max_bytes) or await reader.read(partition, offset, max_bytes)
        assert isinstance(slices, Slices)
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
    """Return what `pair` made it of."""
    assert record.key is not None
    return record.key.decode() if record.value is None else f"{record.key.decode()}={record.value.decode()}"


def table_of(records: dict[int, str]) -> dict[str, str]:
    """Return what a table built from the topic holds in the end."""
    table: dict[str, str] = {}
    for _, text in sorted(records.items()):
        key, _, value = text.partition("=")
        table[key] = value
    return {key: value for key, value in table.items() if value}
