"""kill -9 at random moments under load: nothing acknowledged is lost, repeated or moved.

FAULTS_SEED chooses the seed, which is printed; FAULTS_CYCLES how many kills the slow suite makes in each mode.
"""

from __future__ import annotations

import os
from pathlib import Path

import confluent_kafka
import pytest
import trio

from tests.devtools.history.history import History
from tests.devtools.processes.process import BrokerProcess
from tests.devtools.world.workload import Topic, encode_value
from tests.faults.ordeal import OPTIONS, Ordeal, chosen_seed

CYCLES_COUNT = int(os.environ.get("FAULTS_CYCLES", "50"))
DEFAULT_CYCLES_COUNT = 3
LIFE_MAX_SECONDS = 0.8
BUCKET_LOOK_EVERY = 5  # cycles: each look reads all of it
PAUSE_SECONDS = 0.005


async def produce_with_librdkafka(ordeal: Ordeal, topic: Topic, history: History, stopping: trio.Event) -> None:
    """An idempotent producer of librdkafka; its callbacks are called by `poll`, so on this thread."""
    failures: list[str] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": ordeal.broker.bootstrap,
            "enable.idempotence": True,
            "message.timeout.ms": 0,  # never give up
            "linger.ms": 2,
            "retry.backoff.ms": 10,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )

    def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        value = message.value().partition(b" ")[0].decode()
        if error is not None:
            failures.append(f"{value}: {error}")
        else:
            offset = message.offset()
            history.acknowledged(topic.partition_name(message.partition()), value, offset if offset >= 0 else None)

    number = 0
    while len(producer) or not stopping.is_set():
        for _ in range(0 if stopping.is_set() or len(producer) > 500 else 5):
            partition, value = number % topic.partition_count, f"librdkafka:{number}"
            history.sent("librdkafka", topic.partition_name(partition), value)
            producer.produce(topic.name, encode_value(value, number % 300), partition=partition, on_delivery=delivered)
            number += 1
        producer.poll(0)
        await trio.sleep(PAUSE_SECONDS)
    assert failures == []


async def kill_and_restart(ordeal: Ordeal, cycles_count: int) -> None:
    broker = ordeal.broker
    for cycle in range(cycles_count):
        hastily = ordeal.random.random() < 0.2  # while it still hears from everybody who has waited
        await trio.sleep(ordeal.random.uniform(0, 0.05 if hastily else LIFE_MAX_SECONDS))
        assert broker.returncode is None, f"the broker ended by itself: {broker.log[-2000:]}"
        await trio.to_thread.run_sync(broker.kill)
        if cycle % BUCKET_LOOK_EVERY == 0:
            await ordeal.look_at_bucket()
        await trio.to_thread.run_sync(broker.start)


async def run_cycles(directory: Path, durability: str, cycles_count: int) -> None:
    with BrokerProcess(directory=directory, options=[*OPTIONS, "--durability", durability]) as broker:
        ordeal = Ordeal(broker, chosen_seed())

        async def librdkafka(topic: Topic, history: History, stopping: trio.Event) -> None:
            await produce_with_librdkafka(ordeal, topic, history, stopping)

        await ordeal.run(lambda: kill_and_restart(ordeal, cycles_count), more_clients=[librdkafka])
        print(f"{cycles_count} kills, {ordeal.history.acknowledged_count} records acknowledged")
        assert ordeal.problems() == []
        assert ordeal.history.acknowledged_count > 50 * cycles_count  # otherwise nothing was tried


@pytest.mark.timeout(300)  # half a minute, where nobody else uses the machine
async def test_a_few_kills(tmp_path: Path) -> None:
    await run_cycles(tmp_path, "wal", DEFAULT_CYCLES_COUNT)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("durability", ["wal", "segment"])
async def test_many_kills(tmp_path: Path, durability: str) -> None:
    await run_cycles(tmp_path, durability, CYCLES_COUNT)
