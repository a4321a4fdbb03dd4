"""kafka-python: produce, groups, administration, and the broker going away. It uses fetch sessions."""

import gc
import threading
import warnings
from contextlib import ExitStack, closing

import pytest

from tests.devtools.external.clients import (
    CODECS,
    DEADLINE_SECONDS,
    Acknowledged,
    Sample,
    poll_until,
    sample_records,
    wait_until,
)

with warnings.catch_warnings():  # it reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import (
        ConsumerRebalanceListener,
        KafkaAdminClient,
        KafkaConsumer,
        KafkaProducer,
        OffsetAndMetadata,
        TopicPartition,
        codec,
        errors,
    )
    from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor

# It leaves sockets open that could not connect; they must not be found, as garbage, in the tests of others.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <(socket|ssl.SSLSocket):ResourceWarning")

POLL_MS = 50
REBALANCE_MS = 1500
QUICK_RECONNECT = {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 100, "retry_backoff_ms": 20}
SAMPLES = [each for each in sample_records() if (each.key, each.value) != (None, None)]  # it refuses to send that one
INSTALLED_CODECS = [each for each in CODECS if each == "none" or getattr(codec, f"has_{each}")()]


@pytest.fixture
def opened():
    """Registers clients to close when the test is over."""
    with ExitStack() as stack:
        yield lambda client: stack.enter_context(closing(client))
    gc.collect()


@pytest.fixture
def admin(broker, opened):
    return opened(KafkaAdminClient(bootstrap_servers=broker.bootstrap))


def create(broker, topic, partitions=1, **configs):
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.create_topics({topic: {"num_partitions": partitions, "configs": configs}})


def producer_for(broker, **config):
    return KafkaProducer(bootstrap_servers=broker.bootstrap, **QUICK_RECONNECT, **config)


def produce_numbers(broker, topic, count, partitions=1):
    """Values 0 to count - 1, spread over the partitions; returns when all are acknowledged."""
    with closing(producer_for(broker)) as producer:
        futures = [producer.send(topic, b"%d" % number, partition=number % partitions) for number in range(count)]
        for future in futures:
            future.get(DEADLINE_SECONDS)


def consumer_for(broker, group=None, **config):
    return KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        heartbeat_interval_ms=200,
        **QUICK_RECONNECT,
        **config,
    )


def read_partitions(broker, topic, count, partitions=1, **config):
    """The first `count` records of all partitions, from the beginning, without a group."""
    records = []
    with closing(consumer_for(broker, **config)) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        poll_until(
            lambda: len(records) >= count,
            lambda: [records.extend(batch) for batch in consumer.poll(POLL_MS).values()],
            what=f"{count} records of {topic}",
        )
    return records


class Member(ConsumerRebalanceListener):
    """A consumer of a group that notes what it was given and what it read, in a thread of its own until it is closed.

    A poll must last longer than a rebalance (and so two can't take turns in one thread): in kafka-python 3.0.12, an
    assignment that arrives between two polls is lost, and the member is idle from then on.
    """

    def __init__(self, consumer, topic):
        self.consumer = consumer
        self.values = []
        self.events = []
        self.left = threading.Event()
        consumer.subscribe([topic], listener=self)
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def on_partitions_assigned(self, assigned):
        self.events.append(("assigned", len(assigned)))

    def on_partitions_revoked(self, revoked):
        self.events.append(("revoked", len(revoked)))

    def _read(self):
        with closing(self.consumer):
            while not self.left.is_set():
                for batch in self.consumer.poll(REBALANCE_MS, max_records=50).values():
                    self.values.extend(int(record.value) for record in batch)

    @property
    def partitions(self):
        return {each.partition for each in self.consumer.assignment()}

    def close(self):
        self.left.set()
        self.thread.join(DEADLINE_SECONDS)


