"""AutoMQ's setting, shared by A3 and A4, by Kafka's own producer tool, over KafScale and Apache Kafka in turns.

The setting: one partition, records of 64 KiB, `batch.size` 1 MiB, `linger.ms` 1; Kafka syncs each batch before it
acknowledges it (`log.flush.interval.messages=1`), as KafScale does. KafScale's bucket is once in memory, which stands
for one that is elsewhere, and once a directory on the disk that the write-ahead log is on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import figures
from bench.brokers import Startable
from bench.claims.claim import Variant
from bench.figures import Reading, Result, median_of
from bench.options import RunOptions
from bench.peers.java_loads import ARTICLE_SETTING, article
from bench.peers.journal import FILE_NAME, Journal
from bench.peers.names import KAFKA_DURABLE, OWN, OWN_MEMORY
from bench.peers.plan import turns_of
from bench.peers.run import PeersRun
from bench.peers.startables import kafka_durable, own_brokers

OPTIONS = RunOptions(seconds=20.0, warm_up_seconds=2.0, rounds=3)  # the start of the client is a second of each
FIXED_BYTES_PER_SECOND = 150_000_000
UNTHROTTLED = article()
FIXED = article(records_per_second=FIXED_BYTES_PER_SECOND / ARTICLE_SETTING.record_bytes)
BROKERS = (KAFKA_DURABLE, OWN, OWN_MEMORY)


@cache
def results() -> Sequence[Result]:
    """Return the results of both loads, unthrottled and at the fixed rate; measured once for both rows."""
    brokers: list[Startable] = [kafka_durable(OPTIONS.directory), *own_brokers(OPTIONS)]
    turns = turns_of([UNTHROTTLED, FIXED], [broker.name for broker in brokers], OPTIONS.rounds)
    with TemporaryDirectory(prefix="kafscale-bench-") as directory:
        run = PeersRun(
            options=OPTIONS,
            startables={broker.name: broker for broker in brokers},
            journal=Journal.begin(Path(directory) / FILE_NAME),
        )
        run.take(turns)
    if failures := run.journal.findings.failures:
        raise RuntimeError(f"{failures[0].load} against {failures[0].broker}: {failures[0].error}")
    return run.journal.findings.results


def mb_per_second(load: str, broker: str) -> float:
    """Return the throughput in megabytes of 1,000,000, as the article counts them."""
    return _median(load, broker, lambda each: each.figures.size_bytes / 1e6 / each.figures.seconds)


def p99_ms(load: str, broker: str) -> float:
    """Return the p99 as the tool tells it."""
    return _median(load, broker, figures.p99_ms)


def _median(load: str, broker: str, reading: Reading) -> float:
    median = median_of(results(), load, broker, reading)
    return math.nan if median is None else median


def variants() -> Sequence[Variant]:
    """Return the variants: both loads over the three brokers."""
    return [
        Variant(
            name=f"{load.name}, {broker}",
            figures={
                "MB/s": mb_per_second(load.name, broker),
                "p50 ms": _median(load.name, broker, lambda each: each.figures.p50_ms),
                "p99 ms": p99_ms(load.name, broker),
                "broker's CPU s": _median(load.name, broker, lambda each: each.cpu_seconds),
            },
        )
        for load in (UNTHROTTLED, FIXED)
        for broker in BROKERS
    ]
