"""What Prometheus is told, without Spark."""

import socket
import time
import urllib.error
import urllib.request

import attrs
import pytest

from kafscale.config import Address
from kafscale.errors import StartupError
from kafscale.spark.pipeline import metrics as metrics_module
from kafscale.spark.pipeline.metrics import PipelineMetrics, serving


@attrs.frozen
class Outcome:
    """As `batch.Outcome` is, which imports pyspark."""

    dead_letter_count: int = 0
    added_bytes: int = 0
    commit_seconds: float | None = None
    added_rows: int = 0


@attrs.frozen
class Lag:
    """As `runner.Lag` is, which imports pyspark."""

    records: int
    bytes: int
    seconds: float
    committed_ms: int | None


def scrape(address: Address, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}") as reply:
        text: str = reply.read().decode()
        return text


def test_metrics_count_batches_by_mapping_and_skip_repeated_ones():
    metrics = PipelineMetrics()
    metrics.batch_done("orders", Outcome(2, 100, 0.3, 8), 10, 5)
    metrics.batch_done("orders", Outcome(), 10, 0)
    metrics.mapping_failed("logs", ValueError())
    metrics.mapping_restarts("logs", ValueError(), 1.0)
    with serving(metrics, Address("127.0.0.1", 0)) as address:
        lines = scrape(address).splitlines()
    assert 'kafscale_pipeline_lag_records{mapping="orders"} 0' in lines
    assert 'kafscale_pipeline_records_total{mapping="orders"} 10' in lines
    assert 'kafscale_pipeline_bytes_total{mapping="orders"} 100' in lines
    assert 'kafscale_pipeline_rows_total{mapping="orders"} 8' in lines
    assert 'kafscale_pipeline_dead_letters_total{mapping="orders"} 2' in lines
    assert 'kafscale_pipeline_commit_seconds_count{mapping="orders"} 1' in lines
    assert 'kafscale_pipeline_failures_total{mapping="logs"} 1' in lines
    assert 'kafscale_pipeline_restarts_total{mapping="logs"} 1' in lines


def test_the_lag_of_tables_is_the_last_measured_one():
    metrics = PipelineMetrics()
    before = time.time()
    metrics.batch_done("orders", Outcome(0, 100, 0.3), 10, 5)
    assert before <= metrics.committed_seconds["orders"] <= time.time()
    metrics.lag_measured("orders", Lag(7, 700, 1.5, 3_000))
    metrics.lag_measured("logs", Lag(1, 10, 60.0, None))
    lines = metrics.registry.expose().splitlines()
    assert 'kafscale_pipeline_lag_records{mapping="orders"} 7' in lines
    assert 'kafscale_pipeline_lag_bytes{mapping="orders"} 700' in lines
    assert 'kafscale_pipeline_lag_seconds{mapping="orders"} 1.5' in lines
    assert 'kafscale_pipeline_last_commit_timestamp_seconds{mapping="orders"} 3' in lines
    assert 'kafscale_pipeline_lag_seconds{mapping="logs"} 60' in lines
    assert not [each for each in lines if "last_commit" in each and "logs" in each]


def test_a_mapping_first_counted_during_a_scrape_does_not_fail_the_scrape():
    metrics = PipelineMetrics()
    metrics.mapping_failed("orders", ValueError())
    metrics.batch_done("orders", Outcome(2, 100, 0.3, 8), 10, 5)
    scrapes = [metrics.failures.lines(), metrics.commit_seconds.lines()]
    begun = [[next(each) for _ in range(3)] for each in scrapes]
    metrics.mapping_failed("logs", ValueError())
    metrics.batch_done("logs", Outcome(2, 100, 0.3, 8), 10, 5)
    assert [len(told) + len(list(each)) for told, each in zip(begun, scrapes, strict=True)] == [3, 15]


def test_a_silent_metrics_client_is_disconnected(monkeypatch):
    monkeypatch.setattr(metrics_module, "SILENCE_SECONDS", 0.01)
    with (
        serving(PipelineMetrics(), Address("127.0.0.1", 0)) as address,
        socket.create_connection((address.host, address.port), timeout=10) as client,
    ):
        assert client.recv(1) == b"", "it was closed"


def test_metrics_are_at_one_path_and_an_address_in_use_is_an_error():
    metrics = PipelineMetrics()
    with serving(metrics, Address("127.0.0.1", 0)) as address:
        with pytest.raises(urllib.error.HTTPError, match="metrics are at /metrics") as caught:
            scrape(address, "/")
        caught.value.close()
        with pytest.raises(StartupError, match=f"can't be served at {address}"):
            with serving(metrics, address):
                pass
