"""Kafka's TransactionalMessageCopier, which its own tests of transactions run: it and the broker are killed."""

from contextlib import ExitStack

import pytest

from bench.peers.kafka import class_path
from tests.devtools.external.clients import read_committed
from tests.java.java_tools import JavaTools

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

PARTITION_COUNT = 2
RECORD_COUNT = 24_000  # one copier alone takes three seconds for 6,000, as long as the other to join
TRANSACTION_SIZE = 20
CATCH_UP_SECONDS = 180.0  # on a busy machine; a killed member is waited for until its session has timed out


def processed(copier):
    """How many records this process has copied, by its own account."""
    return max((event["totalProcessed"] for event in list(copier.events)), default=0)


@pytest.mark.parametrize("mode", [[], ["--group-mode", "--use-group-metadata"]], ids=["assigned", "group"])
def test_each_record_is_copied_once_though_broker_and_copier_are_killed(own_broker, name, mode):
    """A copier with an assigned partition is not killed: it asks for its offset before it ends what was left open."""
    java = JavaTools(bootstrap=own_broker.bootstrap, class_path=class_path())
    source, target = f"{name}-from", f"{name}-to"
    for topic in (source, target):
        java("TopicCommand", "--create", "--topic", topic, "--partitions", str(PARTITION_COUNT))
    # Without keys it may put all of them into one partition, and the other copier would have none to begin with.
    java("VerifiableProducer", "--topic", source, "--max-messages", str(RECORD_COUNT), "--repeating-keys", "100")
    with ExitStack() as stack:

        def copy(partition):
            where = ["--input-topic", source, "--input-partition", str(partition), "--output-topic", target]
            who = ["--consumer-group", name, "--transactional-id", f"{name}-{partition}", *mode]
            how = ["--transaction-size", str(TRANSACTION_SIZE), "--enable-random-aborts"]
            return stack.enter_context(java.start("TransactionalMessageCopier", *where, *who, *how))

        def wait_until(condition, what):
            first.wait_until(condition, what, seconds=CATCH_UP_SECONDS)

        first, second = copy(0), copy(1)
        wait_until(lambda: min(processed(first), processed(second)) >= 300, "both to copy")
        own_broker.restart(kill=True)
        before = processed(first)
        wait_until(lambda: processed(first) >= before + 300, "the first to copy again")
        if mode:
            first.process.kill()
            first = copy(0)
        assert first.process.wait(CATCH_UP_SECONDS) == second.process.wait(CATCH_UP_SECONDS) == 0
        assert first.events
    stored = read_committed(own_broker.bootstrap, source, PARTITION_COUNT, RECORD_COUNT)
    copied = read_committed(own_broker.bootstrap, target, PARTITION_COUNT, RECORD_COUNT)
    values = [[message.value() for message in each] for each in copied]
    assert values == [[message.value() for message in each] for each in stored]
    assert sum(map(len, values)) == RECORD_COUNT
    written = [each[-1].offset() + 1 for each in copied]
    assert sum(written) > RECORD_COUNT + RECORD_COUNT // TRANSACTION_SIZE  # with markers, and what was aborted
