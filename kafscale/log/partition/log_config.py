"""A topic's configs as typed values for its log, with Kafka's defaults. Attributes are named like the configs."""

from __future__ import annotations

from functools import cached_property

import attrs

INT64_MAX = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000


@attrs.frozen(kw_only=True)
class LogConfig:
    """The settings of one topic's partitions. A size or time of -1 means unlimited."""

    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    cleanup_policy: tuple[str, ...] = ("delete",)
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = DAY_MS  # a config of the broker, not of the topic

    @cached_property  # these are asked for with each batch
    def log_append_time(self) -> bool:
        """Tell whether the broker's clock at append replaces the producer's timestamps."""
        return self.message_timestamp_type == "LogAppendTime"

    @cached_property
    def compact(self) -> bool:
        """Tell whether the latest record of each key is kept; then every record must have a key."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy
