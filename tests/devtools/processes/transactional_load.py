"""What loads of transactions share, by confluent-kafka: threads for as long as a block runs, and producers that go on
where brokers are killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

import attrs
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

ABORTED_SHARE = 0.2
PATIENCE_SECONDS = 120.0
# By default a client pauses for up to 10 s, whether or not a broker is there; and one that is suspended says nothing.
QUIET = {"reconnect.backoff.max.ms": 200, "socket.timeout.ms": 3_000, "log_level": 0}


@attrs.define(eq=False)
class TransactionalLoad:
    """Makes the topic and runs `jobs` in threads, each until `stopping` is set at the end of the block."""

    bootstrap: str
    topic: str
    partition_count: int = attrs.field(init=False)
    stopping: Event = attrs.field(factory=Event, init=False)
    longest_gap_seconds: float = attrs.field(default=0.0, init=False)  # of one writer, between two transactions
    lock: Lock = attrs.field(factory=Lock, init=False)
    _threads: list[Thread] = attrs.field(factory=list, init=False)

    def __enter__(self) -> Self:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        admin.create_topics([NewTopic(self.topic, self.partition_count)])[self.topic].result(PATIENCE_SECONDS)
        self._threads = [Thread(target=job) for job in self.jobs()]
        for each in self._threads:
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stopping.set()
        for each in self._threads:
            each.join()

    def jobs(self) -> Sequence[Callable[[], None]]:
        """Return what is to run, each in a thread of its own."""
        raise NotImplementedError

    def writer(self, transactional_id: str, write: Callable[[Producer, int], bool], failures: list[str]) -> None:
        """Write one transaction after the other until the end; `write` is given its number, and is False if the
        producer can't go on. A writer that gets no other one ends, and says so among the failures.
        """
        producer, number, ended = None, 0, time.monotonic()
        while not self.stopping.is_set():
            try:
                producer = producer or self._open(transactional_id)
            except KafkaException as exc:
                failures.append(f"{transactional_id} can't go on: {exc}")
                return
            if not write(producer, number):
                producer = None
            number += 1
            now = time.monotonic()
            with self.lock:
                self.longest_gap_seconds = max(self.longest_gap_seconds, now - ended)
            ended = now

    def _open(self, transactional_id: str) -> Producer:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            config = {"bootstrap.servers": self.bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
            producer = Producer({**config, **QUIET})
            try:
                producer.init_transactions(PATIENCE_SECONDS)
                return producer
            except KafkaException:
                if time.monotonic() > deadline:
                    raise


def abort_failed(producer: Producer, exc: KafkaException) -> bool:
    """Abort a transaction that has failed; False if the producer can't go on."""
    if not exc.args[0].txn_requires_abort():
        return False
    try:
        producer.abort_transaction(PATIENCE_SECONDS)
    except KafkaException:
        return False
    return True
