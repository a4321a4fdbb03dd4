"""The metrics that no component can tell alone. All others are registered by what they are about."""

from __future__ import annotations

from collections.abc import Iterator

from kafscale.api.handling.services import Services
from kafscale.metrics import Sample


def register_group_lag(services: Services) -> None:
    """Register the lag of consumer groups: what they have committed, against what the log has."""
    services.metrics.callback(
        "kafscale_group_lag",
        "Records between a group's committed offset and the high watermark.",
        "group",
        "topic",
        "partition",
        samples=lambda: _lag(services),
    )


def _lag(services: Services) -> Iterator[Sample]:
    for each in services.groups.committed_offsets():
        partition = services.log.partition_named(each.topic, each.partition)
        if partition is not None:
            lag = max(0, partition.high_watermark - each.offset)
            yield (each.group_id, each.topic, str(each.partition)), lag
