"""From the settings to a log: builds its parts and ties them together."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio

from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.config import Durability, Settings
from kafscale.log.deletion import Deleter
from kafscale.log.flush.flusher import Flusher
from kafscale.log.flush.pacing import FlushPacer
from kafscale.log.flush.spilling import Spiller
from kafscale.log.flush.upload import Uploader
from kafscale.log.log import Log, TrafficMetrics
from kafscale.log.partition.chunks import ChunkPool
from kafscale.log.partition.partition import WriteAheadLog
from kafscale.log.read.disk_cache import DiskCache
from kafscale.log.read.file_ranges import FileRanges
from kafscale.log.read.footers import Footers
from kafscale.log.read.ranges import RangeReader
from kafscale.log.read.read_ahead import ReadAhead
from kafscale.log.read.reader import LogReader
from kafscale.log.read.segment_cache import SegmentCache
from kafscale.log.repair.quarantine import Examiner
from kafscale.log.rewrite.compaction import Compactor
from kafscale.log.rewrite.compaction_round import CompactionStatistics
from kafscale.log.rewrite.merger import Merger
from kafscale.log.rewrite.rewriting import Rewriter
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.local_wal import Wal
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.metrics import Counter, Metrics
from kafscale.store.opening.views import StoreViews


def open_log(
    settings: Settings,
    views: StoreViews,
    disk: Disk,
    *,
    leader_epoch: int,
    metrics: Metrics,
    journal: S3Wal | None = None,
    check_lead: Callable[[], Awaitable[None]] | None = None,
) -> Log:
    """Build the log. Nothing is read or written yet: that is `Log.restore` and `Log.replay`.

    `journal` is the log in the bucket; record batches go there under `s3-wal`. `check_lead` raises Fenced if another
    broker has taken over; without it nobody can. Under `segment` it is asked before each commit of a flush.
    """
    pool = ChunkPool(settings.chunk_pool_bytes)
    wal: Wal | S3Wal | None = None
    if settings.durability is Durability.WAL:
        wal = Wal(
            disk=disk,
            on_durable=lambda entries: log.on_durable(entries),  # noqa: PLW0108 (the log is made below)
            segment_bytes=settings.wal_segment_bytes,
            max_bytes=settings.wal_max_bytes,
            sync_interval_seconds=settings.wal_sync_interval_seconds,
        )
    elif settings.durability is Durability.S3_WAL:
        assert journal is not None
        journal.on_durable = lambda entries: log.on_durable(entries)  # noqa: PLW0108
        wal = journal
    reader = _open_reader(settings, views, wal)
    footers = reader.footers
    flusher = Flusher(
        uploader=_make_uploader(settings, views, reader, check_lead=check_lead),
        pool=pool,
        interval_seconds=settings.flush_interval_seconds,
        immediate=wal is None,
        tasks_max_count=_flushes_max_count(settings),
        duration_seconds=metrics.histogram("kafscale_flush_seconds", "From the start of a flush to its commit.").of(),
        failed_count=metrics.counter("kafscale_flush_failures_total", "Flushes that are tried again.").of(),
    )
    deleter = _make_deleter(views, footers, metrics)
    rewriter = Rewriter(store=views.background, deleter=deleter, check_lead=check_lead or trio.lowlevel.checkpoint)
    _register_damage(metrics, reader.examiner)
    log = Log(
        views=views,
        namespace=settings.namespace,
        leader_epoch=leader_epoch,
        segment_bytes=settings.segment_bytes,
        pool=pool,
        wal=wal,
        flusher=flusher,
        reader=reader,
        deleter=deleter,
        merger=_make_merger(settings, rewriter, flusher, metrics),
        compactor=_make_compactor(settings, rewriter, footers, metrics),
        traffic=TrafficMetrics.register(metrics),
    )
    _register_start(metrics, log)
    pool.on_pressure = flusher.relieve
    if wal is not None:
        flusher.pacer = FlushPacer(settings.flush_objects_per_minute, objects_count=_objects_counter(metrics))
        flusher.log_is_crowded = lambda: wal.is_crowded
        wal.on_crowded = flusher.wake
    if settings.durability is Durability.WAL:
        log.spiller = _make_spiller(log, metrics)
    return log


def _register_start(metrics: Metrics, log: Log) -> None:
    """Also while it goes on: the metrics are served from the first moment."""

    def gauge(name: str, help: str, attribute: str) -> None:
        metrics.gauge(name, help, lambda: getattr(log.restored, attribute))

    gauge("kafscale_start_listed_objects", "Objects that the start has found in the bucket.", "listed_object_count")
    gauge("kafscale_start_partitions", "Partitions of which the start has found segments.", "partition_count")
    gauge("kafscale_start_restored_partitions", "Of these, restored so far.", "restored_partition_count")
    gauge(
        "kafscale_start_recognised_segments",
        "Segments that the checkpoint of the manifests vouched for.",
        "vouched_segment_count",
    )
    gauge("kafscale_start_footer_reads", "Footers that the start has read.", "footer_read_count")
    gauge("kafscale_start_restore_seconds", "How long it took to find out what the bucket holds.", "seconds")
    gauge(
        "kafscale_missing_segments", "Segments of the checkpoint that the start did not find.", "missing_segment_count"
    )
    metrics.gauge("kafscale_quarantined_segments", "Segments that are damaged and not read.", log.quarantined_count)
    metrics.gauge(
        "kafscale_manifest_checkpoint_bytes",
        "Size of the last checkpoint of the manifests that was written.",
        lambda: log.manifest_checkpointer.written_bytes,
    )


def _register_damage(metrics: Metrics, examiner: Examiner) -> None:
    rebuilt = metrics.counter(
        "kafscale_rebuilt_objects_total",
        "Damaged or missing objects of segments that were written again from what is whole.",
        "kind",
    )
    examiner.rebuilt_segment_count = rebuilt.of("kfs")
    examiner.rebuilt_index_count = rebuilt.of("index")


def _make_uploader(
    settings: Settings, views: StoreViews, reader: LogReader, *, check_lead: Callable[[], Awaitable[None]] | None
) -> Uploader:
    return Uploader(
        store=views.acknowledge,
        footers=reader.footers,
        reader=reader,
        deadline_seconds=settings.limits.store_upload_deadline_seconds,
        check_lead=check_lead if settings.durability is Durability.SEGMENT else None,
    )


def _make_deleter(views: StoreViews, footers: Footers, metrics: Metrics) -> Deleter:
    return Deleter(
        store=views.background,
        footers=footers,
        deleted_count=metrics.counter("kafscale_segments_deleted_total", "Segments whose objects were deleted.").of(),
        failed_count=metrics.counter(
            "kafscale_segment_delete_failures_total", "Deletions of segments' objects that are tried again."
        ).of(),
    )


def _make_merger(settings: Settings, rewriter: Rewriter, flusher: Flusher, metrics: Metrics) -> Merger:
    return Merger(
        rewriter=rewriter,
        target_bytes=settings.segment_merge_bytes,
        is_pressed=flusher.is_pressed,
        merges_count=metrics.counter("kafscale_merges_total", "Merges of small segments into a larger one.").of(),
        sources_count=metrics.counter("kafscale_merged_segments_total", "Segments that they were made of.").of(),
        merged_bytes=metrics.counter("kafscale_merged_bytes_total", "Record batches in these segments.").of(),
        failed_count=metrics.counter(
            "kafscale_merge_failures_total", "Merges that are tried again, and segments that can't be merged."
        ).of(),
    )


def _make_compactor(settings: Settings, rewriter: Rewriter, footers: Footers, metrics: Metrics) -> Compactor:
    def counter(name: str, help: str) -> Counter:
        return metrics.counter(f"kafscale_compaction{name}_total", help).of()

    compactor = Compactor(
        rewriter=rewriter,
        footers=footers,
        map_bytes=settings.log_cleaner_dedupe_buffer_bytes,
        target_bytes=settings.segment_merge_bytes or settings.segment_bytes,
        interval_seconds=settings.compaction_check_interval_seconds,
        statistics=CompactionStatistics(
            read_bytes=counter("_read_bytes", "Record batches that compactions read."),
            written_bytes=counter("_written_bytes", "Record batches that compactions wrote."),
            removed_records=counter("_removed_records", "Records that compactions removed."),
        ),
        rounds_count=counter("s", "Compactions of a partition."),
        failed_count=counter("_failures", "Compactions that failed; see the log."),
    )
    metrics.gauge(
        "kafscale_compaction_max_dirty_ratio",
        "Of the dirtiest partition, how much of what could be compacted is dirty.",
        lambda: compactor.max_dirty_ratio,
    )
    return compactor


def _open_reader(settings: Settings, views: StoreViews, wal: WriteAheadLog | None) -> LogReader:
    cache = SegmentCache(settings.cache_bytes)
    disk = None
    if settings.cache_directory is not None:
        disk = DiskCache(directory=settings.cache_directory, max_bytes=settings.cache_disk_bytes, memory=cache)
    footers = Footers(views.fetch, settings.limits.footer_cache_bytes, cache)
    budget = ByteBudget(settings.fetch_buffer_bytes)
    files = None
    if views.files is not None and not settings.cache_bytes and disk is None:
        files = FileRanges(views.files)
        cache.on_forget = files.forget
    return LogReader(
        footers=footers,
        ranges=RangeReader(store=views.fetch, cache=cache, budget=budget, disk=disk),
        read_ahead=ReadAhead(
            store=views.prefetch, footers=footers, cache=cache, max_bytes=settings.readahead_bytes, disk=disk
        ),
        wal=wal,
        files=files,
    )


def _make_spiller(log: Log, metrics: Metrics) -> Spiller:
    spiller = Spiller(
        pool=log.pool,
        flusher=log.flusher,
        partitions=log.partitions,
        spilled_bytes=metrics.counter(
            "kafscale_spilled_bytes_total", "Record batches that were left to the WAL as memory ran short."
        ).of(),
    )
    log.flusher.spills = True

    def on_pressure() -> None:
        log.flusher.relieve()
        spiller.wake()

    log.pool.on_pressure = on_pressure
    return spiller


def _objects_counter(metrics: Metrics) -> Counter:
    return metrics.counter("kafscale_flush_objects_total", "Objects that flushes have begun to write.").of()


def _flushes_max_count(settings: Settings) -> float:
    """A flush is two PUTs: so many that half of the tokens are left to fetches, and to a log that is in the bucket.

    Where produces wait for flushes there is no limit but the store's.
    """
    if settings.durability is Durability.SEGMENT or not settings.s3_concurrency:
        return math.inf
    return max(1, settings.s3_concurrency // 4)
