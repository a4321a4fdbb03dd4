"""confluent-kafka with `group.protocol=consumer`: groups whose assignments the broker makes, alone and mixed."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, TopicPartition

from tests.clients.test_confluent import (
    QUICK_RECONNECT,
    Member,
    admin_for,
    consumer_for,
    create,
    produce_numbers,
    results,
)
from tests.devtools.external.clients import DEADLINE_SECONDS
from tests.devtools.processes.process import BrokerProcess, broker_process

SOON = ("--group-consumer-heartbeat-interval", "100ms")
SILENT = {"log_level": 0}  # or it tells of each attempt to connect while the broker is down


@pytest.fixture(scope="module")
def own_broker() -> Iterator[BrokerProcess]:
    """One whose members learn soon of a rebalance, to be killed."""
    with broker_process(*SOON) as process:
        yield process


class NewMember(Member):
    """A consumer of the new protocol, which leaves assignor, session and heartbeats to the broker."""

    def __init__(self, broker, group, topic, **config):
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                **QUICK_RECONNECT,
                **SILENT,
                **config,
            }
        )
        self.values = []
        self.events = []
        self.consumer.subscribe(
            [topic],
            on_assign=lambda _, partitions: self.events.append(("assigned", len(partitions))),
            on_revoke=lambda _, partitions: self.events.append(("revoked", len(partitions))),
        )


def committed(broker, group, topic, partitions):
    found = consumer_for(broker, group).committed(
        [TopicPartition(topic, each) for each in range(partitions)], DEADLINE_SECONDS
    )
    return [each.offset for each in found]


def test_members_share_all_partitions_and_lose_nothing_though_the_broker_is_killed(own_broker, name):
    create(own_broker, name, partitions=6)
    produce_numbers(own_broker, name, 300, partitions=6)
    first = NewMember(own_broker, name, name)
    first.poll_until(lambda: len(first.values) >= 50, "the first member reads")
    assert first.partitions == set(range(6))
    second = NewMember(own_broker, name, name)
    first.poll_until(lambda: len(first.partitions) == len(second.partitions) == 3, "half for each", second)
    assert ("revoked", 3) in first.events, "only what moves is revoked"

    own_broker.restart(kill=True)
    produce_numbers(own_broker, name, 300, partitions=6)
    first.poll_until(lambda: len(first.values) + len(second.values) >= 600, "all messages", second)
    assert len(first.partitions) == len(second.partitions) == 3, "members are known after the kill"
    second.consumer.close()
    first.poll_until(lambda: len(first.partitions) == 6, "all for the first again")
    first.consumer.close()
    assert sorted(first.values + second.values) == sorted([*range(300), *range(300)])
    assert committed(own_broker, name, name, 6) == [100] * 6


def test_a_group_changes_its_protocol_with_its_members(own_broker, name):
    create(own_broker, name, partitions=4)
    produce_numbers(own_broker, name, 100, partitions=4)
    classic = Member(own_broker, name, name)
    classic.poll_until(lambda: len(classic.values) == 100, "the classic member reads")
    assert group_type(own_broker, name) is ConsumerGroupType.CLASSIC
    new = NewMember(own_broker, name, name)
    classic.poll_until(lambda: len(classic.partitions) == len(new.partitions) == 2, "half for each", new)
    assert group_type(own_broker, name) is ConsumerGroupType.CONSUMER
    produce_numbers(own_broker, name, 100, partitions=4)
    classic.poll_until(lambda: len(classic.values) + len(new.values) >= 200, "all messages", new)
    new.consumer.close()
    classic.poll_until(lambda: len(classic.partitions) == 4, "all for the classic member again")
    assert group_type(own_broker, name) is ConsumerGroupType.CLASSIC
    classic.consumer.close()
    assert sorted(classic.values + new.values) == sorted([*range(100), *range(100)])
    assert committed(own_broker, name, name, 4) == [50] * 4


def group_type(broker, group):
    admin = admin_for(broker)  # kept until the call is over: without it, there is no group
    listed = admin.list_consumer_groups().result(DEADLINE_SECONDS).valid
    (found,) = [each.type for each in listed if each.group_id == group]
    return found


def test_topics_are_subscribed_to_by_a_regular_expression(own_broker, name):
    create(own_broker, f"{name}-a")
    create(own_broker, f"other-{name}")
    produce_numbers(own_broker, f"{name}-a", 10)
    produce_numbers(own_broker, f"other-{name}", 10)
    member = NewMember(own_broker, name, f"^{name}-.*")
    member.poll_until(lambda: len(member.values) >= 10, "messages of what fits")
    assert {each.topic for each in member.consumer.assignment()} == {f"{name}-a"}
    member.consumer.close()
    assert member.values == list(range(10))


def test_a_group_is_described_and_deleted(own_broker, name):
    create(own_broker, name, partitions=2)
    admin = admin_for(own_broker)
    member = NewMember(own_broker, name, name, **{"client.id": "somebody"})
    member.poll_until(lambda: len(member.partitions) == 2, "both partitions")
    described = results(admin.describe_consumer_groups([name]))[name]
    (found,) = described.members
    assert (described.type, described.state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
    assert (described.partition_assignor, found.client_id, found.host) == ("uniform", "somebody", "/127.0.0.1")
    assert [each.partition for each in found.assignment.topic_partitions] == [0, 1]
    member.consumer.close()
    results(admin.delete_consumer_groups([name]))
    assert name not in [group.group_id for group in admin.list_consumer_groups().result(DEADLINE_SECONDS).valid]
