"""confluent-kafka, which is librdkafka: produce, groups, administration, and the broker going away."""

import itertools
import threading
from urllib.request import urlopen

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from kafscale.testing.background_broker import running_broker
from tests.devtools.external.clients import CODECS, DEADLINE_SECONDS, Acknowledged, Sample, poll_until, sample_records
from tests.devtools.processes.process import broker_process

POLL_SECONDS = 0.05
UNDER_WAY_MAX_COUNT = 2_000  # of records, while a broker that is away comes back
QUICK_RECONNECT = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}


def results(futures):
    """Those of an admin call, which has a future for each thing asked about."""
    return {key: future.result(DEADLINE_SECONDS) for key, future in futures.items()}


def admin_for(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def create(broker, topic, partitions=1, **config):
    admin = admin_for(broker)  # kept until the call is over: without it, the call fails
    results(admin.create_topics([NewTopic(topic, partitions, config=config)]))


def producer_for(broker, **config):
    return Producer({"bootstrap.servers": broker.bootstrap, **QUICK_RECONNECT, **config})


def produce_numbers(broker, topic, count, partitions=1, **config):
    """Values 0 to count - 1, spread over the partitions; returns when all are acknowledged."""
    producer = producer_for(broker, **config)
    failures = []
    for number in range(count):
        producer.produce(
            topic,
            str(number).encode(),
            partition=number % partitions,
            on_delivery=lambda error, _: error and failures.append(error),
        )
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert not failures


def consumer_for(broker, group, **config):
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "heartbeat.interval.ms": 200,  # by which a member learns of a rebalance
            "topic.metadata.refresh.interval.ms": 500,
            **QUICK_RECONNECT,
            **config,
        }
    )


def read_partitions(broker, topic, count, partitions=1, **config):
    """The first `count` messages of all partitions, from the beginning, without a group's assignment."""
    consumer = consumer_for(broker, f"reader-of-{topic}", **config)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    messages = []
    poll_until(
        lambda: len(messages) >= count,
        lambda: messages.extend(consumer.consume(count - len(messages), POLL_SECONDS)),
        what=f"{count} messages of {topic}",
    )
    consumer.close()
    assert not any(message.error() for message in messages)
    return messages


class Member:
    """A consumer of a group that notes what it was given and what it read."""

    def __init__(self, broker, group, topic, **config):
        self.consumer = consumer_for(broker, group, **config)
        self.values = []
        self.events = []
        self.consumer.subscribe(
            [topic],
            on_assign=lambda _, partitions: self.events.append(("assigned", len(partitions))),
            on_revoke=lambda _, partitions: self.events.append(("revoked", len(partitions))),
        )

    @property
    def partitions(self):
        return {each.partition for each in self.consumer.assignment()}

    def poll(self):
        for message in self.consumer.consume(50, POLL_SECONDS):
            assert message.error() is None
            self.values.append(int(message.value()))

    def poll_until(self, condition, what, *others):
        poll_until(condition, lambda: [each.poll() for each in (self, *others)], what=what)


