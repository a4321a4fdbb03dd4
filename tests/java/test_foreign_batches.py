"""Hold the tables of foreign batches to Apache Kafka itself and to Java's consumer."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers import RunningBroker
from bench.peers.kafka import KafkaBroker, class_path
from kafscale.wire import error_codes
from kafscale.wire.batch_header import DELETE_HORIZON, LOG_APPEND_TIME
from tests.api.produce.foreign_frames import TAKEN, VALUES, foreign_batches
from tests.api.produce.foreign_headers import foreign_headers, sealed
from tests.devtools.external.clients import DEADLINE_SECONDS, wait_until
from tests.devtools.processes.process import broker_process
from tests.java.java_tools import JavaTools
from tests.process.raw_produce import error_codes_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

TOPIC = "foreign"


def create_topic(bootstrap: str, topic: str, partitions_count: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions_count, 1, config=config)])[topic].result(DEADLINE_SECONDS)
    wait_until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == partitions_count, "all partitions")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with KafkaBroker("kafka", {}, tmp_path_factory.mktemp("kafka")).running() as running:
        yield running


def test_apache_kafka_gives_each_batch_form_the_error_code_of_the_table(kafka: RunningBroker) -> None:
    forms = foreign_batches()
    create_topic(str(kafka.address), TOPIC, len(forms))
    codes = error_codes_of(kafka.address, TOPIC, [form.batch for form in forms], same=False)
    answers = {form.name: code for form, code in zip(forms, codes, strict=True)}
    assert answers == {form.name: form.foreign.kafka for form in forms}


def test_apache_kafka_gives_each_header_the_error_code_of_the_table(kafka: RunningBroker) -> None:
    headers = foreign_headers()
    create_topic(str(kafka.address), "headers", len(headers))
    codes = error_codes_of(kafka.address, "headers", [each.frame for each in headers.values()], same=False)
    answers = dict(zip(headers, codes, strict=True))
    assert answers == {name: each.kafka for name, each in headers.items()}


def test_apache_kafka_refuses_marked_batches_for_a_topic_with_log_append_time(kafka: RunningBroker) -> None:
    create_topic(str(kafka.address), "stamped", 1, **{"message.timestamp.type": "LogAppendTime"})
    batches = [sealed(attributes=LOG_APPEND_TIME), sealed(attributes=DELETE_HORIZON)]
    codes = error_codes_of(kafka.address, "stamped", batches, same=True)
    assert codes == [error_codes.INVALID_TIMESTAMP, error_codes.NONE]


def test_java_reads_every_batch_form_our_broker_accepts() -> None:
    taken = [form for form in foreign_batches() if form.foreign.expected == TAKEN]
    with broker_process() as broker:
        create_topic(broker.bootstrap, TOPIC, 1)
        codes = error_codes_of(broker.kafka, TOPIC, [form.batch for form in taken], same=True)
        assert codes == [TAKEN] * len(taken)
        java = JavaTools(bootstrap=broker.bootstrap, class_path=class_path())
        count = len(VALUES) * len(taken)
        read = java("consumer.ConsoleConsumer", "--topic", TOPIC, "--from-beginning", "--max-messages", str(count))
    assert read.split("\n")[:-1] == [value.decode() for value in VALUES] * len(taken)
