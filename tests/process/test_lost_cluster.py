"""Idempotent producers that live on while their broker comes back with nothing: a new cluster at the old address."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.devtools.processes.process import BrokerProcess, broker_process

with warnings.catch_warnings():  # it reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer

# It leaves sockets open that could not connect; they must not be found, as garbage, in the tests of others.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

TOPIC = "orders"
TIMEOUT_SECONDS = 30.0


@contextmanager
def by_librdkafka(bootstrap: str) -> Iterator[Callable[[], int | str | None]]:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    answers: list[int | str | None] = []

    def note(error: KafkaError | None, message: Message) -> None:
        answers.append(message.offset() if error is None else error.name())

    def send() -> int | str | None:
        producer.produce(TOPIC, b"v", partition=0, on_delivery=note)
        producer.flush(TIMEOUT_SECONDS)
        return answers.pop()

    yield send


@contextmanager
def by_kafka_python(bootstrap: str) -> Iterator[Callable[[], int | str | None]]:
    with closing(KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)) as producer:
        yield lambda: producer.send(TOPIC, b"v", partition=0).get(TIMEOUT_SECONDS).offset


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with broker_process() as running:
        yield running


@pytest.mark.parametrize("client", [by_librdkafka, by_kafka_python], ids=lambda each: each.__name__)
def test_an_idempotent_producer_continues_after_its_cluster_lost_all_data(
    broker: BrokerProcess, client: Callable[[str], contextmanager[Callable[[], int | str | None]]]
) -> None:
    """It was refused with INVALID_PRODUCER_ID_MAPPING, after which clients lost the batch or ended."""
    with client(broker.bootstrap) as send:
        assert [send() for _ in range(3)] == [0, 1, 2]
        broker.kill()
        shutil.rmtree(broker.data_dir)
        broker.start()
        assert [send() for _ in range(3)] == [0, 1, 2]
