"""aiokafka: produce, groups, administration, and the broker going away. It speaks older versions than the others."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.structs import OffsetAndMetadata

from tests.devtools.external.clients import CODECS, DEADLINE_SECONDS, Acknowledged, Sample, sample_records

POLL_MS = 50
SAMPLES = [each for each in sample_records() if (each.key, each.value) != (None, None)]  # it refuses to send that one


def on_asyncio(test):
    """Run a coroutine test by asyncio: pytest runs them all by trio otherwise."""

    @wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def started(client):
    await client.start()
    try:
        yield client
    finally:
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())


def admin_for(broker):
    return started(AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap))


def producer_for(broker, **config):
    return started(AIOKafkaProducer(bootstrap_servers=broker.bootstrap, retry_backoff_ms=20, **config))


def consumer_for(broker, group=None, **config):
    return started(
        AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            heartbeat_interval_ms=200,
            retry_backoff_ms=20,
            **config,
        )
    )


async def create(broker, topic, partitions=1, **configs):
    async with admin_for(broker) as admin:
        response = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
    return response.topic_errors[0][1]


async def produce_numbers(broker, topic, count, partitions=1):
    """Values 0 to count - 1, spread over the partitions; returns when all are acknowledged."""
    async with producer_for(broker, linger_ms=5) as producer:
        sent = [await producer.send(topic, b"%d" % number, partition=number % partitions) for number in range(count)]
        await asyncio.gather(*sent)


async def read_partitions(broker, topic, count, partitions=1, **config):
    """The first `count` records of all partitions, from the beginning, without a group."""
    async with consumer_for(broker, **config) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        records = []
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(records) < count:
                records += [
                    record for batch in (await consumer.getmany(timeout_ms=POLL_MS)).values() for record in batch
                ]
    return records


class Member(ConsumerRebalanceListener):
    """A consumer of a group that notes what it was given and what it read."""

    def __init__(self, consumer, topic):
        self.consumer = consumer
        self.values = []
        self.events = []
        consumer.subscribe([topic], listener=self)

    async def on_partitions_assigned(self, assigned):
        self.events.append(("assigned", len(assigned)))

    async def on_partitions_revoked(self, revoked):
        self.events.append(("revoked", len(revoked)))

    @property
    def partitions(self):
        return {each.partition for each in self.consumer.assignment()}

    async def poll(self):
        for batch in (await self.consumer.getmany(timeout_ms=POLL_MS, max_records=50)).values():
            self.values.extend(int(record.value) for record in batch)

    async def poll_until(self, condition, *others):
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                for each in (self, *others):
                    await each.poll()


@pytest.mark.parametrize("codec", CODECS)
@on_asyncio
async def test_sent_records_read_back_unchanged(broker, name, codec):
    async with producer_for(broker, compression_type=None if codec == "none" else codec, linger_ms=50) as producer:
        for sample in SAMPLES:
            await producer.send(name, sample.value, sample.key, 0, sample.timestamp_ms, list(sample.headers))
    found = [
        Sample(record.key, record.value, tuple(record.headers), record.timestamp)
        for record in await read_partitions(broker, name, len(SAMPLES))
    ]
    assert found == SAMPLES


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor])
@on_asyncio
async def test_two_members_share_all_partitions_and_lose_nothing(broker, name, assignor):
    await create(broker, name, partitions=6)
    await produce_numbers(broker, name, 300, partitions=6)
    async with AsyncExitStack() as stack:

        async def join():
            consumer = consumer_for(broker, name, partition_assignment_strategy=[assignor])
            return Member(await stack.enter_async_context(consumer), name)

        first = await join()
        await first.poll_until(lambda: len(first.values) >= 50)
        assert first.partitions == set(range(6))
        second = await join()
        await first.poll_until(lambda: len(first.partitions) == len(second.partitions) == 3, second)
        assert first.partitions | second.partitions == set(range(6))
        await produce_numbers(broker, name, 300, partitions=6)
        await first.poll_until(lambda: len(second.values) >= 50, second)
        await second.consumer.stop()
        await first.poll_until(lambda: len(first.partitions) == 6)
        await first.poll_until(lambda: len(first.values) + len(second.values) >= 600)
    assert sorted(first.values + second.values) == sorted([*range(300), *range(300)])
    async with consumer_for(broker, name) as reader:
        assert [await reader.committed(TopicPartition(name, partition)) for partition in range(6)] == [100] * 6


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
@on_asyncio
async def test_committed_offsets_outlast_the_broker(own_broker, name, kill):
    await produce_numbers(own_broker, name, 10)
    partition = TopicPartition(name, 0)
    # Else aiokafka commits its position when it stops: 0, if it has looked that up before the commit of 7.
    async with consumer_for(own_broker, name, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        await consumer.commit({partition: OffsetAndMetadata(7, "note")})
    own_broker.restart(kill=kill)
    async with consumer_for(own_broker, name) as consumer:
        assert await consumer.committed(partition) == 7
        member = Member(consumer, name)
        await member.poll_until(lambda: len(member.values) >= 3)
    assert member.values == [7, 8, 9]


@on_asyncio
async def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(broker, name):
    await create(broker, name, partitions=4)
    async with (
        consumer_for(broker, name, group_instance_id="first") as one,
        consumer_for(broker, name, group_instance_id="second") as two,
    ):
        first, second = Member(one, name), Member(two, name)
        await first.poll_until(lambda: len(first.partitions) == len(second.partitions) == 2, second)
        had, events = second.partitions, list(first.events)
        await two.stop()
        async with consumer_for(broker, name, group_instance_id="second") as three:
            again = Member(three, name)
            await first.poll_until(lambda: again.partitions, again)
            assert again.partitions == had
            assert first.events == events


@on_asyncio
async def test_offsets_are_found_by_time(broker, name):
    async with producer_for(broker) as producer:
        for number in range(10):
            await producer.send_and_wait(name, b"v", partition=0, timestamp_ms=1_000_000 + 1000 * number)
    partition = TopicPartition(name, 0)
    wanted = {999_000: 0, 1_000_000: 0, 1_004_001: 5, 1_009_000: 9, 1_009_001: None}
    async with consumer_for(broker) as consumer:
        found = {time_ms: (await consumer.offsets_for_times({partition: time_ms}))[partition] for time_ms in wanted}
        assert {time_ms: each and each.offset for time_ms, each in found.items()} == wanted
        assert await consumer.end_offsets([partition]) == {partition: 10}
        consumer.assign([partition])
        consumer.seek(partition, found[1_004_001].offset)
        record = await asyncio.wait_for(consumer.getone(), DEADLINE_SECONDS)
    assert (record.offset, record.timestamp) == (5, 1_005_000)


@on_asyncio
async def test_topics_are_administered(broker, name):
    assert await create(broker, name, partitions=2, **{"retention.ms": "3600000"}) == 0
    assert await create(broker, name) == errors.TopicAlreadyExistsError.errno
    async with admin_for(broker) as admin:
        await admin.create_partitions({name: NewPartitions(5)})
        await partition_count_becomes(admin, name, 5)
        assert await described_config(admin, name, "retention.ms") == "3600000"
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "7200000"})])
        async with asyncio.timeout(DEADLINE_SECONDS):  # each call asks any of the brokers, if there are several
            while await described_config(admin, name, "retention.ms") != "7200000":
                await asyncio.sleep(0.05)
        await admin.delete_topics([name])
        async with asyncio.timeout(DEADLINE_SECONDS):
            while name in await admin.list_topics():
                await asyncio.sleep(0.05)
        (again,) = (await admin.delete_topics([name])).topic_error_codes
        assert again == (name, errors.UnknownTopicOrPartitionError.errno)
        cluster = await admin.describe_cluster()
        found = {node["node_id"]: node["port"] for node in cluster["brokers"]}
        assert (sorted(found), found[0]) == ([*broker.broker_ids], broker.kafka.port)


async def partition_count_becomes(admin, topic, count):
    """Each call asks any of the brokers, if there are several, and one of them may not know yet."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            (described,) = await admin.describe_topics([topic])
            if len(described["partitions"]) == count:
                return
            await asyncio.sleep(0.05)


