"""Loads by Kafka's own producer, unmodified: ProducerPerformance with records and batches of a size.

`java RECORD/BATCH/PARTITIONS` has them as named; `java article` is the setting of AutoMQ's article.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from bench.figures import requests_per_second
from bench.peers.java import JavaProduceLoad, ProducerSetting, find_rate, run_java_produce
from bench.peers.load import TOPIC_SECONDS, Context, Load, Task
from bench.peers.names import ENDPOINT, KAFKA_DURABLE
from kafscale.config.units import KIB, format_size

ARTICLE = "java article"
ARTICLE_SETTING = ProducerSetting(record_bytes=64 * KIB, properties=("batch.size=1048576", "linger.ms=1"))
ARTICLE_RATE = 2400
ARTICLE_SHARE = 0.8
JAVA_SECONDS = 4.0  # beside those of the broker: the JVM of the client, twice
LEAST_SECONDS = 5.0  # of a measurement, however short others are: a JVM takes the first of them to compile


def java_name(record_bytes: int, batch_bytes: int, partitions: int) -> str:
    """`java 100B/16KiB/16`: records, batch.size, partitions."""
    return f"java {record_size(record_bytes)}/{format_size(batch_bytes)}/{partitions}"


def record_size(record_bytes: int) -> str:
    """`100B`, `1KiB`."""
    return f"{record_bytes}B" if record_bytes < KIB else format_size(record_bytes)


def java_produce(record_bytes: int, batch_bytes: int, partitions: int) -> Load:
    """Make the load with the producer's defaults but for `batch.size`, as fast as it goes."""
    setting = ProducerSetting(record_bytes=record_bytes, properties=(f"batch.size={batch_bytes}",))
    return _load(java_name(record_bytes, batch_bytes, partitions), partitions, setting)


def article(*, records_per_second: float = math.inf) -> Load:
    """The setting of the article, as fast as it goes or throttled."""
    if records_per_second == math.inf:
        return _load(ARTICLE, 1, ARTICLE_SETTING, also_at=(ENDPOINT,))
    setting = attrs.evolve(ARTICLE_SETTING, records_per_second=records_per_second)
    return _load(f"{ARTICLE} {records_per_second:.0f}/s", 1, setting)


def article_share() -> Load:
    """Make the load at a share of what Kafka reaches in it with an fsync for every batch."""
    name = f"{ARTICLE} {ARTICLE_SHARE:.0%}"

    def task(context: Context) -> Task | None:
        most = context.median(ARTICLE, KAFKA_DURABLE, requests_per_second)
        if most is None:
            return None
        return _task(context, name, attrs.evolve(ARTICLE_SETTING, records_per_second=ARTICLE_SHARE * most))

    return attrs.evolve(_load(name, 1, ARTICLE_SETTING), task=task, share_of=(ARTICLE, KAFKA_DURABLE))


def _load(name: str, partitions: int, setting: ProducerSetting, *, also_at: Sequence[str] = ()) -> Load:
    def task(context: Context) -> Task:
        return _task(context, name, setting)

    extra_seconds = TOPIC_SECONDS + JAVA_SECONDS
    return Load(
        name=name,
        partitions=partitions,
        task=task,
        also_at=also_at,
        follows_leaders=partitions > 1,
        extra_seconds=extra_seconds,
    )


def _task(context: Context, name: str, setting: ProducerSetting) -> Task:
    """The tool wants a number of records: as many as this broker took in an earlier round, or in a run to find out.

    That run is the warm-up then.
    """
    load = JavaProduceLoad(address=context.broker.address, security=context.broker.security, setting=setting)
    known = setting.records_per_second
    if known == math.inf:
        known = context.median(name, context.broker.name, requests_per_second) or 0.0
    found = None if known else context.runner.send(find_rate, load)
    rate = found.requests / found.seconds if found else known

    def lasting(seconds: float) -> JavaProduceLoad:
        return attrs.evolve(load, count=math.ceil(rate * seconds))

    warm_up = None if found else lasting(context.options.warm_up_seconds)
    seconds = max(context.options.seconds, LEAST_SECONDS)
    return Task(run=run_java_produce, load=lasting(seconds), warm_up=warm_up)
