"""A librdkafka consumer group of one member that reads a topic while brokers restart, and what it saw."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import pairwise
from typing import Self

import attrs
from confluent_kafka import Consumer

POLL_SECONDS = 0.2
COMMIT_INTERVAL_MS = 500


@attrs.define(eq=False)
class GroupReader:
    """Reads numbers from all partitions of a topic; partition p of n has p, p + n, p + 2 n, in this order."""

    bootstrap: str
    topic: str
    partition_count: int
    group: str = "reader"
    values: defaultdict[int, list[int]] = attrs.field(factory=lambda: defaultdict(list), init=False)
    failures: list[str] = attrs.field(factory=list, init=False)
    _times: defaultdict[int, list[float]] = attrs.field(factory=lambda: defaultdict(list), init=False)
    _stopping: threading.Event = attrs.field(factory=threading.Event, init=False)
    _thread: threading.Thread = attrs.field(init=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def count(self) -> int:
        return sum(len(values) for values in self.values.values())

    @property
    def gap_seconds(self) -> float:
        """Return the longest time between two records of one partition."""
        return max((after - before for times in self._times.values() for before, after in pairwise(times)), default=0.0)

    @property
    def problems(self) -> list[str]:
        """Return how the records of each partition differ from an unbroken series."""
        found = list(self.failures)
        for partition, values in self.values.items():
            expected = list(range(partition, partition + len(values) * self.partition_count, self.partition_count))
            if values != expected:
                at = next(index for index, value in enumerate(values) if value != expected[index])
                found.append(f"partition {partition}, record {at}: {values[at]} instead of {expected[at]}")
        return found

    def _read(self) -> None:
        consumer = Consumer(
            {
                "log_level": 0,
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
            }
        )
        consumer.subscribe([self.topic])
        while not self._stopping.is_set():
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if not error.retriable():
                    self.failures.append(str(error))
                continue
            partition = message.partition()
            assert partition is not None
            self.values[partition].append(int(message.value() or b""))
            self._times[partition].append(time.monotonic())
        consumer.close()
