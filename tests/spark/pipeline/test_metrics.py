"""What Prometheus is told, without Spark."""

import urllib.error
import urllib.request

import attrs
import pytest

from kafscale.config import Address
from kafscale.errors import StartupError
from kafscale.spark.pipeline.metrics import PipelineMetrics, serving


@attrs.frozen
class Outcome:
    """As `batch.Outcome` is, which imports pyspark."""

    dead_letter_count: int = 0
    added_bytes: int = 0
    commit_seconds: float | None = None


def scrape(address: Address, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}") as reply:
        text: str = reply.read().decode()
        return text


def test_batches_are_counted_by_mapping_and_one_that_was_there_is_not_counted_again():
    metrics = PipelineMetrics()
    metrics.batch_done("orders", Outcome(2, 100, 0.3), 10, 5)
    metrics.batch_done("orders", Outcome(), 10, 0)
    metrics.mapping_failed("logs", ValueError())
    metrics.mapping_restarts("logs", ValueError(), 1.0)
    with serving(metrics, Address("127.0.0.1", 0)) as address:
        lines = scrape(address).splitlines()
    assert 'kafscale_pipeline_lag_records{mapping="orders"} 0' in lines
    assert 'kafscale_pipeline_records_total{mapping="orders"} 10' in lines
    assert 'kafscale_pipeline_bytes_total{mapping="orders"} 100' in lines
    assert 'kafscale_pipeline_dead_letters_total{mapping="orders"} 2' in lines
    assert 'kafscale_pipeline_commit_seconds_count{mapping="orders"} 1' in lines
    assert 'kafscale_pipeline_failures_total{mapping="logs"} 1' in lines
    assert 'kafscale_pipeline_restarts_total{mapping="logs"} 1' in lines


def test_metrics_are_nowhere_else_and_an_address_in_use_is_told():
    metrics = PipelineMetrics()
    with serving(metrics, Address("127.0.0.1", 0)) as address:
        with pytest.raises(urllib.error.HTTPError, match="metrics are at /metrics"):
            scrape(address, "/")
        with pytest.raises(StartupError, match=f"can't be served at {address}"):
            with serving(metrics, address):
                pass
