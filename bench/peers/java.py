"""Kafka's own performance tools as loads."""

from __future__ import annotations

import math
import re
import resource
import subprocess

import attrs

from bench.figures import Figures
from bench.peers.kafka import java_command
from bench.points import TOPIC
from kafscale.config import Address

NOT_KNOWN = math.nan
PRODUCED = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec .*?"
    r"([\d.]+) ms 50th, ([\d.]+) ms 95th, ([\d.]+) ms 99th, ([\d.]+) ms 99.9th"
)
RATE_SECONDS = 5  # of the run that finds out how many records a run of some seconds has


@attrs.frozen(kw_only=True)
class JavaProduceLoad:
    """ProducerPerformance. `settings` are the producer's, `records_per_second` the throttle, infinite for none."""

    address: Address
    record_bytes: int
    seconds: float
    settings: tuple[str, ...] = ()
    records_per_second: float = math.inf


def run_java_produce(load: JavaProduceLoad) -> Figures:
    """The tool wants a number of records: a short run before finds out how many are sent in `seconds`.

    That run also warms up the broker. Raises RuntimeError with what the tool wrote.
    """
    rate = load.records_per_second
    if rate == math.inf:
        rate = 0.0
        count = 10_000
        while rate * RATE_SECONDS / 2 > count or not rate:
            if rate:
                count = int(rate * RATE_SECONDS)
            found = _produce(load, count)
            rate = found.requests / found.seconds
    return _produce(load, int(rate * load.seconds))


def _produce(load: JavaProduceLoad, count: int) -> Figures:
    throughput = -1 if load.records_per_second == math.inf else round(load.records_per_second)
    cpu_began = _children_cpu_seconds()
    output = _run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", TOPIC, "--num-records", str(count), "--record-size", str(load.record_bytes)),
        *("--throughput", str(throughput)),
        *("--producer-props", f"bootstrap.servers={load.address}", "acks=all", *load.settings),
    )
    found = PRODUCED.findall(output)
    if not found or int(found[-1][0]) != count:
        raise RuntimeError(f"ProducerPerformance did not send {count} records: {output[-2000:]}")
    _, per_second, p50, _, p99, p999 = found[-1]
    return Figures(
        requests=count,
        seconds=count / float(per_second),
        size_bytes=count * load.record_bytes,
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


def run_java_consume(load: JavaConsumeLoad) -> Figures:
    """What the tool says of its fetching alone: the join of its group is not counted."""
    cpu_began = _children_cpu_seconds()
    output = _run(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", str(load.address), "--topic", TOPIC, "--messages", str(load.count), "--hide-header"),
    )
    fields = output.strip().splitlines()[-1].split(", ")
    if len(fields) != 10:
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


def _run(*arguments: str) -> str:
    done = subprocess.run(java_command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