@pytest.mark.parametrize("codec", CODECS)
def test_sent_records_read_back_unchanged(broker, name, codec):
    producer = producer_for(broker, **{"compression.type": codec, "linger.ms": 50})
    for sample in sample_records():
        producer.produce(name, sample.value, sample.key, 0, timestamp=sample.timestamp_ms, headers=list(sample.headers))
    assert producer.flush(DEADLINE_SECONDS) == 0
    found = [
        Sample(message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1])
        for message in read_partitions(broker, name, len(sample_records()))
    ]
    assert found == sample_records()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_two_members_share_all_partitions_and_lose_nothing(broker, name, strategy):
    create(broker, name, partitions=6)
    produce_numbers(broker, name, 300, partitions=6)
    first = Member(broker, name, name, **{"partition.assignment.strategy": strategy})
    first.poll_until(lambda: len(first.values) >= 50, "the first member reads")
    assert first.partitions == set(range(6))
    second = Member(broker, name, name, **{"partition.assignment.strategy": strategy})
    first.poll_until(lambda: len(first.partitions) == len(second.partitions) == 3, "half for each", second)
    assert first.partitions | second.partitions == set(range(6))
    produce_numbers(broker, name, 300, partitions=6)
    first.poll_until(lambda: len(second.values) >= 50, "the second member reads", second)
    second.consumer.close()
    first.poll_until(lambda: len(first.partitions) == 6, "all for the first again")
    first.poll_until(lambda: len(first.values) + len(second.values) >= 600, "all messages")
    first.consumer.close()
    assert sorted(first.values + second.values) == sorted([*range(300), *range(300)])
    if strategy == "cooperative-sticky":  # KIP-429: only what moves is revoked
        assert ("revoked", 3) in first.events
        assert ("revoked", 6) not in first.events[:-1]
    committed = consumer_for(broker, name).committed([TopicPartition(name, each) for each in range(6)])
    assert [each.offset for each in committed] == [100] * 6


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_committed_offsets_outlast_the_broker(own_broker, name, kill):
    produce_numbers(own_broker, name, 10)
    consumer = consumer_for(own_broker, name)
    consumer.commit(offsets=[TopicPartition(name, 0, 7, "note")], asynchronous=False)
    own_broker.restart(kill=kill)
    (committed,) = consumer_for(own_broker, name).committed([TopicPartition(name, 0)], DEADLINE_SECONDS)
    assert (committed.offset, committed.metadata) == (7, "note")
    member = Member(own_broker, name, name)
    member.poll_until(lambda: len(member.values) >= 3, "what was not committed")
    member.consumer.close()
    assert member.values == [7, 8, 9]


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(broker, name):
    create(broker, name, partitions=4)
    first = Member(broker, name, name, **{"group.instance.id": "first"})
    second = Member(broker, name, name, **{"group.instance.id": "second"})
    first.poll_until(lambda: len(first.partitions) == len(second.partitions) == 2, "half for each", second)
    had, events = second.partitions, list(first.events)
    second.consumer.close()
    again = Member(broker, name, name, **{"group.instance.id": "second"})
    again.poll_until(lambda: again.partitions, "partitions for the member that came back", first)
    assert again.partitions == had
    assert first.events == events
    first.consumer.close()
    again.consumer.close()


def test_offsets_are_found_by_time(broker, name):
    producer = producer_for(broker)
    for number in range(10):
        producer.produce(name, b"v", partition=0, timestamp=1_000_000 + 1000 * number)
        producer.flush(DEADLINE_SECONDS)
    consumer = consumer_for(broker, name)
    wanted = {999_000: 0, 1_000_000: 0, 1_004_001: 5, 1_009_000: 9, 1_009_001: -1}  # -1: the end
    found = {
        time_ms: consumer.offsets_for_times([TopicPartition(name, 0, time_ms)], DEADLINE_SECONDS)[0].offset
        for time_ms in wanted
    }
    assert found == wanted
    consumer.assign([TopicPartition(name, 0, found[1_004_001])])
    message = consumer.poll(DEADLINE_SECONDS)
    assert (message.offset(), message.timestamp()[1]) == (5, 1_005_000)
    consumer.close()


def test_topics_are_administered(broker, name):
    admin = admin_for(broker)
    create(broker, name, partitions=2, **{"retention.ms": "3600000"})
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        create(broker, name)
    results(admin.create_partitions([NewPartitions(name, 5)]))
    assert len(admin.list_topics(name, DEADLINE_SECONDS).topics[name].partitions) == 5
    assert described_config(admin, name, "retention.ms").value == "3600000"
    alteration = ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET)
    results(
        admin.incremental_alter_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[alteration])]
        )
    )
    assert described_config(admin, name, "retention.ms").value == "7200000"
    results(admin.delete_topics([name]))
    assert name not in admin.list_topics(timeout=DEADLINE_SECONDS).topics
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        results(admin.delete_topics([name]))


