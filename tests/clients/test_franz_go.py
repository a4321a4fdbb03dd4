"""franz-go, the Go client, copying exactly once in a group whose members come and go: run by `make test-go`."""

import shutil
import subprocess
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.clients import DEADLINE_SECONDS, read_committed
from tests.devtools.external.tools import RunningTool, go_program

pytestmark = [
    pytest.mark.go,
    pytest.mark.timeout(1200),  # the first test may wait for downloads
    pytest.mark.skipif(shutil.which("go") is None, reason="Go is not on the PATH"),
]

PARTITION_COUNT = 6
RECORD_COUNT = 100_000
PART_COUNT = 4  # of the input; each has its own trouble
CATCH_UP_SECONDS = 180.0  # on a busy machine; a killed member is waited for until its session has timed out


@pytest.fixture(scope="module")
def etl():
    """The program, built from its source."""
    return go_program("etl")


@pytest.fixture
def topics(own_broker, name):
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    found = f"{name}-from", f"{name}-to"
    for future in admin.create_topics([NewTopic(each, PARTITION_COUNT, 1) for each in found]).values():
        future.result(DEADLINE_SECONDS)
    return found


def write(broker, topic, part):
    """A part of the input, which is numbered."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 20})
    size = RECORD_COUNT // PART_COUNT
    for number in range(part * size, (part + 1) * size):
        producer.produce(topic, b"%d" % number, partition=number % PARTITION_COUNT)
    assert producer.flush(DEADLINE_SECONDS) == 0


def committed(*members):
    """How many records the members say that they have copied."""
    return sum(event["records"] for member in members for event in member.named("committed"))


def partitions(member):
    """How many the member has now, by its own account."""
    events = list(member.events)
    given = sum(each["partitions"] for each in events if each["name"] == "assigned" and "partitions" in each)
    return given - sum(each["partitions"] for each in events if each["name"] == "revoked" and "partitions" in each)


def close(member):
    """Have it end in order, after its transaction."""
    member.process.stdin.close()
    assert member.wait() == 0
    assert member.named("closed")


def test_records_are_copied_exactly_once_while_members_come_and_go(etl, own_broker, topics, name):
    source, target = topics
    with ExitStack() as stack:

        def join(member):
            arguments = ["--from", source, "--to", target, "--group", name, "--transactional-id", f"{name}-{member}"]
            command = [
                str(etl),
                "--bootstrap-server",
                own_broker.bootstrap,
                *arguments,
                "--records",
                "500",
                "--abort-every",
                "10",
            ]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            return stack.enter_context(RunningTool(process=process))

        def wait_until(condition, what):
            first.wait_until(condition, what, seconds=CATCH_UP_SECONDS)

        first = join("first")
        write(own_broker, source, 0)
        wait_until(lambda: committed(first) > 5000, "the first to copy")
        own_broker.restart(kill=True)
        second = join("second")
        write(own_broker, source, 1)
        wait_until(lambda: partitions(second) == 3 and committed(second) > 5000, "the second to copy its half")
        close(second)
        third = join("third")
        write(own_broker, source, 2)
        wait_until(lambda: partitions(third) == 3 and committed(third) > 5000, "the third to copy its half")
        write(own_broker, source, 3)
        third.process.kill()
        third.process.stdin.close()
        wait_until(lambda: partitions(first) == PARTITION_COUNT, "the first to have all partitions")
        wait_until(lambda: committed(first, second, third) >= RECORD_COUNT - 500, "everything")  # the killed one's last
        copied = read_committed(own_broker.bootstrap, target, PARTITION_COUNT, RECORD_COUNT)
        close(first)
    expected = [[b"%d" % number for number in range(each, RECORD_COUNT, PARTITION_COUNT)] for each in range(6)]
    assert [[message.value() for message in each] for each in copied] == expected
    assert first.named("aborted")
    assert not first.named("failed")
