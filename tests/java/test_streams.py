"""Kafka Streams, exactly once, as its users have it: it and the broker are killed, and every count is right."""

import itertools
import subprocess
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from random import Random

import attrs
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from bench.peers.kafka import class_path
from tests.devtools.external.clients import DEADLINE_SECONDS, poll_until, read_committed, wait_until
from tests.devtools.external.tools import RunningTool
from tests.devtools.processes.process import broker_process
from tests.java.java_tools import JVM_FLAGS

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

DIRECTORY = Path(__file__).parent / "streams"
PARTITION_COUNT = 4
LINES_A_ROUND = 1_500
WORDS_A_LINE = 4
WORDS = [f"word{number}" for number in range(200)]
FLUSH_OFTEN = ("--flush-interval", "1s", "--flush-objects-per-minute", "100000", "--compaction-check-interval", "1s")
CATCH_UP_SECONDS = 180.0  # on a busy machine; a killed member is waited for until its session has timed out


@attrs.define(eq=False)
class Counts:
    """What a consumer of committed records has read of the output: the counts of each word, as they came."""

    consumer: Consumer
    by_word: dict[str, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    total: int = 0

    def poll(self):
        for message in self.consumer.consume(1000, 0.1):
            if message.error() is None:
                self.by_word[message.key().decode()].append(int(message.value()))
                self.total += 1

    def wait_for(self, total):
        poll_until(lambda: self.total >= total, self.poll, what=f"{total} counts", seconds=CATCH_UP_SECONDS)


@pytest.fixture
def broker():
    with broker_process(*FLUSH_OFTEN) as process:
        yield process


@pytest.fixture
def counts(broker, name):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic(each, PARTITION_COUNT, 1) for each in (f"{name}-lines", f"{name}-counts")]
    for future in admin.create_topics(topics).values():
        future.result(DEADLINE_SECONDS)
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    with closing(Consumer({**config, "reconnect.backoff.max.ms": 500})) as consumer:
        consumer.assign([TopicPartition(f"{name}-counts", partition, 0) for partition in range(PARTITION_COUNT)])
        yield Counts(consumer)


def word_count(broker, name, directory):
    """A process of Streams' that runs."""
    path = class_path(DIRECTORY / "pom.xml")
    arguments = (broker.bootstrap, name, f"{name}-lines", f"{name}-counts", str(directory))
    command = ["java", *JVM_FLAGS, "-cp", path, str(DIRECTORY / "WordCount.java"), *arguments]
    return RunningTool(process=subprocess.Popen(command, stdout=subprocess.PIPE, text=True))


def write_lines(broker, name, random):
    """Return the words of one round's lines, which are acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 20})
    found = Counter()
    for number in range(LINES_A_ROUND):
        words = random.choices(WORDS, k=WORDS_A_LINE)
        found.update(words)
        producer.produce(f"{name}-lines", " ".join(words), partition=number % PARTITION_COUNT)
    assert producer.flush(DEADLINE_SECONDS) == 0
    return found


def configs(broker, topic):
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})  # what it is asked ends with it
    (future,) = admin.describe_configs([resource]).values()
    return {entry.name: entry.value for entry in future.result(DEADLINE_SECONDS).values()}


def changes(broker, name):
    """The state's records, as pairs of a word and its count; what was compacted is not among them."""
    found = read_committed(broker.bootstrap, f"{name}-counts-changelog", PARTITION_COUNT)
    return [(each.key().decode(), int.from_bytes(each.value(), "big")) for each in itertools.chain(*found)]


def wait_for_compaction(broker, name, count):
    """Wait until the state has fewer records than it had changes."""
    wait_until(
        lambda: len(changes(broker, name)) < count, "the state's topic to be compacted", seconds=CATCH_UP_SECONDS
    )


def starts(counts, topic):
    return [counts.consumer.get_watermark_offsets(TopicPartition(topic, each))[0] for each in range(PARTITION_COUNT)]


def test_words_are_counted_exactly_once_though_streams_and_broker_are_killed(broker, counts, name, tmp_path):
    random, expected = Random(name), Counter()
    running = word_count(broker, name, tmp_path)
    try:
        for killed in ("streams", "broker", "streams", "streams after compaction", None):
            before = expected.total()
            if killed == "streams after compaction":
                counts.wait_for(before)
                wait_for_compaction(broker, name, before)
            expected += write_lines(broker, name, random)
            if killed is None:
                break
            counts.wait_for(before + LINES_A_ROUND)  # amid the round: each line is several words
            if killed == "broker":
                broker.restart(kill=True)
            else:
                running.process.kill()
                running.wait()
                running = word_count(broker, name, tmp_path)
        counts.wait_for(expected.total())
        assert configs(broker, f"{name}-counts-changelog")["cleanup.policy"] == "compact"
        assert dict(changes(broker, name)) == expected
        wait_until(lambda: all(starts(counts, f"{name}-words-repartition")), "a purge", seconds=CATCH_UP_SECONDS)
        running.process.terminate()
        assert running.wait() == 143  # by the signal, after its shutdown hook
    finally:
        running.__exit__()
    counts.poll()
    assert counts.by_word == {word: list(range(1, count + 1)) for word, count in expected.items()}
