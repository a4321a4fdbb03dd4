"""The metrics that no component can tell alone. All others are registered by what they are about."""

from __future__ import annotations

from collections.abc import Iterator

from kafscale.api.handling.services import Services
from kafscale.metrics import Sample
from kafscale.wire.offsets import lag


def register_group_lag(services: Services) -> None:
    """Register the lag of consumer groups: what they have committed, against what the log has."""
    services.metrics.callback(
        "kafscale_group_lag",
        "Records between a group's committed offset, or the log's start if that is higher, and the high watermark.",
        "group",
        "topic",
        "partition",
        samples=lambda: _lag(services),
    )


def _lag(services: Services) -> Iterator[Sample]:
    for each in services.groups.committed_offsets():
        partition = services.log.partition_named(each.topic, each.partition)
        if partition is not None:
            start_offset, end_offset = partition.log_start_offset, partition.high_watermark
            behind = lag(each.offset, log_start_offset=start_offset, end_offset=end_offset)
            yield (each.group_id, each.topic, str(each.partition)), behind
