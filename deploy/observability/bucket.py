"""Dashboards of the bucket and what it costs, and of pipelines."""

from __future__ import annotations

from deploy.observability.model import BROKER, Dashboard, Panel, Query, lines, number, quantile, rate

_MONTH_SECONDS = 30 * 86400
_OPERATIONS = "kafscale_store_operations_total"
_WRITES = 'operation=~"put.*|list|begin_upload|complete_upload"'  # what S3 bills as PUT, COPY, POST and LIST
_READS = 'operation=~"get.*|head"'
_PUTS_COST = f"{rate(_OPERATIONS, _WRITES, by='job')} * {_MONTH_SECONDS} * $put_price / 1000"
_GETS_COST = f"{rate(_OPERATIONS, _READS, by='job')} * {_MONTH_SECONDS} * $get_price / 1000"
_LOOKUPS = "kafscale_cache_lookups_total"
_FOUND = 'result=~"hit|shared"'
_READ_AHEAD = "kafscale_readahead_bytes_total"

_COST = [
    number("PUTs and LISTs a month", _PUTS_COST, "currencyUSD", "If the last minutes lasted for 30 days."),
    number("GETs a month", _GETS_COST, "currencyUSD", "If the last minutes lasted for 30 days."),
    lines("Billed as PUT", rate(_OPERATIONS, _WRITES, by="operation"), "reqps", "{{operation}}"),
    lines("Billed as GET", rate(_OPERATIONS, _READS, by="operation"), "reqps", "{{operation}}"),
    Panel(
        "Requests for a MiB",
        [
            Query(
                f"{rate(_OPERATIONS, _WRITES, by='job')} / "
                f"({rate('kafscale_topic_appended_bytes_total', by='job')} / 1048576)",
                "PUTs for a MiB written",
            ),
            Query(
                f"{rate(_OPERATIONS, _READS, by='job')} / "
                f"({rate('kafscale_segment_served_bytes_total', by='job')} / 1048576)",
                "GETs for a MiB read from segments",
            ),
        ],
    ),
    lines("Objects written by flushes", f"{rate('kafscale_flush_objects_total')} * 60", "cpm"),
]
_STORE = [
    lines("Operations", rate(_OPERATIONS, by="operation"), "reqps", "{{operation}}"),
    lines(
        "Operations that failed",
        rate(_OPERATIONS, 'outcome!="ok"', by="operation, outcome"),
        "reqps",
        "{{operation}} {{outcome}}",
        "not_found and precondition_failed are normal.",
    ),
    lines(
        "Time of an operation, p99", quantile("kafscale_store_operation_seconds", by="operation"), "s", "{{operation}}"
    ),
    lines("Wait for a place, p99", quantile("kafscale_store_wait_seconds", by="class"), "s", "{{class}}"),
    Panel(
        "Places",
        [
            Query("sum by (class) (kafscale_store_in_use{@})", "in use {{class}}"),
            Query("sum by (class) (kafscale_store_waiting{@})", "waiting {{class}}"),
            Query("sum(kafscale_store_allowed{@})", "allowed"),
        ],
    ),
    lines("No answer for", "kafscale_store_silent_seconds{@}", "s"),
    lines("Bytes", rate("kafscale_store_bytes_total", by="direction"), "Bps", "{{direction}}"),
    lines(
        "Attempts again",
        rate("kafscale_store_retries_total", by="operation, reason"),
        "cps",
        "{{operation}} {{reason}}",
    ),
]
_FLUSHES = [
    lines(
        "Oldest record not in the bucket",
        "kafscale_flush_age_seconds{@}",
        "s",
        tells="How far Spark is behind, with wal.",
    ),
    lines("Not in the bucket yet", "kafscale_tail_bytes{@}", "bytes"),
    lines("Time of a flush, p99", quantile("kafscale_flush_seconds"), "s"),
    lines("Flushes that failed", rate("kafscale_flush_failures_total"), "cps"),
    Panel(
        "Merges and compactions",
        [
            Query(rate("kafscale_merged_bytes_total"), f"merged {BROKER}"),
            Query(rate("kafscale_compaction_read_bytes_total"), f"compaction read {BROKER}"),
            Query(rate("kafscale_compaction_written_bytes_total"), f"compaction wrote {BROKER}"),
        ],
        "Bps",
    ),
    lines("Dirtiest partition", "kafscale_compaction_max_dirty_ratio{@}", "percentunit"),
    lines("Segments deleted", rate("kafscale_segments_deleted_total"), "cps"),
]
_READING = [
    lines(
        "Found in memory",
        f"{rate(_LOOKUPS, _FOUND)} / {rate(_LOOKUPS)}",
        "percentunit",
        tells="Without an S3 store there is no cache: the kernel has one.",
    ),
    lines("Served from segments", rate("kafscale_segment_served_bytes_total"), "Bps"),
    lines("Read ahead", rate(_READ_AHEAD, by="event"), "Bps", "{{event}}"),
]
_DAMAGE = [
    Panel(
        "Segments in trouble",
        [
            Query("kafscale_quarantined_segments{@}", f"quarantined {BROKER}"),
            Query("kafscale_missing_segments{@}", f"missing {BROKER}"),
            Query("kafscale_late_segments{@}", f"late {BROKER}"),
        ],
    ),
    lines("Rebuilt objects", "sum by (kind) (kafscale_rebuilt_objects_total{@})", legend="{{kind}}"),
    lines("Time of the last start's restore", "kafscale_start_restore_seconds{@}", "s"),
]

