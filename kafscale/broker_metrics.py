"""Metrics that need several components."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush, heapreplace

import attrs

from kafscale.api.handling.services import Services
from kafscale.metrics import Labels, Sample
from kafscale.wire.client_rules import lag


def register_group_lag(services: Services) -> None:
    """Register the lag of consumer groups."""
    lags = _GroupLags(services)
    services.metrics.callback(
        "kafscale_group_lag",
        "Records between a group's committed offset, or the log's start if that is higher, and the high watermark.",
        "group",
        "topic",
        "partition",
        samples=lags.samples,
        is_in_pieces=True,
    )
    services.metrics.gauge(
        "kafscale_group_lag_left_out_series",
        "Series of kafscale_group_lag, the smallest lags, that this page leaves out.",
        lambda: lags.left_out_count,
    )


@attrs.define(eq=False, repr=False)
class _GroupLags:
    """The lags of all groups. `left_out_count` is from the last complete iteration over `samples`."""

    services: Services
    left_out_count: int = attrs.field(default=0, init=False)

    def samples(self) -> Iterator[Sample | None]:
        """Yield the largest lags in descending order; before that, None for each committed offset."""
        most_count = self.services.settings.limits.max_group_lag_series_count
        largest: list[tuple[int, Labels]] = []  # a heap, the smallest first
        found_count = 0
        for committed in self.services.groups.committed_offsets():
            yield None
            partition = self.services.log.partition_named(committed.topic, committed.partition)
            if partition is None:
                continue
            found_count += 1
            start_offset, end_offset = partition.log_start_offset, partition.high_watermark
            behind = lag(committed.offset, log_start_offset=start_offset, end_offset=end_offset)
            entry = (behind, (committed.group_id, committed.topic, str(committed.partition)))
            if len(largest) < most_count:
                heappush(largest, entry)
            elif largest and behind > largest[0][0]:
                heapreplace(largest, entry)
        self.left_out_count = found_count - len(largest)
        for behind, labels in sorted(largest, key=lambda entry: (-entry[0], entry[1])):
            yield labels, behind
