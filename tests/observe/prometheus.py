"""Debian's Prometheus as a process: it scrapes targets that tests add, evaluates rules, and answers queries."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
import yaml

from kafscale.config import Address
from kafscale.metrics import Metrics
from kafscale.server.http.admin import AdminServer
from kafscale.server.kafka.binding import bind
from kafscale.testing.background_broker import BackgroundBroker
from tests.devtools.external.s3_processes import free_port

SCRAPE = "3s"
START_SECONDS = 60.0
EVALUATE_SECONDS = 180.0  # many times what it takes, for a busy machine
PAUSE_SECONDS = 0.5  # between two looks: each is a query


def wait_until(condition: Callable[[], object], what: str, seconds: float = EVALUATE_SECONDS) -> None:
    """Wait for the condition. Raises AssertionError past the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(PAUSE_SECONDS)


@attrs.define(eq=False, kw_only=True)
class Prometheus:
    """A running server. `queried` says how many expressions it has evaluated for tests."""

    directory: Path
    address: Address
    queried_count: int = 0
    _targets: dict[str, tuple[str, str]] = attrs.field(factory=dict, init=False)  # address → job, instance

    def scrape(self, address: Address, instance: str, job: str = "kafscale") -> None:
        """Add a target, and wait until it was scraped."""
        self._targets[str(address)] = (job, instance)
        entries = [
            {"targets": [target], "labels": {"job": job, "instance": name}}
            for target, (job, name) in self._targets.items()
        ]
        partial = self.directory / "targets.tmp"
        partial.write_text(json.dumps(entries))
        partial.rename(self.directory / "targets.json")
        up = f'up{{job="{job}",instance="{instance}"}} == 1'
        wait_until(lambda: self.query(up), f"Prometheus scraped {instance}")

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """Return the samples of an expression now, without those that are not numbers. Raises HTTPError."""
        self.queried_count += 1
        found = self._get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        assert found["resultType"] == "vector", expression
        samples = [(sample["metric"], float(sample["value"][1])) for sample in found["result"]]
        return [(labels, value) for labels, value in samples if not math.isnan(value)]

    def firing(self, job: str, instance: str = "") -> set[str]:
        """Return the names of the alerts that fire for a job, and for an instance of it if they have one."""
        return {
            alert["labels"]["alertname"]
            for alert in self._get("/api/v1/alerts")["alerts"]
            if alert["state"] == "firing"
            and alert["labels"].get("job", job) == job
            and alert["labels"].get("instance", instance) == instance
        }

    def unhealthy_targets(self) -> list[str]:
        targets = self._get("/api/v1/targets")["activeTargets"]
        return [f"{target['scrapeUrl']}: {target['lastError']}" for target in targets if target["health"] != "up"]

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=30) as answer:
            reply = json.load(answer)
        assert reply["status"] == "success", reply
        return reply["data"]


@contextmanager
def prometheus(directory: Path, rules: str | None = None) -> Iterator[Prometheus]:
    """Run the server with these rules for the block."""
    config: dict[str, Any] = {
        "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
        "scrape_configs": [
            {
                "job_name": "kafscale",
                "file_sd_configs": [{"files": [str(directory / "targets.json")], "refresh_interval": "1s"}],
            }
        ],
    }
    if rules is not None:
        (directory / "rules.yaml").write_text(rules)
        config["rule_files"] = ["rules.yaml"]
    (directory / "targets.json").write_text("[]")
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    server = Prometheus(directory=directory, address=Address("127.0.0.1", free_port()))
    command = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yaml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={server.address}",
    ]
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: _is_ready(server, process), "Prometheus is ready", seconds=START_SECONDS)
        yield server
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(server: Prometheus, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, (server.directory / "prometheus.log").read_text()
    try:
        with urllib.request.urlopen(f"http://{server.address}/-/ready", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


# ---- brokers of this process -------------------------------------------------------------------------------------


@contextmanager
def admin_of(broker: BackgroundBroker, register: Callable[[Metrics], None] = lambda _: None) -> Iterator[Address]:
    """Serve the admin pages of a broker in a thread, which has none; `register` adds further metrics."""
    assert broker._life is not None
    running = broker._life.broker
    register(running.metrics)
    server = AdminServer(running.metrics, lambda: None, lambda: running.services.log)

    async def serve(*, task_status: trio.TaskStatus[tuple[Address, trio.CancelScope]]) -> None:
        bound = await bind("ADMIN", Address("127.0.0.1", 0), option="--admin-listen")
        with trio.CancelScope() as scope:
            task_status.started((Address("127.0.0.1", bound.port), scope))
            await server.server.accept(bound.sockets)

    async def cancel(scope: trio.CancelScope) -> None:
        await trio.lowlevel.checkpoint()
        scope.cancel()

    address, scope = broker._thread.call(lambda: broker._thread.nursery.start(serve))
    try:
        yield address
    finally:
        broker._thread.call(cancel, scope)
