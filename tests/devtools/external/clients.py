"""Shared code of the tests of real clients: records to send, waits with a deadline, a reader of committed records."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing

import attrs
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_SECONDS = 30.0  # many times what a test takes on a busy machine
PAUSE_SECONDS = 0.02  # between two looks at a condition
FIRST_TIMESTAMP_MS = 1_700_000_000_000


@attrs.frozen
class Sample:
    """A record as an application sees it. Headers keep their order, and their names may repeat."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = FIRST_TIMESTAMP_MS


def sample_records() -> list[Sample]:
    """Return records of every kind that a client may send; timestamps are a second apart, and not in order."""
    kinds: Sequence[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]] = [
        (b"key", b"value", ()),
        (None, b"no key", ()),
        (b"tombstone", None, ()),
        (None, None, ()),
        (b"", b"", ()),
        (b"headers", b"v", (("b", b"2"), ("a", b"1"), ("b", b"3"), ("empty", b""), ("name-\u00e9", b"\x00\xff"))),
        (bytes(range(256)), b"compresses well " * 2000, ()),
        (b"long", bytes(range(256)) * 40, (("long", b"h" * 5000),)),
    ]
    order = [3, 0, 1, 7, 2, 6, 5, 4]
    return [
        Sample(key, value, headers, FIRST_TIMESTAMP_MS + 1000 * order[number % 8] + 8000 * (number // 8))
        for number, (key, value, headers) in enumerate(list(kinds) * 3)
    ]


def poll_until(
    condition: Callable[[], object], poll: Callable[[], object], *, what: str, seconds: float = DEADLINE_SECONDS
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        poll()


def wait_until(condition: Callable[[], object], what: str, *, seconds: float = DEADLINE_SECONDS) -> None:
    """Wait for another thread or process to make the condition true. Raises AssertionError past the deadline."""
    poll_until(condition, lambda: threading.Event().wait(PAUSE_SECONDS), what=what, seconds=seconds)


@attrs.define
class Acknowledged:
    """Acknowledged records of producers, and the proof that it is there exactly once and in order.

    A producer adds `(value, offset)` pairs as they are acknowledged; values are unique.
    """

    partitions: dict[int, list[tuple[bytes, int]]] = attrs.field(factory=lambda: defaultdict(list))

    @property
    def count(self) -> int:
        return sum(len(partition) for partition in self.partitions.values())

    def add(self, partition: int, value: bytes, offset: int) -> None:
        self.partitions[partition].append((value, offset))

    def check(self, stored: Iterable[tuple[int, int, bytes]], sent: Callable[[int], Iterable[bytes]]) -> None:
        """Check that consumed records, as (partition, offset, value), are the acknowledged ones, in the order of
        `sent`.
        """
        found: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
        for partition, offset, value in stored:
            found[partition].append((value, offset))
        for partition, acknowledged in self.partitions.items():
            assert found[partition] == sorted(acknowledged, key=lambda pair: pair[1]), f"partition {partition}"
            assert [value for value, _ in found[partition]] == list(sent(partition)), f"order of partition {partition}"
        assert found.keys() == self.partitions.keys()


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
