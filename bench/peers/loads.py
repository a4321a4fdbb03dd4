"""The loads of a run, in the order in which it is done in each round.

Names: `produce` and `fetch` are our own generators at a point; those with Kafka's own
producer are in `java_loads`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.consume import BACKLOG, SOURCE_OPTIONS, TAIL, FetchPoint, fill
from bench.end_to_end import EndToEndLoad, run_end_to_end
from bench.fetch_load import run_fetch
from bench.figures import requests_per_second
from bench.peers.disk import DiskLoad, run_disk
from bench.peers.java import JavaConsumeLoad, run_java_consume
from bench.peers.java_loads import ARTICLE_RATE, JAVA_SECONDS, article, article_share, java_produce, record_size
from bench.peers.lagging import LaggingLoad, run_lagging
from bench.peers.librdkafka import LibrdkafkaLoad, run_librdkafka
from bench.peers.load import TOPIC_SECONDS, Context, Load, Task
from bench.peers.names import DISK, KAFKA_DEFAULT, OWN
from bench.peers.standing import STARTS_COUNT, IdleLoad, StartLoad, run_idle, run_starts
from bench.points import LARGE_BATCH_BYTES, Point, standard_points
from bench.produce_load import ProduceLoad, run_produce
from kafscale.config.units import KIB, MIB

FIXED_RATES = {"95 MiB/s": 95 * MIB, "150 MB/s": 150_000_000}
LIVE_RATE = ("30 MiB/s", 30 * MIB)  # beside a consumer that lags
MANY_PARTITIONS = 16
CROWD = Point(batch_bytes=KIB, in_flight=1, partitions=1000)
CROWD_CONNECTIONS = 200
MIDDLE_BATCHES = Point(batch_bytes=16 * KIB, in_flight=64, partitions=1)
LARGE_BATCHES = Point(batch_bytes=LARGE_BATCH_BYTES, in_flight=5, partitions=1)

START = "start, empty directory"
IDLE_PARTITIONS = 1000
IDLE = f"idle, {IDLE_PARTITIONS:,} partitions"
IDLE_TIMES = 3.0  # as long as another load: a process that does nothing is seen in hundredths of a second only
DISK_ALONE = "disk, 4 MiB synced"
FILL_SECONDS = 4.0
CONSUMED_BYTES = 512 * MIB  # by ConsumerPerformance, whose first second is spent on getting warm
CONSUMED_TAIL_OPTIONS = (*SOURCE_OPTIONS[TAIL], "--chunk-pool-bytes", "1536MiB")  # which holds it
SHARES = (0.1, 0.5, 0.9)


def all_loads() -> Sequence[Load]:
    """The whole list."""
    records = [(size, batch, partitions) for partitions in (MANY_PARTITIONS, 1)
               for size in (KIB, 100) for batch in (16 * KIB, 64 * KIB)]  # fmt: skip
    sources = [FetchPoint(source=source, batch_bytes=size, partitions=partitions) for source in (TAIL, BACKLOG)
               for partitions in (1, MANY_PARTITIONS) for size in (LARGE_BATCH_BYTES, 16 * KIB)]  # fmt: skip
    return [
        _starts(),
        _idle(),
        _disk(),
        *(_produce(point) for point in standard_points()),
        *(_produce(LARGE_BATCHES, rate=rate) for rate in FIXED_RATES.items()),
        _produce(CROWD, connections=CROWD_CONNECTIONS),
        article(),
        article(records_per_second=ARTICLE_RATE),
        article_share(),
        *(java_produce(size, batch, partitions) for size, batch, partitions in records),
        *(_librdkafka(size) for size in (KIB, 100)),
        *(_fetch(point) for point in sources),
        *(_java_consume(source) for source in (TAIL, BACKLOG)),
        *(_end_to_end(share) for share in SHARES),
        _produce(MIDDLE_BATCHES, rate=LIVE_RATE),
        _lagging(),
    ]


def produce_name(point: Point, rate: str = "") -> str:
    """Return the name of the load with our own generator."""
    return f"produce {point}{' at ' if rate else ''}{rate}"


def librdkafka_name(record_bytes: int) -> str:
    return f"librdkafka {record_size(record_bytes)}"


def java_consume_name(source: str) -> str:
    return f"java consume {source}"


def end_to_end_name(share: float) -> str:
    return f"end to end {share:.0%}"


# ---- work without a broker ------------------------------------------------------------------------------------------


def _starts() -> Load:
    def task(context: Context) -> Task:
        assert context.startable is not None
        return Task(run=run_starts, load=StartLoad(startable=context.startable))

    return Load(
        name=START, partitions=0, task=task, only_at=(OWN, KAFKA_DEFAULT), times=0, extra_seconds=2.0 * STARTS_COUNT
    )


def _idle() -> Load:
    def task(context: Context) -> Task:
        seconds = IDLE_TIMES * context.options.seconds
        settling = IdleLoad(seconds=context.options.warm_up_seconds)
        return Task(run=run_idle, load=IdleLoad(seconds=seconds), warm_up=settling)

    return Load(name=IDLE, partitions=IDLE_PARTITIONS, task=task, only_at=(OWN, KAFKA_DEFAULT), times=IDLE_TIMES)


def _disk() -> Load:
    def task(context: Context) -> Task:
        return Task(run=run_disk, load=DiskLoad(directory=context.options.directory, seconds=context.options.seconds))

    return Load(name=DISK_ALONE, partitions=0, task=task, only_at=(DISK,))


# ---- produce --------------------------------------------------------------------------------------------------------


def _produce(point: Point, *, connections: int = 1, rate: tuple[str, float] = ("", math.inf)) -> Load:
    named, bytes_per_second = rate

    def task(context: Context) -> Task:
        load = ProduceLoad(
            address=context.broker.address,
            security=context.broker.security,
            point=point,
            seconds=0,
            connections=connections,
            requests_per_second=bytes_per_second / point.batch_bytes,
        )
        return context.timed(run_produce, load)

    name = produce_name(point, named) + (f" over {connections} connections" if connections > 1 else "")
    return Load(name=name, partitions=point.partitions, task=task)


def _librdkafka(record_bytes: int) -> Load:
    def task(context: Context) -> Task:
        load = LibrdkafkaLoad(
            address=context.broker.address,
            security=context.broker.security,
            record_bytes=record_bytes,
            seconds=0,
        )
        return context.timed(run_librdkafka, load)

    return Load(name=librdkafka_name(record_bytes), partitions=MANY_PARTITIONS, task=task, follows_leaders=True)


# ---- fetch ----------------------------------------------------------------------------------------------------------


def _serve_options(source: str) -> Sequence[str]:
    """A backlog is flushed by hand; only a tail needs a broker that does not flush it."""
    return SOURCE_OPTIONS[source] if source == TAIL else ()


def _fetch(point: FetchPoint) -> Load:
    def task(context: Context) -> Task:
        return context.timed(run_fetch, fill(context.runner, context.broker, point))

    return Load(
        name=f"fetch {point}",
        partitions=point.partitions,
        task=task,
        serve_options=_serve_options(point.source),
        is_from_memory=point.source == TAIL,
        extra_seconds=TOPIC_SECONDS + FILL_SECONDS,
    )


def _java_consume(source: str) -> Load:
    point = FetchPoint(source=source, batch_bytes=16 * KIB, partitions=MANY_PARTITIONS)

    def task(context: Context) -> Task:
        filled = fill(context.runner, context.broker, point, data_bytes=CONSUMED_BYTES)
        load = JavaConsumeLoad(
            address=context.broker.address,
            security=context.broker.security,
            count=filled.end_offset * filled.partitions,
        )
        return Task(run=run_java_consume, load=load)

    return Load(
        name=java_consume_name(source),
        partitions=MANY_PARTITIONS,
        task=task,
        follows_leaders=True,
        serve_options=CONSUMED_TAIL_OPTIONS if source == TAIL else (),
        is_from_memory=source == TAIL,
        extra_seconds=TOPIC_SECONDS + FILL_SECONDS + JAVA_SECONDS,
        times=0,
    )


# ---- both -----------------------------------------------------------------------------------------------------------


def _end_to_end(share: float) -> Load:
    """Make the load at a share of what each broker itself reaches."""
    most_load = produce_name(MIDDLE_BATCHES)

    def task(context: Context) -> Task | None:
        most = context.median(most_load, context.broker.name, requests_per_second)
        if most is None:
            return None
        load = EndToEndLoad(
            address=context.broker.address,
            point=MIDDLE_BATCHES,
            seconds=context.options.seconds,
            requests_per_second=share * most,
        )
        return Task(run=run_end_to_end, load=load)

    return Load(name=end_to_end_name(share), partitions=1, task=task, share_of=(most_load, None))


def _lagging() -> Load:
    rate_name, bytes_per_second = LIVE_RATE

    def task(context: Context) -> Task:
        point = FetchPoint(source=BACKLOG, batch_bytes=MIDDLE_BATCHES.batch_bytes, partitions=1)
        live = ProduceLoad(
            address=context.broker.address,
            security=context.broker.security,
            point=MIDDLE_BATCHES,
            seconds=0,
            requests_per_second=bytes_per_second / MIDDLE_BATCHES.batch_bytes,
        )
        filled = fill(context.runner, context.broker, point)
        return context.timed(run_lagging, LaggingLoad(live=live, lagging=filled, seconds=0))

    name = f"{produce_name(MIDDLE_BATCHES, rate_name)}, a consumer lags"
    return Load(name=name, partitions=1, task=task, extra_seconds=TOPIC_SECONDS + FILL_SECONDS)
