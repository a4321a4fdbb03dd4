"""The whole log over a store and a disk in memory, without a broker around it: for tests on an autojump clock.

Leaving the block of `memory_log` ends it as a kill does, except that the disk completes accepted writes;
`MemoryDisk.crash` returns the disk for the next one.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
import trio.testing

from kafscale.config import Durability
from kafscale.errors import KafkaError
from kafscale.formats.footer_reading import read_footer
from kafscale.formats.manifest import Segment, segment_of
from kafscale.formats.segment import HEADER, Footer, body_crc, build_footer, encode_footer, encode_header
from kafscale.formats.wal_objects import START, WalPosition
from kafscale.log.flush.upload import segment_key_of
from kafscale.log.log import Log, TopicSpec
from kafscale.log.opening import open_journal, open_log
from kafscale.log.partition.log_config import LogConfig
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.tail import Slices, TailBatch, became_durable
from kafscale.log.rewrite.merger import merged_footer, read_source
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.journal import Round
from kafscale.log.wal.local_wal import LocalLog
from kafscale.log.wal.s3_replay import take_over
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.opening.views import StoreViews
from kafscale.store.paths import SegmentKey, parse_segment_key
from kafscale.wire import error_codes
from kafscale.wire.batch_header import batches, parse_header
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records
from tests.devtools.fakes.memory_broker import memory_settings

NOW_MS = 1_700_000_000_000
ALL_BYTES = 1 << 40
TOPIC = "t"
TOPIC_ID = bytes(range(16))
_NO_PRODUCER = ProducerStamp()


def topic_spec(partition_count: int = 1, *, name: str = TOPIC, topic_id: bytes = TOPIC_ID, **changes: Any) -> TopicSpec:
    """Return a topic that is led here; `changes` go to its config, except `log_start_offsets`."""
    log_start_offsets: Mapping[int, int] = changes.pop("log_start_offsets", {})
    return TopicSpec(
        name=name,
        topic_id=topic_id,
        partition_count=partition_count,
        config=LogConfig(**changes),
        log_start_offsets=log_start_offsets,
        leader_epochs=dict.fromkeys(range(partition_count), 1),
    )


def batch_of(
    *values: bytes, timestamps_ms: Sequence[int] = (), producer: ProducerStamp = _NO_PRODUCER, attributes: int = 0
) -> memoryview:
    timestamps_ms = timestamps_ms or [NOW_MS] * len(values)
    records = [Record(value=value, timestamp_ms=ms) for value, ms in zip(values, timestamps_ms, strict=True)]
    return memoryview(build_batch(records, producer=producer, attributes=attributes))


@attrs.define(eq=False)
class MemoryLog:
    log: Log
    store: ObjectStore
    disk: Disk

    def partition(self, index: int = 0, *, name: str = TOPIC) -> Partition:
        found = self.log.partition_named(name, index)
        assert found is not None
        return found

    def append_nowait(self, partition: Partition, *values: bytes, **batch: Any) -> tuple[TailBatch, Round]:
        """Append one batch; returns it with the round that makes it durable."""
        return append_nowait(partition, *values, **batch)

    async def append(self, partition: Partition, *values: bytes, **batch: Any) -> int:
        """Append one batch, wait until it is durable, and return its first offset."""
        appended, round = append_nowait(partition, *values, **batch)
        await round.wait()
        return appended.base_offset

    async def records(self, partition: Partition, offset: int = 0, *, max_bytes: int = ALL_BYTES) -> list[Record]:
        """Return every record from `offset` to the high watermark, by as many reads as `max_bytes` makes necessary."""
        found: list[Record] = []
        while read := await self.read(partition, offset, max_bytes):
            found += [record for record in read if record.offset >= offset]
            offset = found[-1].offset + 1
        return found

    async def read(self, partition: Partition, offset: int, max_bytes: int = ALL_BYTES) -> list[Record]:
        """Return the records of one fetch, with those before `offset` in its first batch."""
        reader = self.log.reader
        slices = reader.read_nowait(partition, offset, max_bytes) or await reader.read(partition, offset, max_bytes)
        assert isinstance(slices, Slices)
        try:
            return [
                record
                for buffer in slices.buffers
                for batch in batches(memoryview(buffer))
                for record in iterate_records(batch)
            ]
        finally:
            slices.release()

    async def values(self, partition: Partition, offset: int = 0, *, max_bytes: int = ALL_BYTES) -> list[bytes | None]:
        return [record.value for record in await self.records(partition, offset, max_bytes=max_bytes)]

    @asynccontextmanager
    async def waiting_read(self, code: int) -> AsyncIterator[None]:
        """Start a read of spilled data that waits for the fetch budget, and expect it to fail with this code."""
        self.partition().spill()
        budget = self.log.reader.ranges.budget
        await budget.acquire(budget.size_bytes)

        async def read() -> None:
            found = error_codes.NONE
            try:
                await self.read(self.partition(), 0)
            except KafkaError as exc:
                found = exc.code
            assert found == code, error_codes.name(found)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            yield
            budget.release(budget.size_bytes)
        assert not budget.used_bytes


def append_nowait(partition: Partition, *values: bytes, now_ms: int = NOW_MS, **batch: Any) -> tuple[TailBatch, Round]:
    """Append one batch as the Produce handler does."""
    data = batch_of(*values, **batch)
    placed = partition.place_nowait(data)
    assert placed is not None, "the pool is exhausted"
    appended = partition.append(parse_header(data), placed, now_ms)
    assert partition.latest_round is not None
    return appended, partition.latest_round


@asynccontextmanager
async def memory_log(
    store: ObjectStore,
    disk: Disk,
    *,
    topics: Sequence[TopicSpec] = (),
    leader_epoch: int = 1,
    **settings: Any,
) -> AsyncIterator[MemoryLog]:
    """Restore and run a log for the block. Buffers that return to the pool are overwritten at once.

    `settings` may have `kept_until`, for `s3-wal`: metadata is kept elsewhere up to there.
    """
    kept_until: WalPosition = settings.pop("kept_until", START)
    chosen = memory_settings(**settings)
    metrics = Metrics()
    bucket_log = None
    if chosen.durability is Durability.S3_WAL:
        bucket_log = S3Wal(
            store=store,
            namespace=chosen.namespace,
            epoch=leader_epoch,
            max_bytes=chosen.wal_max_bytes,
            on_durable=became_durable,
            earlier=await take_over(store, chosen.namespace, leader_epoch, kept_until=kept_until),
        )
    log = open_log(
        chosen,
        StoreViews.alike(store),
        open_journal(chosen, LocalLog(disk=disk), bucket_log, metrics),
        broker_epoch=leader_epoch,
        metrics=metrics,
    )
    log.pool.poison = True
    for spec in topics or [topic_spec()]:
        log.open_topic(attrs.evolve(spec, leader_epochs=dict.fromkeys(spec.leader_epochs, leader_epoch)))
    await log.restore()
    await log.replay()
    async with trio.open_nursery() as nursery:
        if bucket_log is not None:
            await nursery.start(bucket_log.run)
        for task in log.journal.tasks:
            await nursery.start(task)
        await nursery.start(log.flusher.run)
        if log.spiller is not None:
            nursery.start_soon(log.spiller.run)
        nursery.start_soon(log.reader.run)
        yield MemoryLog(log, store, disk)
        nursery.cancel_scope.cancel()


async def merge_segments(log: MemoryLog, base_offsets: Sequence[int], *, generation: int = 1) -> Segment:
    """Merge the batches of several segments of the first partition into one of a newer generation, as a merger does.

    The covered objects stay, and the partition does not know the new one.
    """
    bodies: list[bytes] = []
    for base_offset in base_offsets:
        key = await _flushed_key(log, base_offset)
        footer = await read_footer(log.store, key)
        content = bytes((await log.store.get(key.key)).data)
        bodies.append(content[HEADER.size : footer.end_position])
    return await write_segment(log, b"".join(bodies), like=footer, generation=generation)


async def write_segment(log: MemoryLog, body: bytes, *, like: Footer, generation: int = 0) -> Segment:
    """Put a `.kfs` of these batches of the first partition into the bucket, without an `.index`.

    Its leader epoch is that of `like`.
    """
    headers = [parse_header(batch) for batch in batches(memoryview(body))]
    identity = attrs.evolve(
        like.identity,
        base_offset=headers[0].base_offset,
        generation=generation,
        batch_count=len(headers),
        body_bytes=len(body),
        max_timestamp_ms=max(header.max_timestamp_ms for header in headers),
        body_crc=body_crc([body]),
    )
    footer = build_footer(identity, headers, producers=like.producers, epochs=like.epochs)
    key = segment_key_of(log.partition(), identity)
    await log.store.put(key.key, [encode_header(footer), body, encode_footer(footer)])
    return segment_of(key, footer)


async def _flushed_key(log: MemoryLog, base_offset: int) -> SegmentKey:
    async with aclosing(log.store.list(log.partition().objects_prefix)) as pages:
        keys = [parse_segment_key(info.key) async for page in pages for info in page]
    found = [key for key in keys if key is not None and (key.base_offset, key.generation) == (base_offset, 0)]
    return max(found, key=lambda key: key.epoch).of_kind("kfs")


async def merge(log: MemoryLog, *, count: int | None = None) -> bool:
    """Merge the first `count` segments of the manifest, or all; False if the manifest changed meanwhile."""
    partition = log.partition()
    segments = list(partition.manifest.segments)[:count]
    sources = [await read_source(log.store, segment) for segment in segments]
    footer = await merged_footer(partition, sources)
    return await log.log.merger.rewriter.replace(partition, segments, footer, [source.body for source in sources])


async def write_files(store: ObjectStore, directory: Path) -> None:
    """Write a store's objects to a directory that serves as a store for blocking readers."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    async with aclosing(store.list("")) as pages:
        async for page in pages:
            for info in page:
                file = directory / info.key
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(bytes((await store.get(info.key)).data))
