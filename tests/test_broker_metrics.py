"""Which metrics a broker shows: others rely on their names, and each component registers its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafscale.config import Durability
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings

ALWAYS = """
    arriving_bytes arriving_waiting cache_bytes cache_evictions_total cache_hit_bytes_total
    cache_lookups_total cache_pinned_bytes compaction_failures_total compaction_max_dirty_ratio
    compaction_read_bytes_total compaction_removed_records_total compaction_written_bytes_total
    compactions_total connection_pauses_total connections connections_errors_total connections_opened_total
    connections_refused_total errors_total fetch_buffer_bytes fetch_buffer_waiting fetch_buffer_waits_total
    flush_age_seconds flush_failures_total flush_seconds footer_cache_bytes footer_lookups_total group_lag
    group_lag_left_out_series
    group_state_bytes late_segments manifest_checkpoint_bytes merge_failures_total merged_bytes_total
    merged_segments_total merges_total missing_segments network_received_bytes_total network_sent_bytes_total
    orphans_deleted_total partitions pool_bytes pool_used_bytes pool_waiting producer_ids
    producer_ids_evicted_total producer_state_bytes quarantined_segments readahead_bytes_total
    readahead_failures_total readahead_no_room_total rebuilt_objects_total request_seconds
    requests_given_up_total requests_total segment_delete_failures_total segment_served_bytes_total
    segments_deleted_total start_footer_reads start_listed_objects start_partitions start_recognised_segments
    compaction_unreadable_batches_total lookup_unreadable_batches_total metadata_changes_refused_total
    start_restore_seconds start_restored_partitions superseded_batches tail_bytes throttle_seconds
    unknown_topic_batches
    topic_appended_bytes_total topic_fetched_bytes_total topic_appended_records_total topic_fetched_records_total
    transactional_ids transactions_total hanging_transactions_total authentications_total ssl_handshakes_under_way
    ssl_handshakes_total ssl_handshakes_failed_total internal_records_left_out_total
"""
LOCAL_LOG = """
    spilled_bytes_total wal_bytes wal_entries_total wal_files wal_out_of_space wal_pending_entries
    wal_queued_bytes wal_rotation_stalls_total wal_sync_seconds wal_syncs_total wal_written_bytes_total
"""
BUCKET_LOG = """
    s3_wal_bytes s3_wal_entries_total s3_wal_objects s3_wal_pending_entries s3_wal_put_seconds
    s3_wal_puts_total s3_wal_queued_bytes s3_wal_retries_total s3_wal_under_way s3_wal_written_bytes_total
"""
DISK_CACHE = """
    disk_cache_bytes disk_cache_failures_total disk_cache_hits_total disk_cache_written_bytes_total
"""
PACE = "flush_objects_total"  # of flushes that nobody waits for

OF_MODE = {
    Durability.WAL: (ALWAYS, LOCAL_LOG, PACE),
    Durability.S3_WAL: (ALWAYS, BUCKET_LOG, PACE),
    Durability.SEGMENT: (ALWAYS, BUCKET_LOG),
}


def names(*groups: str) -> set[str]:
    return {f"kafscale_{name}" for group in groups for name in group.split()}


@pytest.mark.parametrize("durability", Durability, ids=lambda durability: durability.value)
async def test_each_mode_shows_its_metrics_and_no_others(autojump_clock, durability):
    async with memory_broker(memory_parts(), memory_settings(durability=durability)) as running:
        shown = set(running.broker.metrics.families)
        assert all(f"# HELP {name} " in running.broker.metrics.expose() for name in shown)
    assert shown == names(*OF_MODE[durability])


async def test_a_disk_cache_adds_its_metrics(autojump_clock, tmp_path: Path):
    async with memory_broker(memory_parts(), memory_settings(cache_directory=tmp_path)) as running:
        shown = set(running.broker.metrics.families)
    assert shown == names(*OF_MODE[Durability.WAL], DISK_CACHE)
