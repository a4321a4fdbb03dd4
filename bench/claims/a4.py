"""A4: the p99 latency at that load, and at a fixed 150 MB/s, is a fraction of Apache Kafka's.

The run of A3, and the same setting throttled to 150 MB/s, which is what counts: unthrottled, a latency is the
time that a record waits in the producer's own buffer. It holds if the p99 is at most a fifth of Kafka's. Needs Java 17
and Maven.
"""

from __future__ import annotations

from bench.claims.article import FIXED, UNTHROTTLED, p99_ms, variants
from bench.claims.claim import Claim, Finding
from bench.peers.kafka import find_java
from bench.peers.names import KAFKA_DURABLE, OWN, OWN_MEMORY

SHARE = 1 / 5


def run() -> Finding:
    kafka, ours, in_memory = (p99_ms(FIXED.name, broker) for broker in (KAFKA_DURABLE, OWN, OWN_MEMORY))
    most_kafka, most_ours = (p99_ms(UNTHROTTLED.name, broker) for broker in (KAFKA_DURABLE, OWN_MEMORY))
    return Finding(
        ours=f"at 150 MB/s {in_memory:.0f} ms, 1/{kafka / in_memory:.1f} of Kafka's {kafka:.0f}, and {ours:.0f} with "
        f"the bucket on the same disk; unthrottled {most_ours:.0f} against {most_kafka:.0f}",
        is_shown=in_memory <= SHARE * kafka,
        variants=variants(),
    )


CLAIM = Claim(
    row="a4",
    source="AutoMQ",
    claim="the p99 at that load is a fraction of Kafka's",
    source_figure="1/15 of Kafka's, 11 ms",
    run=run,
    find_missing=find_java,
)
