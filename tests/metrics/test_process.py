"""Metrics of the process: Prometheus' own library measures the same process alike."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

import kafscale
from kafscale.metrics import Metrics
from kafscale.metrics.process import register_process

prometheus_client = pytest.importorskip("prometheus_client")


def shown() -> dict[str, float]:
    metrics = Metrics()
    register_process(metrics)
    parse = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families
    return {sample.name: sample.value for family in parse(metrics.expose()) for sample in family.samples}


def test_process_metrics_agree_with_prometheus_own_library() -> None:
    collector = prometheus_client.ProcessCollector(registry=None)
    theirs = {sample.name: sample.value for family in collector.collect() for sample in family.samples}
    ours = shown()
    del ours["kafscale_build_info"]
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        spread = {"process_cpu_seconds_total": 0.5, "process_open_fds": 3, "process_start_time_seconds": 0.02}
        assert ours[name] == pytest.approx(value, rel=0.2, abs=spread.get(name, 0)), name
    assert ours["process_start_time_seconds"] == pytest.approx(theirs["process_start_time_seconds"], abs=0.02)


def test_open_files_are_counted(tmp_path: Path) -> None:
    before = shown()["process_open_fds"]
    files = [os.open(tmp_path, os.O_RDONLY) for _ in range(20)]
    try:
        assert shown()["process_open_fds"] == before + 20
    finally:
        for file in files:
            os.close(file)
    assert shown()["process_open_fds"] == before


def test_build_info_has_the_versions() -> None:
    metrics = Metrics()
    register_process(metrics)
    line = f'kafscale_build_info{{version="{kafscale.__version__}",python_version="{platform.python_version()}"}} 1\n'
    assert line in metrics.expose()
