"""The metrics that are read off the components when somebody scrapes: pool, WAL, log, reads, connections, lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kafscale.api.services import Services
from kafscale.log.log import Log
from kafscale.log.partition.chunks import ChunkPool
from kafscale.log.read.reader import LogReader
from kafscale.log.wal.local_wal import Wal
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.metrics import Counter, Metrics, Sample
from kafscale.server.kafka.listener import Acceptor


def register_broker_metrics(services: Services, acceptor: Acceptor) -> None:
    """Once, when all components are there."""
    metrics, log = services.metrics, services.log
    _register_pool(metrics, log.pool)
    if isinstance(log.wal, Wal):
        _register_wal(metrics, log.wal)
    _register_log(metrics, log)
    _register_reader(metrics, log.reader)
    _register_connections(metrics, acceptor)
    metrics.callback(
        "kafscale_group_lag",
        "Records between a group's committed offset and the high watermark.",
        "group",
        "topic",
        "partition",
        samples=lambda: _lag(services),
    )


def _register_pool(metrics: Metrics, pool: ChunkPool) -> None:
    metrics.gauge("kafscale_pool_bytes", "Size of the chunk pool.", lambda: pool.size_bytes)
    metrics.gauge("kafscale_pool_used_bytes", "Of the chunk pool, in use.", lambda: pool.used_bytes)
    metrics.gauge("kafscale_pool_waiting", "Leases that wait for memory.", lambda: pool.statistics().waiting_count)


def _register_wal(metrics: Metrics, wal: Wal) -> None:
    def counter(name: str, help: str, attribute: str) -> None:
        metrics.callback(name, help, samples=lambda: [((), getattr(wal.statistics(), attribute))], kind="counter")

    counter("kafscale_wal_syncs_total", "Writes to the WAL, each with one fsync.", "sync_count")
    counter("kafscale_wal_entries_total", "Record batches in these writes.", "entry_count")
    counter("kafscale_wal_written_bytes_total", "Bytes of these writes.", "written_bytes")
    counter("kafscale_wal_rotation_stalls_total", "Times that the next WAL file was not ready.", "rotation_stall_count")
    metrics.gauge("kafscale_wal_files", "Files of the WAL.", lambda: wal.statistics().file_count)
    metrics.gauge("kafscale_wal_bytes", "Size of these files.", lambda: wal.statistics().file_bytes)
    metrics.gauge(
        "kafscale_wal_pending_entries",
        "Entries that are not in the bucket yet.",
        lambda: wal.statistics().pending_count,
    )
    metrics.gauge("kafscale_wal_queued_bytes", "What waits for a sync.", lambda: wal.statistics().queued_bytes)
    metrics.gauge(
        "kafscale_wal_out_of_space",
        "1 while appends wait because the disk is full.",
        lambda: float(wal.statistics().out_of_space),
    )
    metrics.adopt_histogram("kafscale_wal_sync_seconds", "Latency of a write and its fsync.", wal.sync_seconds)


def register_s3_wal_metrics(metrics: Metrics, wal: S3Wal) -> None:
    """Of the log in the bucket, which `s3-wal` and `segment` have."""

    def counter(name: str, help: str, attribute: str) -> None:
        metrics.callback(name, help, samples=lambda: [((), getattr(wal.statistics(), attribute))], kind="counter")

    counter("kafscale_s3_wal_puts_total", "Objects of the log in the bucket that were written.", "put_count")
    counter("kafscale_s3_wal_entries_total", "Record batches and changes of metadata in them.", "entry_count")
    counter("kafscale_s3_wal_written_bytes_total", "Bytes of these objects.", "written_bytes")
    counter("kafscale_s3_wal_retries_total", "PUTs that failed for good and were begun again.", "retry_count")
    metrics.gauge("kafscale_s3_wal_objects", "Objects of the log in the bucket.", lambda: wal.statistics().object_count)
    metrics.gauge("kafscale_s3_wal_bytes", "Size of these objects.", lambda: wal.statistics().object_bytes)
    metrics.gauge("kafscale_s3_wal_under_way", "PUTs under way.", lambda: wal.statistics().under_way_count)
    metrics.gauge("kafscale_s3_wal_queued_bytes", "What waits for its PUT.", lambda: wal.statistics().queued_bytes)
    metrics.gauge(
        "kafscale_s3_wal_pending_entries",
        "Record batches in these objects that are in no segment yet.",
        lambda: wal.statistics().pending_count,
    )
    metrics.adopt_histogram("kafscale_s3_wal_put_seconds", "From the start of a PUT to its success.", wal.put_seconds)


def _register_log(metrics: Metrics, log: Log) -> None:
    metrics.gauge("kafscale_partitions", "Partitions.", lambda: len(log.partitions))
    metrics.gauge(
        "kafscale_superseded_batches",
        "Batches of the WAL that were not replayed, as another broker has written their offsets.",
        log.superseded.total,
    )
    metrics.gauge("kafscale_tail_bytes", "Record batches that are not in the bucket yet.", log.tail_bytes)
    metrics.gauge("kafscale_flush_age_seconds", "How long the oldest of them has waited.", log.flusher.oldest_seconds)


def _register_reader(metrics: Metrics, reader: LogReader) -> None:
    footers, cache, budget = reader.footers, reader.ranges.cache, reader.ranges.budget
    looks, ahead = cache.statistics, reader.read_ahead.statistics

    def counter(name: str, help: str, read: Callable[[], float]) -> None:
        metrics.callback(name, help, samples=lambda: [((), read())], kind="counter")

    def counters(name: str, help: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        metrics.callback(
            name, help, label, samples=lambda: [((event,), count) for event, count in read().items()], kind="counter"
        )

    metrics.gauge("kafscale_footer_cache_bytes", "Footers kept in memory.", lambda: footers.size_bytes)
    counters(
        "kafscale_footer_lookups_total",
        "Footers wanted, by whether they were in memory.",
        "result",
        lambda: {"hit": footers.statistics.hit_count, "miss": footers.statistics.miss_count},
    )
    metrics.gauge("kafscale_cache_bytes", "Ranges of segments kept in memory.", lambda: cache.size_bytes)
    metrics.gauge("kafscale_cache_pinned_bytes", "Of these, being sent or read ahead.", lambda: cache.pinned_bytes)
    counters(
        "kafscale_cache_lookups_total",
        "Ranges wanted by fetches: in memory, being read for somebody else, or neither.",
        "result",
        lambda: {"hit": looks.hit_count, "shared": looks.shared_count, "miss": looks.miss_count},
    )
    counter("kafscale_cache_hit_bytes_total", "Bytes that fetches found in memory.", lambda: looks.hit_bytes)
    counter("kafscale_cache_evictions_total", "Ranges that made room for others.", lambda: looks.evicted_count)
    if (disk := reader.ranges.disk) is not None:
        metrics.gauge("kafscale_disk_cache_bytes", "Ranges of segments kept on disk.", lambda: disk.size_bytes)
        counter("kafscale_disk_cache_hits_total", "Ranges found there.", lambda: disk.statistics.hit_count)
        counter("kafscale_disk_cache_written_bytes_total", "Bytes put there.", lambda: disk.statistics.written_bytes)
        counter("kafscale_disk_cache_failures_total", "Errors of that disk.", lambda: disk.statistics.failed_count)
    counter("kafscale_segment_served_bytes_total", "Bytes of segments fetched.", lambda: ahead.served_bytes)
    counters(
        "kafscale_readahead_bytes_total",
        "Bytes read ahead of consumers, and of these what was used, and what was not and never will be.",
        "event",
        lambda: {"read": ahead.read_bytes, "used": ahead.used_bytes, "wasted": ahead.wasted_bytes},
    )
    counter("kafscale_readahead_no_room_total", "Times that the cache had no room.", lambda: ahead.no_room_count)
    counter("kafscale_readahead_failures_total", "Reads ahead that failed.", lambda: ahead.failed_count)
    metrics.gauge("kafscale_fetch_buffer_bytes", "Used of the fetch budget.", lambda: budget.used_bytes)
    metrics.gauge("kafscale_fetch_buffer_waiting", "Fetches that wait for it.", lambda: budget.waiting_count)
    counter("kafscale_fetch_buffer_waits_total", "Fetches that had to wait for it.", lambda: budget.wait_count)


def _register_connections(metrics: Metrics, acceptor: Acceptor) -> None:
    def counter(name: str, help: str, counted: Counter) -> None:
        metrics.callback(name, help, samples=lambda: [((), counted.value)], kind="counter")

    shared = acceptor.metrics
    metrics.gauge("kafscale_connections", "Open connections.", lambda: len(acceptor.connections))
    counter("kafscale_connections_opened_total", "Connections accepted.", acceptor.opened_count)
    counter("kafscale_connections_refused_total", "Connections over the limit.", acceptor.refused_count)
    counter("kafscale_connections_errors_total", "Connections ended by an error.", shared.ended_by_error_count)
    counter("kafscale_network_bytes_in_total", "Bytes received.", shared.bytes_in)
    counter("kafscale_network_bytes_out_total", "Bytes sent.", shared.bytes_out)
    metrics.callback(
        "kafscale_connection_pauses_total",
        "Times that a connection was not read from, by reason.",
        "reason",
        samples=lambda: [((reason.value,), counted.value) for reason, counted in shared.pauses.items()],
        kind="counter",
    )


def _lag(services: Services) -> Iterator[Sample]:
    for each in services.groups.committed_offsets():
        partition = services.log.partition_named(each.topic, each.partition)
        if partition is not None:
            lag = max(0, partition.high_watermark - each.offset)
            yield (each.group_id, each.topic, str(each.partition)), lag
