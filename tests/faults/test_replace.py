"""A machine with `--durability wal` is gone: nobody leads its partitions until an operator accepts the loss."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.devtools.external.clients import wait_until
from tests.devtools.processes.several_processes import bootstrap_of, broker_processes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

TOPIC = "orders"
PARTITIONS = 6
QUIET = {"log_level": 2}


def kafscale(*arguments: str, code: int = 0) -> str:
    """Return what a command has written to stdout, or to stderr if it is to fail."""
    command = [sys.executable, "-m", "kafscale", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def produce(bootstrap: str, value: str) -> None:
    """Produce a record to each partition."""
    producer = Producer({**QUIET, "bootstrap.servers": bootstrap, "acks": "all"})
    failed: list[KafkaError] = []
    for index in range(PARTITIONS):
        producer.produce(
            TOPIC, f"{value} {index}", partition=index, on_delivery=lambda error, _: error and failed.append(error)
        )
    assert producer.flush(60) == 0
    assert failed == []


def read(bootstrap: str) -> dict[int, list[str]]:
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    found: dict[int, list[str]] = {index: [] for index in range(PARTITIONS)}
    ended: set[int | None] = set()
    try:
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        while len(ended) < PARTITIONS:
            message = consumer.poll(60)
            assert message is not None
            error = message.error()
            if error is None:
                index, value = message.partition(), message.value()
                assert index is not None
                assert isinstance(value, bytes)
                found[index].append(value.decode().split()[0])
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
    finally:
        consumer.close()
    return found


def test_accepting_the_loss_of_a_broker_moves_its_partitions_to_other_leaders() -> None:
    with broker_processes(3, "--durability", "wal", "--flush-interval", "1h") as brokers:
        one, two, _three = brokers
        bootstrap, ask = bootstrap_of(brokers), ("--bootstrap", one.bootstrap)
        kafscale("topics", "create", TOPIC, "--partitions", str(PARTITIONS), *ask)
        produce(bootstrap, "flushed")
        for broker in brokers:
            kafscale("flush", "--admin", str(broker.admin))
        produce(bootstrap, "acknowledged")
        described = json.loads(kafscale("brokers", "describe", "2", "--json", *ask))
        lost = {each["partition"] for each in described["partitions"] if each["topic"] == TOPIC}
        assert len(lost) == 2
        two.kill()

        def state() -> str:
            rows = json.loads(kafscale("brokers", "list", "--json", *ask))
            return next(str(each["state"]) for each in rows if each["broker"] == 2)

        wait_until(lambda: state() == "away", "it is known that broker 2 is lost")
        said = kafscale("brokers", "replace", "2", *ask, code=1)
        assert "partitions wait for broker 2: start it again on its data directory to lose nothing" in said
        assert "others lead the" in kafscale("brokers", "replace", "2", "--accept-loss", *ask)
        produce(bootstrap, "after")
        wanted = {
            index: ["flushed", *([] if index in lost else ["acknowledged"]), "after"] for index in range(PARTITIONS)
        }
        assert read(bootstrap) == wanted
        two.start()  # the machine comes back all the same
        kafscale("partitions", "balance", *ask)
        produce(bootstrap, "later")
        assert read(bootstrap) == {index: [*values, "later"] for index, values in wanted.items()}