@pytest.mark.parametrize("codec", INSTALLED_CODECS)
def test_sent_records_read_back_unchanged(broker, name, codec, opened):
    producer = opened(producer_for(broker, compression_type=None if codec == "none" else codec, linger_ms=50))
    for sample in SAMPLES:
        producer.send(name, sample.value, sample.key, list(sample.headers), 0, sample.timestamp_ms)
    producer.flush(DEADLINE_SECONDS)
    found = [
        Sample(record.key, record.value, tuple(record.headers), record.timestamp)
        for record in read_partitions(broker, name, len(SAMPLES))
    ]
    assert found == SAMPLES


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, CooperativeStickyAssignor])
def test_two_members_share_all_partitions_and_lose_nothing(broker, name, assignor, opened):
    create(broker, name, partitions=6)
    produce_numbers(broker, name, 300, partitions=6)

    def join():
        return opened(Member(consumer_for(broker, name, partition_assignment_strategy=[assignor]), name))

    first = join()
    wait_until(lambda: len(first.values) >= 50, "the first member reads")
    assert first.partitions == set(range(6))
    second = join()
    wait_until(lambda: len(first.partitions) == len(second.partitions) == 3, "half for each")
    assert first.partitions | second.partitions == set(range(6))
    produce_numbers(broker, name, 300, partitions=6)
    wait_until(lambda: len(second.values) >= 50, "the second member reads")
    second.close()
    wait_until(lambda: len(first.partitions) == 6, "all for the first again")
    wait_until(lambda: len(first.values) + len(second.values) >= 600, "all records")
    first.close()
    assert sorted(first.values + second.values) == sorted([*range(300), *range(300)])
    if assignor is CooperativeStickyAssignor:  # KIP-429: only what moves is revoked
        assert ("revoked", 3) in first.events
        assert ("revoked", 6) not in first.events[:-1]
    reader = opened(consumer_for(broker, name))
    assert [reader.committed(TopicPartition(name, partition)) for partition in range(6)] == [100] * 6


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_committed_offsets_outlast_the_broker(own_broker, name, kill, opened):
    produce_numbers(own_broker, name, 10)
    partition = TopicPartition(name, 0)
    with closing(consumer_for(own_broker, name)) as before:
        before.assign([partition])
        before.commit({partition: OffsetAndMetadata(7, "note", -1)})
    own_broker.restart(kill=kill)
    with closing(consumer_for(own_broker, name)) as after:
        committed = after.committed(partition, metadata=True)
    assert (committed.offset, committed.metadata) == (7, "note")
    member = opened(Member(consumer_for(own_broker, name), name))
    wait_until(lambda: len(member.values) >= 3, "what was not committed")
    assert member.values == [7, 8, 9]


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(broker, name, opened):
    create(broker, name, partitions=4)
    first, second = (
        opened(Member(consumer_for(broker, name, group_instance_id=each), name)) for each in ("first", "second")
    )
    wait_until(lambda: len(first.partitions) == len(second.partitions) == 2, "half for each")
    had, events = second.partitions, list(first.events)
    second.close()
    again = opened(Member(consumer_for(broker, name, group_instance_id="second"), name))
    wait_until(lambda: again.partitions, "partitions for the member that came back")
    assert again.partitions == had
    assert first.events == events


def test_offsets_are_found_by_time(broker, name, opened):
    with closing(producer_for(broker)) as producer:
        for number in range(10):
            producer.send(name, b"v", partition=0, timestamp_ms=1_000_000 + 1000 * number).get(DEADLINE_SECONDS)
    partition = TopicPartition(name, 0)
    consumer = opened(consumer_for(broker))
    wanted = {999_000: 0, 1_000_000: 0, 1_004_001: 5, 1_009_000: 9, 1_009_001: None}
    found = {time_ms: consumer.offsets_for_times({partition: time_ms})[partition] for time_ms in wanted}
    assert {time_ms: each and each.offset for time_ms, each in found.items()} == wanted
    assert (found[1_004_001].timestamp, consumer.end_offsets([partition])) == (1_005_000, {partition: 10})
    consumer.assign([partition])
    consumer.seek(partition, found[1_004_001].offset)
    records = []
    poll_until(lambda: records, lambda: records.extend(*consumer.poll(POLL_MS).values()), what="a record")
    assert (records[0].offset, records[0].timestamp) == (5, 1_005_000)


def test_topics_are_administered(admin, name):
    admin.create_topics({name: {"num_partitions": 2, "configs": {"retention.ms": "3600000"}}})
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics({name: {"num_partitions": 2}})
    admin.create_partitions({name: 5})
    wait_until(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 5, "more partitions")
    assert described_configs(admin, name) == {"retention.ms": "3600000"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "7200000"})])
    wait_until(lambda: described_configs(admin, name) == {"retention.ms": "7200000"}, "the new config")
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": None})])
    wait_until(lambda: described_configs(admin, name) == {}, "no config")
    admin.delete_topics([name])
    wait_until(lambda: name not in admin.list_topics(), "no topic")
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics([name])


def described_configs(admin, topic):
    """Those that were set on the topic."""
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    configs = described["topic"][topic]
    return {key: each["value"] for key, each in configs.items() if each["config_source"] == "DYNAMIC_TOPIC_CONFIG"}