def described_config(admin, topic, config):
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    return results(admin.describe_configs([resource]))[resource][config]


def test_the_cluster_is_described(broker):
    admin = admin_for(broker)
    cluster = admin.describe_cluster().result(DEADLINE_SECONDS)
    assert [str(node.port) for node in cluster.nodes] == [broker.bootstrap.split(":")[1]]
    assert cluster.controller.id == 0
    assert cluster.cluster_id


def test_groups_are_administered(broker, name):
    admin = admin_for(broker)
    produce_numbers(broker, name, 10)
    member = Member(broker, name, name, **{"client.id": "somebody"})
    member.poll_until(lambda: len(member.values) == 10, "all messages")
    listed = admin.list_consumer_groups().result(DEADLINE_SECONDS).valid
    assert [group.state.name for group in listed if group.group_id == name] == ["STABLE"]
    described = results(admin.describe_consumer_groups([name]))[name]
    (found,) = described.members
    assert (described.state.name, described.partition_assignor, found.client_id) == ("STABLE", "range", "somebody")
    assert [(each.topic, each.partition) for each in found.assignment.topic_partitions] == [(name, 0)]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        results(admin.delete_consumer_groups([name]))
    member.consumer.close()
    moved = ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0, 4)])
    results(admin.alter_consumer_group_offsets([moved]))
    offsets = results(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]))[name]
    assert [each.offset for each in offsets.topic_partitions] == [4]
    results(admin.delete_consumer_groups([name]))
    assert name not in [group.group_id for group in admin.list_consumer_groups().result(DEADLINE_SECONDS).valid]


def test_a_members_host_is_described_without_its_port(broker, name):
    admin = admin_for(broker)
    create(broker, name)
    member = Member(broker, name, name)
    member.poll_until(lambda: member.partitions, "a partition")
    (found,) = results(admin.describe_consumer_groups([name]))[name].members
    member.consumer.close()
    assert found.host == "/127.0.0.1"


def test_records_are_deleted_and_offsets_listed(broker, name):
    admin = admin_for(broker)
    produce_numbers(broker, name, 10)
    deleted = results(admin.delete_records([TopicPartition(name, 0, 6)]))
    assert [each.low_watermark for each in deleted.values()] == [6]
    assert [int(message.value()) for message in read_partitions(broker, name, 4)] == [6, 7, 8, 9]
    partition = TopicPartition(name, 0)
    for spec, offset in [(OffsetSpec.earliest(), 6), (OffsetSpec.latest(), 10), (OffsetSpec.max_timestamp(), None)]:
        (found,) = results(
            admin.list_offsets({partition: spec}, isolation_level=IsolationLevel.READ_COMMITTED)
        ).values()
        assert 6 <= found.offset <= 9 if offset is None else found.offset == offset


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_idempotent_records_stay_unique_and_ordered_across_a_broker_restart(own_broker, name, kill):
    create(own_broker, name, partitions=3)
    acknowledged, failures, sent = Acknowledged(), [], 0
    config = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 5, "linger.ms": 1}
    producer = producer_for(own_broker, **config, **{"batch.num.messages": 20})
    stopped = threading.Event()

    def delivered(error, message):
        if error:
            failures.append(error)
        else:
            acknowledged.add(message.partition(), message.value(), message.offset())

    def send():
        nonlocal sent
        while not stopped.is_set():
            if len(producer) < UNDER_WAY_MAX_COUNT:
                producer.produce(name, b"%d" % sent, partition=sent % 3, on_delivery=delivered)
                sent += 1
            producer.poll(0 if sent % 50 else 0.01)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        wait_for(lambda: acknowledged.count >= 500)
        own_broker.restart(kill=kill)
        before = acknowledged.count
        wait_for(lambda: acknowledged.count >= before + 500)
    finally:
        stopped.set()
        sender.join()
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert not failures
    assert acknowledged.count == sent
    stored = read_partitions(own_broker, name, sent, partitions=3)
    acknowledged.check(
        [(each.partition(), each.offset(), each.value()) for each in stored],
        lambda partition: [b"%d" % number for number in range(partition, sent, 3)],
    )


