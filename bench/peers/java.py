"""Kafka's own performance tools as loads."""

from __future__ import annotations

import math
import re
import resource
import subprocess
from collections.abc import Sequence

import attrs

from bench.figures import Figures
from bench.peers.kafka import java_command
from bench.points import TOPIC
from bench.secured.sasl_ssl import SaslSsl
from kafscale.config import Address

NOT_KNOWN = math.nan
PRODUCED = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec .*?"
    r"([\d.]+) ms 50th, ([\d.]+) ms 95th, ([\d.]+) ms 99th, ([\d.]+) ms 99.9th"
)
FIRST_COUNT = 10_000  # records of the first run that finds out how many are sent in a second
RATE_SECONDS = 2.0  # such a run must last at least so long
CONSUME_TIMEOUT_MS = 60_000  # without a record; the tool then ends as if all were well
TIMEOUT_SECONDS = 300  # of one run of a tool; then it hangs


@attrs.frozen(kw_only=True)
class ProducerSetting:
    """The records of ProducerPerformance: `properties` are the producer's, `records_per_second` is the throttle."""

    record_bytes: int
    properties: tuple[str, ...]
    records_per_second: float = math.inf


@attrs.frozen(kw_only=True)
class JavaProduceLoad:
    """Return a load that sends this number of records."""

    address: Address
    setting: ProducerSetting
    count: int = FIRST_COUNT
    security: SaslSsl | None = None


def find_rate(load: JavaProduceLoad) -> Figures:
    """Ever more records, since the tool wants a number of them, until a run is long enough to say what a second takes.

    Warms up the broker as well. Raises RuntimeError as `run_java_produce` does.
    """
    while True:
        figures = run_java_produce(load)
        if figures.seconds >= RATE_SECONDS:
            return figures
        load = attrs.evolve(load, count=math.ceil(figures.requests / figures.seconds * 2 * RATE_SECONDS))


def run_java_produce(load: JavaProduceLoad) -> Figures:
    """Send `count` records. Raises RuntimeError with what the tool wrote."""
    setting = load.setting
    throughput = -1 if setting.records_per_second == math.inf else round(setting.records_per_second)
    cpu_began = _children_cpu_seconds()
    output = _run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", TOPIC, "--num-records", str(load.count), "--record-size", str(setting.record_bytes)),
        *("--throughput", str(throughput), *_config("producer", load.security)),
        *("--producer-props", f"bootstrap.servers={load.address}", "acks=all", *setting.properties),
    )
    found = PRODUCED.findall(output)
    if not found or int(found[-1][0]) != load.count:
        raise RuntimeError(f"ProducerPerformance did not send {load.count} records: {output[-2000:]}")
    _, per_second, p50, _, p99, p999 = found[-1]
    return Figures(
        requests=load.count,
        seconds=load.count / float(per_second),
        size_bytes=load.count * setting.record_bytes,
        p50_ms=float(p50),
        p99_ms=float(p99),
        p999_ms=float(p999),
        client_cpu_seconds=_children_cpu_seconds() - cpu_began,
    )


@attrs.frozen(kw_only=True)
class JavaConsumeLoad:
    """ConsumerPerformance, from the beginning of the topic, `count` records."""

    address: Address
    count: int
    security: SaslSsl | None = None


def run_java_consume(load: JavaConsumeLoad) -> Figures:
    """Return what the tool says of its fetching alone: the join of its group is not counted."""
    cpu_began = _children_cpu_seconds()
    output = _run(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", str(load.address), "--topic", TOPIC, "--messages", str(load.count), "--hide-header"),
        *("--timeout", str(CONSUME_TIMEOUT_MS), *_config("consumer", load.security)),
    )
    fields = output.strip().splitlines()[-1].split(", ")
    if len(fields) != 10 or int(fields[4]) < load.count:
        raise RuntimeError(f"ConsumerPerformance did not consume: {output[-2000:]}")
    mib, count, fetch_ms = float(fields[2]), int(fields[4]), float(fields[7])
    return Figures(
        requests=count,
        seconds=fetch_ms / 1000,
        size_bytes=round(mib * (1 << 20)),
        p50_ms=NOT_KNOWN,
        p99_ms=NOT_KNOWN,
        p999_ms=NOT_KNOWN,
        client_cpu_seconds=_children_cpu_seconds() - cpu_began,
    )


def _config(client: str, security: SaslSsl | None) -> Sequence[str]:
    return () if security is None else (f"--{client}.config", str(security.properties_file))


def _run(*arguments: str) -> str:
    command = java_command(*arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
