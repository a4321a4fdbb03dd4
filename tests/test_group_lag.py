"""The lag of consumer groups in /metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafscale.broker_metrics import register_group_lag
from kafscale.cluster.groups.common.context import CommittedOffset
from kafscale.config import Limits, Settings
from kafscale.metrics import Metrics


def partition(log_start_offset: int, high_watermark: int) -> Any:
    return SimpleNamespace(log_start_offset=log_start_offset, high_watermark=high_watermark)


def exposed(partitions: dict[int, Any], committed: dict[int, int], most_count: int = 10) -> list[str]:
    """The lags of a group in /metrics, by partition, in the order of the page."""
    offsets = [CommittedOffset("g", "t", index, offset) for index, offset in committed.items()]
    services: Any = SimpleNamespace(
        metrics=Metrics(),
        settings=Settings(limits=Limits(max_group_lag_series_count=most_count)),
        groups=SimpleNamespace(committed_offsets=lambda: iter(offsets)),
        log=SimpleNamespace(partition_named=lambda topic, index: partitions.get(index)),
    )
    register_group_lag(services)
    lines = services.metrics.expose().splitlines()
    return [line.removeprefix('kafscale_group_lag{group="g",topic="t",partition=') for line in lines if line[0] != "#"]


def test_records_that_retention_has_deleted_were_counted_as_lag_for_ever() -> None:
    logs = {0: partition(10, 10), 1: partition(8, 10), 2: partition(0, 10), 3: partition(0, 10)}
    lags = exposed(logs, {0: 5, 1: 5, 2: 5, 3: 11, 4: 1})
    assert lags == ['"2"} 5', '"1"} 2', '"0"} 0', '"3"} 0', "kafscale_group_lag_left_out_series 0"]


@pytest.mark.parametrize(
    ("most_count", "shown"),
    [(3, ['"7"} 7', '"6"} 6', '"5"} 5']), (0, []), (8, [f'"{n}"}} {n}' for n in range(7, -1, -1)])],
)
def test_the_largest_lags_are_shown_first_and_the_others_counted(most_count: int, shown: list[str]) -> None:
    logs = {index: partition(0, 10) for index in range(8)}
    lags = exposed(logs, {index: 10 - index for index in (3, 5, 0, 7, 1, 6, 2, 4)}, most_count)
    assert lags == [*shown, f"kafscale_group_lag_left_out_series {8 - len(shown)}"]
