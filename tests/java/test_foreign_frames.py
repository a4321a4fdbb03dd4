"""What the table of codecs and forms says of Apache Kafka, held by Apache Kafka itself and by Java's consumer."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.kafka import KafkaBroker, class_path
from tests.devtools.clients import DEADLINE_SECONDS, wait_until
from tests.devtools.foreign_frames import TAKEN, VALUES, foreign_batches
from tests.devtools.java import JavaTools
from tests.devtools.process import broker_process
from tests.devtools.raw_produce import error_codes_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

TOPIC = "foreign"


def create_topic(bootstrap: str, partitions_count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions_count, 1)])[TOPIC].result(DEADLINE_SECONDS)
    wait_until(lambda: len(admin.list_topics(TOPIC).topics[TOPIC].partitions) == partitions_count, "all partitions")


def test_apache_kafka_answers_as_the_table_says(tmp_path: Path) -> None:
    forms = foreign_batches()
    with KafkaBroker("kafka", {}, tmp_path).running() as kafka:
        create_topic(str(kafka.address), len(forms))
        codes = error_codes_of(kafka.address, TOPIC, [form.batch for form in forms], same=False)
    answers = {form.name: code for form, code in zip(forms, codes, strict=True)}
    assert answers == {form.name: form.foreign.kafka for form in forms}


def test_java_reads_what_our_broker_takes() -> None:
    taken = [form for form in foreign_batches() if form.foreign.expected == TAKEN]
    with broker_process() as broker:
        create_topic(broker.bootstrap, 1)
        codes = error_codes_of(broker.kafka, TOPIC, [form.batch for form in taken], same=True)
        assert codes == [TAKEN] * len(taken)
        java = JavaTools(bootstrap=broker.bootstrap, class_path=class_path())
        count = len(VALUES) * len(taken)
        read = java("consumer.ConsoleConsumer", "--topic", TOPIC, "--from-beginning", "--max-messages", str(count))
    assert read.split("\n")[:-1] == [value.decode() for value in VALUES] * len(taken)
