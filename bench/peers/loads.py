"""What the brokers of a run are put under, in the order in which it is done.

A load makes a task from a running broker and from what is known by then: the rate of some is a share of what an earlier
load has reached.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs

from bench.brokers import RunningBroker
from bench.consume import BACKLOG, SOURCE_OPTIONS, TAIL, FetchPoint, fill
from bench.end_to_end import EndToEndLoad, run_end_to_end
from bench.fetch_load import FetchLoad, run_fetch
from bench.figures import Figures
from bench.peers.java import JavaConsumeLoad, JavaProduceLoad, run_java_consume, run_java_produce
from bench.peers.librdkafka import LibrdkafkaLoad, run_librdkafka
from bench.points import LARGE_BATCH_BYTES, Point
from bench.produce_load import ProduceLoad, run_produce
from bench.runner import Runner
from kafscale.config.units import KIB, MIB

KAFKA_DURABLE = "kafka durable"
KAFKA_DEFAULT = "kafka default"
FIXED_RATE_MIB = 95
LIVE_RATE_MIB = 30  # beside a consumer that lags
ARTICLE_RECORD_BYTES = 64 * KIB
ARTICLE_SETTINGS = ("batch.size=1048576", "linger.ms=1")
ARTICLE = "java article"
JAVA_PARTITIONS = 16
CROWD = Point(batch_bytes=KIB, in_flight=1, partitions=1000)
CROWD_CONNECTIONS = 200
MIDDLE_BATCHES = Point(batch_bytes=16 * KIB, in_flight=64, partitions=1)
LARGE_BATCHES = Point(batch_bytes=LARGE_BATCH_BYTES, in_flight=5, partitions=1)


@attrs.frozen(kw_only=True)
class Task:
    """`run(load)` in the process of the clients. `warm_up` is what goes before, if anything."""

    run: Callable[[Any], Figures]
    load: Any
    warm_up: Any = None


@attrs.frozen(kw_only=True)
class Context:
    """What a task is made from. `mib_per_second`: the medians of the loads that are done, by load and broker."""

    runner: Runner
    broker: RunningBroker
    seconds: float
    warm_up_seconds: float
    mib_per_second: Mapping[tuple[str, str], float]

    def timed(self, run: Callable[[Any], Figures], load: Any) -> Task:
        """A load that takes its time as `seconds`."""
        return Task(
            run=run,
            load=attrs.evolve(load, seconds=self.seconds),
            warm_up=attrs.evolve(load, seconds=self.warm_up_seconds),
        )


@attrs.frozen(kw_only=True)
class Load:
    """`task` gives None if a median that it needs is not there.

    serve_options: of a broker of ours that is started for this load alone.
    at_endpoint: also against the endpoint that only answers.
    """

    name: str
    partitions: int
    task: Callable[[Context], Task | None]
    serve_options: Sequence[str] = ()
    at_endpoint: bool = False


def all_loads() -> Sequence[Load]:
    """The whole list."""
    return [
        *(_produce(Point(batch_bytes=size, in_flight=in_flight, partitions=partitions))
          for partitions in (1, 16) for size in (LARGE_BATCH_BYTES, 16 * KIB, KIB) for in_flight in (1, 5, 64)),
        _produce(LARGE_BATCHES, mib_per_second=FIXED_RATE_MIB),
        _produce(CROWD, connections=CROWD_CONNECTIONS),
        _java(ARTICLE, ARTICLE_RECORD_BYTES, ARTICLE_SETTINGS, partitions=1, at_endpoint=True),
        _java(f"{ARTICLE} 2400/s", ARTICLE_RECORD_BYTES, ARTICLE_SETTINGS, partitions=1, records_per_second=2400),
        _java_share(0.8),
        *(_java(f"java {size}B batch.size={batch}", size, (f"batch.size={batch}",), partitions=JAVA_PARTITIONS)
          for size in (KIB, 100) for batch in (16 * KIB, 64 * KIB)),
        *(_librdkafka(size) for size in (KIB, 100)),
        *(_fetch(FetchPoint(source=source, batch_bytes=size, partitions=partitions))
          for source in (TAIL, BACKLOG) for partitions in (1, 16) for size in (LARGE_BATCH_BYTES, 16 * KIB)),
        *(_java_consume(source) for source in (TAIL, BACKLOG)),
        *(_end_to_end(share) for share in (0.1, 0.5, 0.9)),
        _produce(MIDDLE_BATCHES, mib_per_second=LIVE_RATE_MIB),
        _lagging(),
    ]  # fmt: skip


def _produce(point: Point, *, connections: int = 1, mib_per_second: float | None = None) -> Load:
    rate = float("inf") if mib_per_second is None else mib_per_second * MIB / point.batch_bytes
    name = f"produce {point}"
    name += f" over {connections} connections" if connections > 1 else ""
    name += f" at {mib_per_second} MiB/s" if mib_per_second else ""

    def task(context: Context) -> Task:
        load = ProduceLoad(
            address=context.broker.address, point=point, seconds=0, connections=connections, requests_per_second=rate
        )
        return context.timed(run_produce, load)

    return Load(name=name, partitions=point.partitions, task=task)


def _java(
    name: str, record_bytes: int, settings: tuple[str, ...], *, partitions: int, at_endpoint: bool = False,
    records_per_second: float = float("inf"),
) -> Load:  # fmt: skip
    def task(context: Context) -> Task:
        load = JavaProduceLoad(
            address=context.broker.address,
            record_bytes=record_bytes,
            seconds=context.seconds,
            settings=settings,
            records_per_second=records_per_second,
        )
        return Task(run=run_java_produce, load=load)

    return Load(name=name, partitions=partitions, task=task, at_endpoint=at_endpoint)


def _java_share(share: float) -> Load:
    """The article's setting, at a share of what Kafka reaches in it with an fsync for every batch."""

    def task(context: Context) -> Task | None:
        if (ARTICLE, KAFKA_DURABLE) not in context.mib_per_second:
            return None
        rate = share * context.mib_per_second[ARTICLE, KAFKA_DURABLE] * MIB / ARTICLE_RECORD_BYTES
        return _java("", ARTICLE_RECORD_BYTES, ARTICLE_SETTINGS, partitions=1, records_per_second=rate).task(context)

    return Load(name=f"{ARTICLE} {share:.0%}", partitions=1, task=task)


