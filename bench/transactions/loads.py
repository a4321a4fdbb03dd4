"""The loads of the brokers, in the order in which it is done in each round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

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
from kafscale.client.consumer import IsolationLevel
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
    crowd = attrs.evolve(one, partitions=CROWD)
    of_each = partial(TransactionsLoad, seconds=0, commit_every_batches=1, counts_commits=True)
    records = partial(LibrdkafkaLoad, record_bytes=KIB, seconds=0)
    return [
        *(load for size in BATCH_SIZES for load in (_producing(size), _producing(size, is_transactional=True))),
        _load(LATENCY, partial(of_each, point=one, measures_rounds=True), partitions=2),
        _load(commits_name(1), partial(of_each, point=one), partitions=1),
        _load(commits_name(CROWD), partial(of_each, point=crowd, producers=CROWD), partitions=CROWD),
        _processing(),
        _librdkafka(LIBRDKAFKA_ONE, partial(records, commit_every_records=1, linger_ms=0.0, counts_commits=True)),
        _librdkafka(LIBRDKAFKA_INTERVAL, partial(records, commit_every_seconds=COMMIT_SECONDS)),
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
    make = partial(
        TransactionsLoad,
        point=Point(batch_bytes=batch_bytes, in_flight=IN_FLIGHT, partitions=PARTITIONS),
        seconds=0,
        producers=PRODUCERS,
        is_transactional=is_transactional,
        commit_every_seconds=COMMIT_SECONDS if is_transactional else math.inf,
    )
    return _load(producing_name(batch_bytes, is_transactional=is_transactional), make, partitions=PARTITIONS)


def _load(name: str, make: partial[TransactionsLoad], *, partitions: int) -> Load:
    """`make` lacks the address. `partitions`: those of its point, and one where it measures rounds."""

    def task(context: Context) -> Task:
        return context.timed(run_transactions, make(address=context.broker.address))

    return Load(name=name, partitions=partitions, task=task)


def _processing() -> Load:
    def task(context: Context) -> Task:
        point = FetchPoint(source=TAIL, batch_bytes=16 * KIB, partitions=1)
        filled = fill(context.runner, context.broker, point)
        load = ProcessingLoad(address=context.broker.address, end_offset=filled.end_offset, seconds=0)
        return context.timed(run_processing, load)

    return Load(name=PROCESSING, partitions=2, task=task, extra_seconds=TOPIC_SECONDS + FILL_SECONDS)


def _librdkafka(name: str, make: partial[LibrdkafkaLoad]) -> Load:
    def task(context: Context) -> Task:
        return context.timed(run_librdkafka, make(address=context.broker.address))

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