def test_the_cluster_is_described(admin, broker, name):
    produce_numbers(broker, name, 10)
    cluster = admin.describe_cluster()
    assert [(node["broker_id"], node["port"]) for node in cluster["brokers"]] == [(0, broker.kafka.port)]
    (directory,) = admin.describe_log_dirs([name])
    (topic,) = directory["log_dirs"][0]["topics"]
    assert (topic["name"], topic["partitions"][0]["partition_size"] > 0) == (name, True)


def test_groups_are_administered(admin, broker, name, opened):
    produce_numbers(broker, name, 10)
    partition = TopicPartition(name, 0)
    member = opened(Member(consumer_for(broker, name, client_id="somebody"), name))
    wait_until(lambda: len(member.values) == 10, "all records")
    assert [each["group_state"] for each in admin.list_groups() if each["group_id"] == name] == ["Stable"]
    described = admin.describe_groups([name])[name]
    assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
    assert [each["client_id"] for each in described["members"]] == ["somebody"]
    assert "NonEmptyGroup" in str(admin.delete_groups([name])[name])
    member.close()
    admin.alter_group_offsets(name, {partition: OffsetAndMetadata(4, "", -1)})
    assert admin.list_group_offsets(name)[name][partition].offset == 4
    admin.delete_group_offsets(name, [partition])
    assert partition not in admin.list_group_offsets(name)[name]
    admin.delete_groups([name])
    assert name not in [each["group_id"] for each in admin.list_groups()]


def test_records_are_deleted_and_offsets_listed(admin, broker, name):
    produce_numbers(broker, name, 10)
    partition = TopicPartition(name, 0)
    assert admin.delete_records({partition: 6})[partition]["low_watermark"] == 6
    assert [int(record.value) for record in read_partitions(broker, name, 4)] == [6, 7, 8, 9]
    earliest, latest, highest = (
        admin.list_partition_offsets({partition: spec})[partition].offset
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP)
    )
    assert (earliest, latest) == (6, 10)
    assert 6 <= highest <= 9


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_idempotent_records_stay_unique_and_ordered_across_a_broker_restart(own_broker, name, kill, opened):
    create(own_broker, name, partitions=3)
    producer = opened(producer_for(own_broker, batch_size=500, linger_ms=1))  # 5 in flight and idempotent by default
    futures, stopped = [], threading.Event()

    def send():
        while not stopped.wait(0.0002):
            number = len(futures)
            futures.append(producer.send(name, b"%d" % number, partition=number % 3))

    def acknowledged():
        return sum(future.succeeded() for future in list(futures))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        wait_until(lambda: acknowledged() >= 500, "acknowledgements")
        own_broker.restart(kill=kill)
        before = acknowledged()
        wait_until(lambda: acknowledged() >= before + 500, "acknowledgements")
    finally:
        stopped.set()
        sender.join()
    result = Acknowledged()
    for number, future in enumerate(futures):
        stored = future.get(DEADLINE_SECONDS)
        result.add(stored.partition, b"%d" % number, stored.offset)
    records = read_partitions(own_broker, name, len(futures), partitions=3)
    result.check(
        [(record.partition, record.offset, record.value) for record in records],
        lambda partition: [b"%d" % number for number in range(partition, len(futures), 3)],
    )


def test_large_messages_go_both_ways_and_one_too_large_is_refused(broker, name, opened):
    create(broker, name, **{"max.message.bytes": "12000000"})
    producer = opened(producer_for(broker, max_request_size=20_000_000))
    assert producer.send(name, bytes(10_000_000), partition=0).get(DEADLINE_SECONDS).offset == 0
    with pytest.raises(errors.MessageSizeTooLargeError):
        producer.send(name, bytes(13_000_000), partition=0).get(DEADLINE_SECONDS)
    (record,) = read_partitions(broker, name, 1)
    assert record.value == bytes(10_000_000)


def test_a_topic_is_created_by_use(broker, name, admin, opened):
    produce_numbers(broker, name, 1)
    assert [record.value for record in read_partitions(broker, name, 1)] == [b"0"]
    opened(Member(consumer_for(broker, name), f"{name}-by-reading"))
    wait_until(lambda: f"{name}-by-reading" in admin.list_topics(), "the topic")


def test_a_fetch_session_follows_a_hundred_and_fifty_partitions(broker, name, opened):
    """KIP-227: after the first fetch, only partitions that changed are named in requests and replies."""
    create(broker, name, partitions=150)
    produce_numbers(broker, name, 600, partitions=150)
    member = opened(Member(consumer_for(broker, name), name))
    wait_until(lambda: len(member.values) >= 600, "all records")
    produce_numbers(broker, name, 600, partitions=150)
    wait_until(lambda: len(member.values) >= 1200, "the records that came later")
    assert sorted(member.values) == sorted([*range(600), *range(600)])
