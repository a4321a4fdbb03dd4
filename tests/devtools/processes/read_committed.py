"""Reader of the committed records of a topic, by confluent-kafka."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.devtools.external.clients import DEADLINE_SECONDS, poll_until


def read_committed(
    bootstrap: str,
    topic: str,
    partition_count: int,
    least_count: int = 0,
    *,
    settings: Mapping[str, str | int | float | bool] | None = None,
) -> list[list[Message]]:
    """Return the committed records of each partition, at least `least_count` in all.

    `settings`: further settings of the client. Raises AssertionError past the deadline.
    """
    found: list[list[Message]] = [[] for _ in range(partition_count)]
    ended: set[int | None] = set()

    def poll() -> None:
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is None:
                found[message.partition() or 0].append(message)
                ended.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())

    config = {
        **(settings or {}),
        "bootstrap.servers": bootstrap,
        "group.id": "none",
        "isolation.level": "read_committed",
    }
    with closing(Consumer({**config, "enable.partition.eof": True, "enable.auto.commit": False})) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partition_count)])
        poll_until(
            lambda: len(ended) == partition_count and sum(map(len, found)) >= least_count,
            poll,
            what=f"{least_count} committed records of {topic}",
            seconds=2 * DEADLINE_SECONDS,
        )
    return found
