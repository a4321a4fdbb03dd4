"""Targets for transactions: beside the same broker without them, and beside Apache Kafka in the same run."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures import Result, mib_per_second, requests_per_second
from bench.peers.names import KAFKA_DURABLE, OWN
from bench.peers.targets import AT_LEAST, AT_MOST, Target
from bench.transactions.loads import (
    BATCH_SIZES,
    CROWD,
    LATENCY,
    LIBRDKAFKA_INTERVAL,
    LIBRDKAFKA_ONE,
    PROCESSING,
    SOURCES,
    commits_name,
    fetch_name,
    producing_name,
)
from kafscale.client.consumer import IsolationLevel


def rounds(result: Result) -> float | None:
    """EndTxn's p50 in rounds of the log: what a plain produce with acks=all takes."""
    figures = result.figures
    return figures.p50_ms / figures.round_p50_ms if figures.round_p50_ms else None


def concurrent_count(result: Result) -> float | None:
    """A reading."""
    return result.figures.concurrent_count


def _cpu_us(result: Result) -> float | None:
    return result.cpu_us_per_request


def _ms(result: Result) -> float | None:
    return 1000 * result.figures.seconds / result.figures.requests if result.figures.requests else None


ONE_RECORD = [commits_name(1), commits_name(CROWD)]
INTERVALS = [producing_name(size, is_transactional=True) for size in BATCH_SIZES]
_COMMITTED, _UNCOMMITTED = (
    {source: fetch_name(source, level) for source in SOURCES}
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
)

TARGETS: Sequence[Target] = [
    *(
        Target(load=load, reading=mib_per_second, unit="MiB/s", peer=OWN, peer_load=producing_name(size), factor=0.9)
        for load, size in zip(INTERVALS, BATCH_SIZES, strict=True)
    ),
    *(
        Target(load=load, reading=mib_per_second, unit="MiB/s", peer=KAFKA_DURABLE, factor=1)
        for load in [*INTERVALS, LIBRDKAFKA_INTERVAL]
    ),
    Target(load=LATENCY, reading=rounds, unit="p50 in rounds of the log", factor=1.5, wanted=AT_MOST),
    *(
        Target(load=load, reading=requests_per_second, unit="commits/s", peer=KAFKA_DURABLE, factor=5, wanted=AT_LEAST)
        for load in [*ONE_RECORD, LIBRDKAFKA_ONE]
    ),
    Target(load=PROCESSING, reading=requests_per_second, unit="transactions/s", peer=KAFKA_DURABLE, factor=1),
    *(
        Target(load=load, reading=concurrent_count, unit="CONCURRENT_TRANSACTIONS", factor=0, wanted=AT_MOST)
        for load in [*INTERVALS, LATENCY, *ONE_RECORD, PROCESSING, LIBRDKAFKA_ONE, LIBRDKAFKA_INTERVAL]
    ),
    *(
        Target(load=_COMMITTED[source], reading=reading, unit=unit, peer=OWN, peer_load=_UNCOMMITTED[source],
               factor=1.05, wanted=AT_MOST)
        for source in SOURCES for reading, unit in ((_cpu_us, "CPU us a fetch"), (_ms, "ms a fetch"))
    ),
]  # fmt: skip
