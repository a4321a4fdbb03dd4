"""A3: twice Apache Kafka's throughput to a single partition.

AutoMQ's setting (one partition, records of 64 KiB, `batch.size` 1 MiB, `linger.ms` 1) by kafka-producer-perf-test,
unthrottled, over KafScale and over Apache Kafka that syncs each batch too, in turns. What counts is the bucket in
memory, which stands for one that is elsewhere; in a directory on the same disk each byte is written to that disk
twice. Needs Java 17 and Maven.
"""

from __future__ import annotations

from bench.claims.article import UNTHROTTLED, mb_per_second, variants
from bench.claims.claim import Claim, Finding
from bench.peers.kafka import find_java
from bench.peers.names import KAFKA_DURABLE, OWN, OWN_MEMORY


def run() -> Finding:
    kafka, ours, in_memory = (mb_per_second(UNTHROTTLED.name, broker) for broker in (KAFKA_DURABLE, OWN, OWN_MEMORY))
    return Finding(
        ours=f"{in_memory:.0f} MB/s vs {kafka:.0f}; {ours:.0f} with the bucket on the same disk",
        is_shown=in_memory >= 2 * kafka,
        variants=variants(),
    )


CLAIM = Claim(
    row="a3",
    source="AutoMQ",
    claim="twice Apache Kafka's single-partition throughput",
    source_figure="350 MB/s vs 175",
    run=run,
    find_missing=find_java,
)
