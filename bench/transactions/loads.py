"""What the brokers are put under, in the order in which it is done in each round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from bench.consume import BACKLOG, SOURCE_OPTIONS, TAIL, FetchPoint, fill
from bench.fetch_load import run_fetch
from bench.peers.load import TOPIC_SECONDS, Context, Load, Task
from bench.peers.names import OWN
from bench.points import Point
from bench.transactions.fetching import fill_committed
from bench.transactions.librdkafka import LibrdkafkaLoad, run_librdkafka
from bench.transactions.processing import ProcessingLoad, run_processing
from bench.transactions.producer_load import TransactionsLoad, run_transactions
from kafscale.client.isolation import IsolationLevel
from kafscale.config.units import KIB, format_size

PRODUCERS = 4
PARTITIONS = 16
IN_FLIGHT = 5  # Kafka: max.in.flight.requests.per.connection of idempotent producers
COMMIT_SECONDS = 0.1  # Kafka Streams: commit.interval.ms under exactly_once_v2
CROWD = 16
BATCH_SIZES = (KIB, 16 * KIB)
SOURCES = (TAIL, BACKLOG)
FILL_SECONDS = 4.0

LATENCY = "EndTxn after one record"
PROCESSING = "read, process, write"
LIBRDKAFKA_ONE = "librdkafka, one record"
LIBRDKAFKA_INTERVAL = "librdkafka 1KiB, every 100 ms"


def all_loads() -> Sequence[Load]:
    """The whole list."""
    one = Point(batch_bytes=KIB, in_flight=1, partitions=1)
    of_each = {"commit_every_batches": 1, "counts_commits": True}
    return [
        *(each for size in BATCH_SIZES for each in (_producing(size), _producing(size, is_transactional=True))),
        _load(LATENCY, one, spare_partitions=1, measures_rounds=True, **of_each),
        _load(commits_name(1), one, **of_each),
        _load(commits_name(CROWD), attrs.evolve(one, partitions=CROWD), producers=CROWD, **of_each),
        _processing(),
        _librdkafka(LIBRDKAFKA_ONE, commit_every_records=1, linger_ms=0.0, counts_commits=True),
        _librdkafka(LIBRDKAFKA_INTERVAL, commit_every_seconds=COMMIT_SECONDS),
        *(_fetch(source, level) for source in SOURCES for level in IsolationLevel),
    ]


def producing_name(batch_bytes: int, *, is_transactional: bool = False) -> str:
    """Return the name of the load of idempotent producers, or of those that commit every 100 ms."""
    size = format_size(batch_bytes)
    return f"{size}, commits every 100 ms" if is_transactional else f"{size}, idempotent"


def commits_name(producers: int) -> str:
    """Return the name of the load of transactions of one record."""
    return f"transactions of one record, {producers} producer{'s' if producers > 1 else ''}"


def fetch_name(source: str, level: IsolationLevel) -> str:
    """Return the name of the load that fetches committed transactions."""
    return f"fetch {source}, {level.name.lower()}"


def _producing(batch_bytes: int, *, is_transactional: bool = False) -> Load:
    return _load(
        producing_name(batch_bytes, is_transactional=is_transactional),
        Point(batch_bytes=batch_bytes, in_flight=IN_FLIGHT, partitions=PARTITIONS),
        producers=PRODUCERS,
        is_transactional=is_transactional,
        commit_every_seconds=COMMIT_SECONDS if is_transactional else math.inf,
    )


def _load(name: str, point: Point, *, spare_partitions: int = 0, **settings: object) -> Load:
    def task(context: Context) -> Task:
        load = TransactionsLoad(address=context.broker.address, point=point, seconds=0, **settings)
        return context.timed(run_transactions, load)

    return Load(name=name, partitions=point.partitions + spare_partitions, task=task)


def _processing() -> Load:
    def task(context: Context) -> Task:
        point = FetchPoint(source=TAIL, batch_bytes=16 * KIB, partitions=1)
        filled = fill(context.runner, context.broker, point)
        load = ProcessingLoad(address=context.broker.address, end_offset=filled.end_offset, seconds=0)
        return context.timed(run_processing, load)

    return Load(name=PROCESSING, partitions=2, task=task, extra_seconds=TOPIC_SECONDS + FILL_SECONDS)


def _librdkafka(name: str, **settings: object) -> Load:
    def task(context: Context) -> Task:
        load = LibrdkafkaLoad(address=context.broker.address, record_bytes=KIB, seconds=0, **settings)
        return context.timed(run_librdkafka, load)

    return Load(name=name, partitions=PARTITIONS, task=task)


def _fetch(source: str, level: IsolationLevel) -> Load:
    def task(context: Context) -> Task:
        filled = fill_committed(context.runner, context.broker, source)
        return context.timed(run_fetch, attrs.evolve(filled, isolation_level=level))

    return Load(
        name=fetch_name(source, level),
        partitions=1,
        task=task,
        serve_options=SOURCE_OPTIONS[source] if source == TAIL else (),
        only_at=(OWN,),
        is_from_memory=source == TAIL,
        extra_seconds=TOPIC_SECONDS + FILL_SECONDS,
    )
