"""Prometheus finds data for each panel of the dashboards, on brokers of each kind under load."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import attrs
import pytest

from deploy.observability.model import Dashboard
from deploy.observability.rendering import DASHBOARDS, DEPLOY
from kafscale.config import Address
from kafscale.spark.pipeline.metrics import PipelineMetrics, serving
from kafscale.testing.secured_broker import secured_broker
from tests.devtools.fakes.s3_server import CREDENTIALS, ErrorReply, s3_server_in_thread
from tests.devtools.processes.process import broker_process
from tests.devtools.processes.several_processes import several_broker_processes
from tests.observe.clients import in_background, producing, reading
from tests.observe.prometheus import Prometheus, admin_of, prometheus, wait_until

pytestmark = [
    pytest.mark.observe,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not on the PATH"),
]


@attrs.frozen
class Outcome:
    """The fields of `batch.Outcome`, which imports pyspark."""

    dead_letter_count: int = 1
    added_bytes: int = 1000
    commit_seconds: float | None = 0.2
    added_rows: int = 10


@attrs.frozen
class Lag:
    """The fields of `runner.Lag`, which imports pyspark."""

    records: int = 5
    bytes: int = 500
    seconds: float = 3.0
    committed_ms: int | None = 1_700_000_000_000


@attrs.frozen
class Maintained:
    """The fields of `tables.Care`, which imports pyspark."""

    table: str = "lake.orders"
    compacted_files: int = 2


def pipeline_step(metrics: PipelineMetrics) -> None:
    metrics.batch_done("orders", Outcome(), 10, 5)
    metrics.lag_measured("orders", Lag())
    metrics.mapping_failed("logs", ValueError())
    metrics.mapping_restarts("orders", ValueError(), 1.0)
    metrics.maintained(Maintained())


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, list[Address]]]:
    """A Prometheus and the addresses of its targets: a broker on S3, two of a supervisor, a secured one, a pipeline."""
    with ExitStack() as stack:
        server = stack.enter_context(prometheus(tmp_path_factory.mktemp("prometheus")))
        store = stack.enter_context(s3_server_in_thread())
        environ = {
            "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
            "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key,
        }
        at = ("--store", "s3://bucket", "--s3-endpoint", store.endpoint, "--s3-create-bucket", "true")
        alone = stack.enter_context(broker_process(*at, "--flush-interval", "1s", environ=environ))
        several = stack.enter_context(several_broker_processes(2, "--durability", "s3-wal"))
        secured = stack.enter_context(secured_broker())
        secured.add_user("reader", "secret")
        secured.allow("reader", "all", topic="*")
        security = secured._life.broker.security
        assert security is not None
        secured_admin = stack.enter_context(admin_of(secured, security.register))
        pipeline = PipelineMetrics()
        pipeline_address = stack.enter_context(serving(pipeline, Address("127.0.0.1", 0)))
        login = {key.replace(".", "_"): value for key, value in secured.client_settings("reader").items()}
        login.pop("bootstrap_servers", None)
        stack.enter_context(
            in_background(
                producing(alone.bootstrap),
                reading(alone.bootstrap),
                producing(several.bootstrap),
                reading(several.bootstrap),
                lambda: producing(secured.bootstrap, **login)(),
                lambda: pipeline_step(pipeline),
            )
        )
        server.scrape(alone.admin, "alone")
        server.scrape(several.admin, "several")
        server.scrape(secured_admin, "secured")
        server.scrape(pipeline_address, "pipeline", job="kafscale-pipeline")
        store.inject(ErrorReply(), operation="PutObject", count=3)
        yield server, [alone.admin, several.admin, secured_admin, pipeline_address]


def with_variables(expression: str, dashboard: Dashboard) -> str:
    values = {"__rate_interval": "1m", "job": ".*", "instance": ".*", **dashboard.prices}
    values |= dict.fromkeys(dashboard.variables, ".*")
    text = re.sub(r"\$(\w+)", lambda found: values[found[1]], expression)
    assert "$" not in text
    return text


def test_every_panel_shows_data(watched: tuple[Prometheus, list[Address]]) -> None:
    server, _ = watched
    missing = {
        (name, panel.title, query.legend): with_variables(query.text, dashboard)
        for name, dashboard in DASHBOARDS.items()
        for panel in dashboard.panels
        for query in panel.queries
    }
    wanted_count = len(missing)

    def all_have_data() -> bool:
        for key, expression in list(missing.items()):
            if server.query(expression):
                del missing[key]
        return not missing

    try:
        wait_until(all_have_data, "every panel has data")
    except AssertionError as exc:
        raise AssertionError(f"{len(missing)} of {wanted_count} queries find nothing: {missing}") from exc
    print(f"\n{wanted_count} queries of {sum(len(d.panels) for d in DASHBOARDS.values())} panels found data")


def test_lag_and_topic_rates_are_those_of_the_load(watched: tuple[Prometheus, list[Address]]) -> None:
    server, _ = watched
    lags = 'sum by (group) (kafscale_group_lag{instance="alone",topic="orders"}) > 0'
    wait_until(lambda: len(server.query(lags)) == 3, "three groups lag")
    rate = 'sum by (topic) (rate(kafscale_topic_appended_records_total{instance="several"}[1m])) > 1'
    wait_until(
        lambda: "orders" in {labels["topic"] for labels, _ in server.query(rate)},
        "records come",
    )


def test_pages_are_scraped_as_openmetrics_and_satisfy_promtool(watched: tuple[Prometheus, list[Address]]) -> None:
    server, addresses = watched
    assert server.unhealthy_targets() == []
    for address in addresses:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            page = answer.read()
        checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr.decode()) == (0, ""), address


def test_rules_satisfy_promtool() -> None:
    rules = DEPLOY / "prometheus" / "alerts.yaml"
    checked = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "25 rules found" in checked.stdout
