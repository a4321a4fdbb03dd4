"""Build a log from the settings: construct its parts, connect them, and register their metrics.

`--durability` decides the journal; everything else that differs between the modes follows from the journal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.config import Durability, Settings
from kafscale.errors import StartupError
from kafscale.formats.manifest import PartitionId
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.bucket.deletion import Deleter
from kafscale.log.flush.flusher import Flusher, FlushPacer, Spiller
from kafscale.log.flush.upload import Uploader
from kafscale.log.log import Log, TrafficMetrics
from kafscale.log.partition.chunks import ChunkPool
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.producers import ProducerBudget
from kafscale.log.partition.tail import became_durable, topic_name
from kafscale.log.read.disk_cache import DiskCache
from kafscale.log.read.file_ranges import FileRanges
from kafscale.log.read.footers import Footers
from kafscale.log.read.ranges import RangeReader
from kafscale.log.read.read_ahead import ReadAhead
from kafscale.log.read.reader import LogReader
from kafscale.log.read.segment_cache import SegmentCache
from kafscale.log.read.unpacking import Unpacking
from kafscale.log.replaying import NotOpen
from kafscale.log.rewrite.compaction import Compactor
from kafscale.log.rewrite.merger import Merger
from kafscale.log.rewrite.rewriting import Rewriter
from kafscale.log.wal.journal import FlushOnAppend, Handle, Journal
from kafscale.log.wal.local_wal import LocalLog, Wal
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.metrics import Metrics
from kafscale.store.opening.views import StoreViews


def open_journal(settings: Settings, local: LocalLog, bucket_log: S3Wal | None, metrics: Metrics) -> Journal:
    """Build the journal of record batches. Nothing is read or written yet.

    `bucket_log` is that of the broker's metadata, unless `--durability` is `wal`, and calls `became_durable`.
    """
    if settings.durability is Durability.S3_WAL:
        assert bucket_log is not None
        return bucket_log
    if settings.durability is Durability.SEGMENT:
        return FlushOnAppend()
    wal = Wal(
        disk=local.disk,
        on_durable=became_durable,
        lease=local.lease,
        extents=local.extents,
        topic_name=topic_name,
        segment_bytes=settings.wal_segment_bytes,
        max_bytes=settings.wal_max_bytes,
        sync_interval_seconds=settings.wal_sync_interval_seconds,
    )
    wal.register(metrics)
    return wal


def open_log(
    settings: Settings,
    views: StoreViews,
    journal: Journal,
    *,
    broker_epoch: int,
    metrics: Metrics,
    check_lead: Callable[[], Awaitable[None]] | None = None,
    check_lead_lately: Callable[[], Awaitable[None]] | None = None,
    is_withheld: Callable[[int], bool] = lambda producer_id: False,
    leads_all: bool = True,
) -> Log:
    """Build the log. Nothing is read or written yet: that is `Log.restore` and `Log.replay`.

    `check_lead` raises Fenced if another broker has taken over. Where a flush acknowledges, it is asked before each
    commit; with a local journal `check_lead_lately`, which looks at most every few seconds, before each flush.
    `is_withheld` tells whether a producer id has not been given out; `leads_all`, that no other broker leads anything
    of the namespace.
    """
    pool = ChunkPool(settings.chunk_pool_bytes)
    partitions: dict[PartitionId, Partition] = {}
    reader = _open_reader(settings, views)
    uploader = Uploader(
        store=views.acknowledge,
        reader=reader,
        deadline_seconds=settings.limits.store_upload_deadline_seconds,
        check_lead_first=check_lead_lately if journal.is_local else None,
        check_lead=None if journal.keeps_entries else check_lead,
    )
    flusher = Flusher(
        uploader=uploader,
        pool=pool,
        journal=journal,
        interval_seconds=settings.flush_interval_seconds,
        pacer=FlushPacer(settings.flush_objects_per_minute) if journal.keeps_entries else None,
        store_places_count=settings.s3_concurrency,
        early_objects_count=settings.s3_wal_flush_objects_count,
    )
    deleter = Deleter(store=views.background, footers=reader.footers)
    rewriter = Rewriter(store=views.background, deleter=deleter, check_lead=check_lead or trio.lowlevel.checkpoint)
    log = Log(
        views=views,
        namespace=settings.namespace,
        broker_epoch=broker_epoch,
        segment_bytes=settings.segment_bytes,
        pool=pool,
        journal=journal,
        flusher=flusher,
        spiller=Spiller(pool=pool, flusher=flusher, partitions=partitions) if journal.is_local else None,
        reader=reader,
        deleter=deleter,
        merger=Merger(rewriter=rewriter, target_bytes=settings.segment_merge_bytes, is_pressed=flusher.is_pressed),
        compactor=Compactor(
            rewriter=rewriter,
            footers=reader.footers,
            map_bytes=settings.log_cleaner_dedupe_buffer_bytes,
            target_bytes=settings.segment_merge_bytes or settings.segment_bytes,
            interval_seconds=settings.compaction_check_interval_seconds,
        ),
        producer_budget=ProducerBudget.of(settings.limits, is_withheld),
        traffic=TrafficMetrics.register(metrics),
        partitions=partitions,
        leads_all=leads_all,
    )
    log.register(metrics)
    return log


def _open_reader(settings: Settings, views: StoreViews) -> LogReader:
    cache = SegmentCache(settings.cache_bytes)
    disk = None
    if settings.cache_directory is not None:
        disk = DiskCache(directory=settings.cache_directory, max_bytes=settings.cache_disk_bytes, memory=cache)
    footers = Footers(views.fetch, settings.limits.footer_cache_bytes, cache)
    files = None
    if views.files is not None and not settings.cache_bytes and disk is None:
        files = FileRanges(views.files, cache)
    return LogReader(
        footers=footers,
        ranges=RangeReader(store=views.fetch, cache=cache, budget=ByteBudget(settings.fetch_buffer_bytes), disk=disk),
        read_ahead=ReadAhead(
            store=views.prefetch, footers=footers, cache=cache, max_bytes=settings.readahead_bytes, disk=disk
        ),
        unpacking=Unpacking(settings.limits.max_decompressed_bytes),
        files=files,
    )


async def check_other_logs(
    log: Log,
    durability: Durability,
    replay_bucket: Callable[[Handle], Awaitable[object]],
    local: LocalLog,
    not_open: NotOpen,
) -> Wal | None:
    """Refuse to start if another `--durability` has acknowledged records that are not flushed.

    A clean stop leaves none; a crash may. Call this when `log` is restored and replayed. `replay_bucket` replays the
    log in the bucket. Returns the log on the local disk if it is another one, whose files may be missing. Raises
    StartupError, DamagedObject, StorageFailed, StoreError.
    """
    if durability is not Durability.S3_WAL:
        await _refuse_missing(log, replay_bucket, "the write-ahead log in the bucket", "s3-wal")
    if durability is not Durability.WAL:
        wal = Wal(disk=local.disk, on_durable=lambda entries: None, extents=local.extents)
        name = f"the write-ahead log in {local.disk.location}"
        await _refuse_missing(log, wal.replay, name, "wal", is_unknown=not_open.is_unknown)
        await wal.files.note(is_end=True)  # nothing of it is needed
        return wal
    return None


async def _refuse_missing(
    log: Log,
    replay: Callable[[Handle], Awaitable[object]],
    name: str,
    durability: str,
    *,
    is_unknown: Callable[[WalEntry], bool] = lambda entry: False,
) -> None:
    """Raise StartupError if a log has batches behind a partition's last segment, or of an unknown partition."""
    count = 0

    def handle(entry: WalEntry) -> bool:
        nonlocal count
        partition = log.partition(entry.topic_id, entry.partition)
        is_missing = is_unknown(entry) if partition is None else entry.base_offset >= partition.next_offset
        count += is_missing
        return is_missing

    await replay(handle)
    if count:
        raise StartupError(
            f"{name} has {count} acknowledged record batches that are in no segment yet: start once with "
            f"--durability {durability} and stop that broker, which takes them there"
        )
