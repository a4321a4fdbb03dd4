"""`kafscale serve --processes 2`, with real brokers and a client that knows nothing of them."""

from __future__ import annotations

import os
import signal
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.clients import wait_until
from tests.devtools.processes.several_processes import several_broker_processes


def test_nothing_acknowledged_is_lost_with_a_process() -> None:
    with several_broker_processes(2) as several:
        bootstrap = {"bootstrap.servers": several.bootstrap}
        admin = AdminClient(bootstrap)
        [created] = admin.create_topics([NewTopic("readings", 6, 1)]).values()
        created.result(10)
        acknowledged: set[bytes] = set()
        producer = Producer({**bootstrap, "acks": "all"})
        for number in range(2000):
            producer.produce(
                "readings",
                str(number),
                on_delivery=lambda error, message: error is None and acknowledged.add(message.value()),
            )
            producer.poll(0)
            if number == 1000:
                producer.flush(20)
                killed = several.pid_of(1)
                os.kill(killed, signal.SIGKILL)
        wait_until(lambda: several.pid_of(1) != killed, "the broker is back")
        producer.flush(30)
        assert len(acknowledged) == 2000
        consumer = Consumer({**bootstrap, "group.id": "all", "auto.offset.reset": "earliest"})
        consumer.subscribe(["readings"])
        found: set[bytes] = set()
        until = time.monotonic() + 60
        while acknowledged - found and time.monotonic() < until:
            found |= {each.value() for each in consumer.consume(500, 1.0) if each.error() is None}
        consumer.close()
        assert acknowledged <= found
        assert several.stop() == 0
