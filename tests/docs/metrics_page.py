"""Makes docs/reference/metrics.md from the metrics that brokers of each kind, a supervisor and a pipeline register.

`python -m tests.docs.reference_pages` writes it. Other tests take `registered()`: all metrics by their place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import trio

from kafscale.broker_security import open_security
from kafscale.config import Durability, Settings, StoreUrl
from kafscale.metrics import Family, Metrics
from kafscale.metrics.formats import unit_of
from kafscale.metrics.process import register_process
from kafscale.spark.pipeline.metrics import PipelineMetrics
from kafscale.store.opening.opening import open_store
from kafscale.supervisor.admin import SupervisorAdmin
from kafscale.testing.certificates import make_authority
from kafscale.traces import Traces
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings
from tests.devtools.fakes.s3_server import CREDENTIALS, open_s3_server

Families = Mapping[str, Family]


@attrs.frozen(kw_only=True)
class Registered:
    """Metrics by place. `conditions` are of metrics that a broker has with some options only."""

    process: Families
    broker: Families
    supervisor: Families
    pipeline: Families
    conditions: Mapping[str, str]

    @property
    def everywhere(self) -> dict[str, Family]:
        return {**self.process, **self.broker, **self.supervisor, **self.pipeline}


@cache
def registered() -> Registered:
    process = Metrics()
    register_process(process)
    by_condition = trio.run(_of_brokers)
    always = by_condition["wal"].keys() & by_condition["s3-wal"].keys() & by_condition["segment"].keys()
    broker: dict[str, Family] = {}
    conditions: dict[str, str] = {}
    for condition, families in by_condition.items():
        for name in families.keys() - always:
            known = conditions.get(name)
            is_more = known is None or condition in ("s3-wal", "segment")  # the others have all that a mode has
            conditions[name] = (condition if known is None else f"{known}, {condition}") if is_more else str(known)
        broker |= families
    supervisor = SupervisorAdmin([])._metrics.families
    pipeline = PipelineMetrics().registry.families
    return Registered(
        process=process.families,
        broker=broker,
        supervisor={name: family for name, family in supervisor.items() if name not in process.families},
        pipeline={name: family for name, family in pipeline.items() if name not in process.families},
        conditions=conditions,
    )


async def _of_brokers() -> dict[str, Families]:
    """Return the metrics of brokers by the option that each kind has."""
    with TemporaryDirectory() as name, _credentials():
        directory = Path(name)
        kinds = {mode.value: memory_settings(durability=mode) for mode in Durability}
        kinds["several brokers"] = memory_settings(several_brokers=True, durability=Durability.S3_WAL)
        kinds["`--cache-directory`"] = memory_settings(cache_directory=directory / "cache")
        found: dict[str, Families] = {}
        for kind, settings in kinds.items():
            metrics = Metrics()
            await (await open_store(settings, metrics)).aclose()
            open_security(settings).register(metrics)
            async with memory_broker(memory_parts(), settings) as running:
                found[kind] = metrics.families | running.broker.metrics.families
        found["TLS"], found["S3"] = _of_tls(directory), await _of_s3()
        found["`--traces-endpoint`"] = _of_traces()
        return found


def _of_traces() -> Families:
    metrics, traces = Metrics(), Traces.open("http://127.0.0.1:9", {})
    traces.register(metrics)
    traces.close()
    return metrics.families


def _of_tls(directory: Path) -> Families:
    metrics, files = Metrics(), make_authority(directory).issue("broker")
    settings = memory_settings()
    ssl = attrs.evolve(settings.ssl, ssl_certificate_file=files.certificate_file, ssl_key_file=files.key_file)
    open_security(attrs.evolve(settings, ssl=ssl, admin_ssl=True)).register(metrics)
    return metrics.families


async def _of_s3() -> Families:
    metrics = Metrics()
    async with open_s3_server() as server:
        store = StoreUrl(scheme="s3", bucket="bucket")
        settings = Settings(store=store, s3_endpoint=server.endpoint, s3_region="us-east-1", s3_create_bucket=True)
        await (await open_store(settings, metrics)).aclose()
    return metrics.families


@contextmanager
def _credentials() -> Iterator[None]:
    before = dict(os.environ)
    os.environ["AWS_ACCESS_KEY_ID"] = CREDENTIALS.access_key_id
    os.environ["AWS_SECRET_ACCESS_KEY"] = CREDENTIALS.secret_access_key
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# ---- the page ---------------------------------------------------------------------------------------------------


def metrics_page() -> str:
    found = registered()
    return _INTRODUCTION.format(count=len(found.everywhere)) + "".join(
        (
            _section("Every process", found.process),
            _section("Broker", found.broker, found.conditions),
            _section("Supervisor", found.supervisor),
            _section("Pipeline", found.pipeline),
        )
    )


_INTRODUCTION = """\
# Metrics

Made by `python -m tests.docs.reference_pages` from the {count} metrics that the code registers.

`/metrics` of `--admin-listen` has a broker's, and with `--processes` those of all brokers with a label `broker` and the
supervisor's. A pipeline serves its own at the `metrics` address of its file. The `Accept` header chooses Prometheus'
text format or OpenMetrics. A metric without a unit counts what its name says. *With* names the options that a metric
needs. A label that takes more than 20,000 values gets `other`. [Watch a broker](../how-to/watch.md) has dashboards and
alerts.
"""


def _section(title: str, families: Families, conditions: Mapping[str, str] | None = None) -> str:
    columns = ["name", "kind", "labels", "unit", "what it tells", *([] if conditions is None else ["with"])]
    lines = [f"\n## {title}\n", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, family in sorted(families.items()):
        labels = ", ".join(f"`{label}`" for label in family.labels)
        unit = unit_of(name).replace("_", " ")
        cells = [f"`{name}`", family.kind, labels, unit, _in_cell(family.help)]
        lines.append(f"| {' | '.join([*cells, *([] if conditions is None else [conditions.get(name, '')])])} |")
    return "\n".join(lines) + "\n"


def _in_cell(help: str) -> str:
    words = (
        "`" + word.rstrip(".,;") + "`" + word[len(word.rstrip(".,;")) :] if word.startswith("--") else word
        for word in help.split()
    )
    return " ".join(words)