def _librdkafka(record_bytes: int) -> Load:
    def task(context: Context) -> Task:
        load = LibrdkafkaLoad(address=context.broker.address, record_bytes=record_bytes, seconds=0)
        return context.timed(run_librdkafka, load)

    return Load(name=f"librdkafka {record_bytes}B", partitions=JAVA_PARTITIONS, task=task)


def _fetch(point: FetchPoint) -> Load:
    def task(context: Context) -> Task:
        return context.timed(run_fetch, fill(context.runner, context.broker, point))

    options = SOURCE_OPTIONS[point.source]
    return Load(name=f"fetch {point}", partitions=point.partitions, task=task, serve_options=options)


def _java_consume(source: str) -> Load:
    point = FetchPoint(source=source, batch_bytes=16 * KIB, partitions=JAVA_PARTITIONS)

    def task(context: Context) -> Task:
        filled = fill(context.runner, context.broker, point)
        load = JavaConsumeLoad(address=context.broker.address, count=filled.end_offset * filled.partitions)
        return Task(run=run_java_consume, load=load)

    options = SOURCE_OPTIONS[source]
    return Load(name=f"java consume {source}", partitions=JAVA_PARTITIONS, task=task, serve_options=options)


def _end_to_end(share: float) -> Load:
    """At a share of what each broker itself reaches."""

    def task(context: Context) -> Task | None:
        most = context.mib_per_second.get((f"produce {MIDDLE_BATCHES}", context.broker.name))
        if most is None:
            return None
        load = EndToEndLoad(
            address=context.broker.address,
            point=MIDDLE_BATCHES,
            seconds=context.seconds,
            requests_per_second=share * most * MIB / MIDDLE_BATCHES.batch_bytes,
        )
        return Task(run=run_end_to_end, load=load)

    return Load(name=f"end to end {share:.0%}", partitions=1, task=task)


@attrs.frozen(kw_only=True)
class LaggingLoad:
    """A live producer, and a consumer that reads the same partition from its beginning, again and again."""

    live: ProduceLoad
    lagging: FetchLoad
    seconds: float


def run_lagging(load: LaggingLoad) -> Figures:
    """What the producer saw; the consumer has a process of its own."""
    with _beside(partial(run_fetch, attrs.evolve(load.lagging, seconds=load.seconds + 60))):
        return run_produce(attrs.evolve(load.live, seconds=load.seconds))


@contextmanager
def _beside(run: Callable[[], object]) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=run)
    process.start()
    try:
        yield
        if process.exitcode is not None:
            raise RuntimeError("the lagging consumer failed")
    finally:
        process.terminate()
        process.join()


def _lagging() -> Load:
    def task(context: Context) -> Task:
        point = FetchPoint(source=BACKLOG, batch_bytes=MIDDLE_BATCHES.batch_bytes, partitions=1)
        live = ProduceLoad(
            address=context.broker.address,
            point=MIDDLE_BATCHES,
            seconds=0,
            requests_per_second=LIVE_RATE_MIB * MIB / MIDDLE_BATCHES.batch_bytes,
        )
        filled = fill(context.runner, context.broker, point)
        return context.timed(run_lagging, LaggingLoad(live=live, lagging=filled, seconds=0))

    return Load(name=f"produce {MIDDLE_BATCHES} at {LIVE_RATE_MIB} MiB/s, a consumer lags", partitions=1, task=task)