async def described_config(admin, topic, config):
    (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((_, _, _, _, entries),) = response.resources
    return {entry[0]: entry[1] for entry in entries}[config]


@on_asyncio
async def test_groups_are_administered(broker, name):
    await produce_numbers(broker, name, 10)
    async with admin_for(broker) as admin, consumer_for(broker, name, client_id="somebody") as consumer:
        member = Member(consumer, name)
        await member.poll_until(lambda: len(member.values) == 10)
        await consumer.commit()
        assert (name, "consumer") in await admin.list_consumer_groups()
        (response,) = await admin.describe_consumer_groups([name])
        ((error, group, state, protocol_type, protocol, members, *_),) = response.groups
        assert (error, group, state, protocol_type, protocol) == (0, name, "Stable", "consumer", "roundrobin")
        assert [each[1:3] for each in members] == [("somebody", "/127.0.0.1")]
        offsets = await admin.list_consumer_group_offsets(name)
        assert {partition: each.offset for partition, each in offsets.items()} == {TopicPartition(name, 0): 10}


@on_asyncio
async def test_records_are_deleted(broker, name):
    await produce_numbers(broker, name, 10)
    partition = TopicPartition(name, 0)
    async with admin_for(broker) as admin:
        await partition_count_becomes(admin, name, 1)
        assert await admin.delete_records({partition: RecordsToDelete(before_offset=6)}) == {partition: 6}
    assert [int(record.value) for record in await read_partitions(broker, name, 4)] == [6, 7, 8, 9]
    async with consumer_for(broker) as consumer:
        assert await consumer.beginning_offsets([partition]) == {partition: 6}


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
@on_asyncio
async def test_idempotent_records_stay_unique_and_ordered_across_a_broker_restart(own_broker, name, kill):
    await create(own_broker, name, partitions=3)
    sent = []
    stopped = False

    async def send(producer):
        while not stopped:
            number = len(sent)
            sent.append(await producer.send(name, b"%d" % number, partition=number % 3))
            if number % 10 == 0:
                await asyncio.sleep(0.001)

    def acknowledged():
        return sum(each.done() for each in sent)

    async def acknowledgements(count):
        async with asyncio.timeout(DEADLINE_SECONDS):
            while acknowledged() < count:
                await asyncio.sleep(0.01)

    async with producer_for(own_broker, enable_idempotence=True, max_batch_size=500) as producer:
        sender = asyncio.create_task(send(producer))
        await acknowledgements(500)
        await asyncio.to_thread(own_broker.restart, kill=kill)
        await acknowledgements(acknowledged() + 500)
        stopped = True
        await sender
        stored = await asyncio.wait_for(asyncio.gather(*sent), DEADLINE_SECONDS)
    result = Acknowledged()
    for number, each in enumerate(stored):
        result.add(each.partition, b"%d" % number, each.offset)
    records = await read_partitions(own_broker, name, len(sent), partitions=3)
    result.check(
        [(record.partition, record.offset, record.value) for record in records],
        lambda partition: [b"%d" % number for number in range(partition, len(sent), 3)],
    )


@on_asyncio
async def test_large_messages_go_both_ways_and_one_too_large_is_refused(broker, name):
    await create(broker, name, **{"max.message.bytes": "12000000"})
    async with producer_for(broker, max_request_size=20_000_000) as producer:
        assert (await producer.send_and_wait(name, bytes(10_000_000), partition=0)).offset == 0
        with pytest.raises(errors.MessageSizeTooLargeError):
            await producer.send_and_wait(name, bytes(13_000_000), partition=0)
    (record,) = await read_partitions(broker, name, 1, max_partition_fetch_bytes=1000)
    assert record.value == bytes(10_000_000)


@on_asyncio
async def test_a_topic_is_created_by_use(broker, name):
    await produce_numbers(broker, name, 1)
    assert [record.value for record in await read_partitions(broker, name, 1)] == [b"0"]