BUCKET = Dashboard(
    uid="kafscale-bucket",
    title="KafScale / Bucket and cost",
    tells="What brokers do at the object store, and what that costs.",
    prices={"put_price": "0.005", "get_price": "0.0004"},
    rows={
        "Cost, with the prices of a thousand requests above": _COST,
        "Store": _STORE,
        "Flushes": _FLUSHES,
        "Reading": _READING,
        "Damage": _DAMAGE,
    },
)


def _of_mapping(metric: str) -> str:
    return rate(f"kafscale_pipeline_{metric}", 'mapping=~"$mapping"', by="mapping")


def _now(metric: str) -> str:
    return f'kafscale_pipeline_{metric}{{@,mapping=~"$mapping"}}'


_MAPPING = "{{mapping}}"

PIPELINE = Dashboard(
    uid="kafscale-pipeline",
    title="KafScale / Pipeline",
    tells="How far tables are behind the bucket, and what pipelines do.",
    found_by="kafscale_pipeline_lag_records",
    variables={"mapping": "kafscale_pipeline_lag_records"},
    rows={
        "Lag": [
            lines(
                "Behind by", _now("lag_seconds"), "s", _MAPPING, "Age of the oldest record that is not in the table."
            ),
            lines("Records behind", _now("lag_records"), legend=_MAPPING),
            lines("Bytes behind", _now("lag_bytes"), "bytes", _MAPPING),
            lines("Since the last commit", f"time() - {_now('last_commit_timestamp_seconds')}", "s", _MAPPING),
        ],
        "Work": [
            lines("Records read", _of_mapping("records_total"), "cps", _MAPPING),
            lines("Rows added", _of_mapping("rows_total"), "cps", _MAPPING),
            lines("Bytes added", _of_mapping("bytes_total"), "Bps", _MAPPING),
            lines(
                "Time of a commit, p99",
                quantile("kafscale_pipeline_commit_seconds", 'mapping=~"$mapping"', by="mapping"),
                "s",
                _MAPPING,
            ),
            lines("Files rewritten by maintenance", "kafscale_pipeline_compacted_files_total{@}", legend="{{table}}"),
        ],
        "Trouble": [
            lines("Dead letters", _now("dead_letters_total"), legend=_MAPPING),
            lines("Mappings that stopped", _now("failures_total"), legend=_MAPPING),
            lines("Restarts", _now("restarts_total"), legend=_MAPPING),
            lines("Memory of the driver's Python", "process_resident_memory_bytes{@}", "bytes", "{{instance}}"),
        ],
    },
)