def wait_for(condition):
    poll_until(condition, lambda: threading.Event().wait(0.01), what="acknowledgements")


def test_large_messages_go_both_ways_and_one_too_large_is_refused(broker, name):
    create(broker, name, **{"max.message.bytes": "12000000"})
    producer = producer_for(broker, **{"message.max.bytes": 20_000_000})
    outcomes = []
    for size in (10_000_000, 13_000_000):
        producer.produce(name, bytes(size), partition=0, on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(DEADLINE_SECONDS) == 0
    assert outcomes[0] is None
    assert outcomes[1].code() == KafkaError.MSG_SIZE_TOO_LARGE
    (message,) = read_partitions(broker, name, 1)
    assert message.value() == bytes(10_000_000)


def test_a_topic_is_created_by_use(broker, name):
    produce_numbers(broker, name, 1)
    assert [message.value() for message in read_partitions(broker, name, 1)] == [b"0"]


def test_one_consumer_of_a_hundred_and_fifty_partitions(broker, name):
    create(broker, name, partitions=150)
    produce_numbers(broker, name, 600, partitions=150, **{"enable.idempotence": True})
    member = Member(broker, name, name)
    member.poll_until(lambda: len(member.values) >= 600, "all messages")
    member.consumer.close()
    assert sorted(member.values) == list(range(600))


def test_clients_above_their_quota_get_a_throttle_time(name):
    """Well above: the reply comes at once, and nobody waits for the time that it tells."""
    told = []
    heard = {"throttle_cb": lambda event: told.append((event.broker_id, event.throttle_time > 0))}
    with running_broker(producer_byte_rate="10KB", consumer_byte_rate="10KB") as broker:
        produce_numbers(broker, name, 10)
        producer = producer_for(broker, **heard)
        producer.produce(name, bytes(500_000))
        assert producer.flush(DEADLINE_SECONDS) == 0
        poll_until(lambda: told, lambda: producer.poll(POLL_SECONDS), what="the producer is told")
        del told[:]
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name, **heard})
        reader.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        poll_until(lambda: told, lambda: reader.poll(POLL_SECONDS), what="the consumer is told")
        assert told[0] == (0, True)
        reader.close()


def metric(broker, name):
    with urlopen(f"http://{broker.admin}/metrics", timeout=DEADLINE_SECONDS) as reply:
        lines = reply.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def test_consumers_notice_nothing_of_segments_that_are_merged_and_deleted(name):
    """One that reads each record before its segment is merged, one that comes when the first ones are gone."""
    options = (
        *("--flush-interval", "1ms"),
        *("--flush-objects-per-minute", "100000000"),
        *("--segment-merge-bytes", "4KiB"),
        *("--segment-delete-delay", "50ms"),
    )
    with broker_process(*options) as broker:
        create(broker, name)
        producer, follower = producer_for(broker), consumer_for(broker, name)
        follower.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        sent, followed = itertools.count(), []

        def send_and_follow():
            for _ in range(10):
                producer.produce(name, str(next(sent)).encode())
                assert producer.flush(DEADLINE_SECONDS) == 0
                followed.extend(follower.consume(100, 0.001))

        def are_enough_merged():
            return (
                metric(broker, "kafscale_merges_total") >= 2 and metric(broker, "kafscale_segments_deleted_total") > 20
            )

        poll_until(are_enough_merged, send_and_follow, what="merges, and that what was merged is deleted")
        count = next(sent)
        poll_until(
            lambda: len(followed) >= count,
            lambda: followed.extend(follower.consume(100, POLL_SECONDS)),
            what=f"{count}",
        )
        follower.close()
        for messages in (followed, read_partitions(broker, name, count)):
            assert [(each.offset(), int(each.value())) for each in messages] == [(n, n) for n in range(count)]
