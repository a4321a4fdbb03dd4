"""Clients that load a broker from threads until the end of a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count

from confluent_kafka import Consumer, Producer

TOPIC = "orders"
PAUSE_SECONDS = 0.2


@contextmanager
def in_background(*steps: Callable[[], None]) -> Iterator[None]:
    """Repeat each step in a thread of its own until the block ends. A step that raises fails the block."""
    stopping = threading.Event()
    failures: list[BaseException] = []

    def run(step: Callable[[], None]) -> None:
        try:
            while not stopping.wait(PAUSE_SECONDS):
                step()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(60)
    assert not failures, failures


def producing(bootstrap: str, topic: str = TOPIC, **settings: object) -> Callable[[], None]:
    """Return a step that produces some records. Those that fail are forgotten."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **_named(settings)})
    numbers = count()

    def step() -> None:
        for _ in range(10):
            producer.produce(topic, b"value %d " % next(numbers) + b"." * 500)
        producer.flush(1)
        producer.purge()
        producer.poll(0)

    return step


def reading(bootstrap: str, topic: str = TOPIC, group: str = "readers", **settings: object) -> Callable[[], None]:
    """Return a step in which a member of a group reads from the beginning, and commits."""
    groups = count()

    def step() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{group}-{next(groups) % 3}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **_named(settings),
            }
        )
        consumer.subscribe([topic])
        messages = [message for message in consumer.consume(50, 3) if message.error() is None]
        if messages:
            consumer.commit(messages[0], asynchronous=False)
        consumer.close()

    return step


def _named(settings: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in settings.items()}
