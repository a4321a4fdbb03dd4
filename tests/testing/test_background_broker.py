"""The broker in a thread: its lives, and each knob as a client sees it. The client is in another trio loop."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from kafscale.client.client import connect
from kafscale.client.connection import Connection, connect_to
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError
from kafscale.testing.background_broker import BackgroundBroker, running_broker
from kafscale.wire import error_codes
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kafscale.wire.records import Record, build_batch

TOPIC = "orders"


@pytest.fixture
def broker() -> Iterator[BackgroundBroker]:
    with running_broker() as broker:
        broker.create_topic(TOPIC, partitions=2)
        yield broker


@asynccontextmanager
async def connected(broker: BackgroundBroker) -> AsyncIterator[Connection]:
    connection = await connect_to(Address.parse(broker.bootstrap), "test")
    try:
        with trio.fail_after(30):
            yield connection
    finally:
        await connection.aclose()


async def produce(connection: Connection, value: bytes, partition: int = 0) -> PartitionProduceResponse:
    batch = build_batch([Record(key=b"k", value=value, timestamp_ms=1000, headers=[("h", b"1")])])
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])])
    response = await connection.request(request, ProduceResponse)
    return response.responses[0].partition_responses[0]


def values(broker: BackgroundBroker) -> list[bytes | None]:
    return [each.value for each in broker.records(TOPIC)]


# ---- lives ----------------------------------------------------------------------------------------------------


async def test_records_returns_the_produced_records(broker: BackgroundBroker) -> None:
    async with connected(broker) as connection:
        for number, partition in enumerate([1, 0, 1]):
            assert (await produce(connection, b"%d" % number, partition)).error_code == error_codes.NONE
    found = broker.records(TOPIC)
    assert [(each.partition, each.offset, each.value) for each in found] == [(0, 0, b"1"), (1, 0, b"0"), (1, 1, b"2")]
    assert (found[0].key, found[0].timestamp_ms, found[0].headers) == (b"k", 1000, (("h", b"1"),))


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
async def test_acknowledged_records_survive_restarts_and_crashes(durability: str) -> None:
    with running_broker(durability=durability) as broker:
        broker.create_topic(TOPIC)
        address = broker.bootstrap
        for value, interrupt in [(b"one", broker.crash), (b"two", broker.restart), (b"three", broker.crash)]:
            async with connected(broker) as connection:
                assert (await produce(connection, value)).error_code == error_codes.NONE
                interrupt()
        assert values(broker) == [b"one", b"two", b"three"]
        assert broker.bootstrap == address


async def test_a_stopped_broker_refuses_connections_until_started(broker: BackgroundBroker) -> None:
    broker.stop()
    with pytest.raises(BrokerUnavailable):
        await connect_to(Address.parse(broker.bootstrap), "test")
    with pytest.raises(BrokerUnavailable, match="stopped"):
        broker.records(TOPIC)
    broker.start()
    broker.start()
    async with connected(broker) as connection:
        assert (await produce(connection, b"x")).error_code == error_codes.NONE


async def test_metadata_names_the_proxy_address_with_the_faults(broker: BackgroundBroker) -> None:
    async with connect(Address.parse(broker.bootstrap)) as client:
        [node] = (await client.metadata([TOPIC])).brokers
    assert f"{node.host}:{node.port}" == broker.bootstrap


def test_topics_are_created_once_and_new_ones_have_names_of_their_own(broker: BackgroundBroker) -> None:
    with pytest.raises(KafkaError):
        broker.create_topic(TOPIC)
    first, second = broker.new_topic("audit"), broker.new_topic("audit", partitions=3)
    assert first != second
    assert broker.records(first) == broker.records(second) == []
    with pytest.raises(KafkaError, match="no topic 'nowhere'"):
        broker.records("nowhere")


def test_is_ready_in_less_than_half_a_second_of_the_processor() -> None:
    began = time.process_time()
    with running_broker():
        assert time.process_time() - began < 0.5


def test_a_test_that_fails_does_not_show_all_that_the_broker_holds(broker: BackgroundBroker) -> None:
    assert repr(broker) == f"<broker at {broker.bootstrap}>"
    assert len(repr(broker.faults)) < 60
    assert len(repr(broker.faults.fail("Fetch", 1))) < 300


def test_options_have_the_names_of_the_command_line() -> None:
    with running_broker(durability="segment", default_partitions=3, auto_create_topics=False) as broker:
        assert broker.settings.durability == "segment"
        assert broker.settings.default_partitions_count == 3
        assert not broker.settings.auto_create_topics


@pytest.mark.parametrize("name", ["durabilty", "store", "listen", "data_dir"])
def test_an_option_that_is_not_there_to_be_set_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is not an option"), running_broker(**{name: "x"}):
        pass


def test_a_value_that_can_not_be_is_named() -> None:
    with pytest.raises(ConfigError, match="--durability"), running_broker(durability="never"):
        pass


# ---- network --------------------------------------------------------------------------------------------------


async def test_dropped_connections_are_gone_and_new_ones_are_not(broker: BackgroundBroker) -> None:
    async with connected(broker) as connection:
        assert broker.faults.drop_connections() == 1
        with pytest.raises(BrokerUnavailable):
            await produce(connection, b"x")
    async with connected(broker) as connection:
        assert (await produce(connection, b"y")).error_code == error_codes.NONE
    assert values(broker) == [b"y"]


async def test_new_connections_are_refused_for_a_while(broker: BackgroundBroker) -> None:
    async with connected(broker) as connection:
        with broker.faults.refuse_connections():
            with pytest.raises(BrokerUnavailable):
                await connect_to(Address.parse(broker.bootstrap), "test")
            assert (await produce(connection, b"x")).error_code == error_codes.NONE
    async with connected(broker) as connection:
        assert (await produce(connection, b"y")).error_code == error_codes.NONE


async def test_a_frozen_connection_continues_after_the_freeze(broker: BackgroundBroker) -> None:
    async with connected(broker) as connection, trio.open_nursery() as nursery:
        frozen = broker.faults.freeze()
        answered = trio.Event()

        async def send() -> None:
            assert (await produce(connection, b"x")).error_code == error_codes.NONE
            answered.set()

        nursery.start_soon(send)
        with trio.move_on_after(0.05):
            await answered.wait()
        assert not answered.is_set()
        assert values(broker) == []
        frozen.end()
        await answered.wait()


async def test_a_half_open_connection_is_silent_until_dropped(broker: BackgroundBroker) -> None:
    async with connected(broker) as connection:
        assert broker.faults.half_open() == 1
        with trio.move_on_after(0.05) as silence:
            await produce(connection, b"x")
        assert silence.cancelled_caught
        assert broker.faults.drop_connections() == 1
    assert values(broker) == []


async def test_a_slow_network_delays_both_directions_and_limits_bandwidth(broker: BackgroundBroker) -> None:
    async with connected(broker) as connection:
        with broker.faults.slow_network(0.03, bytes_per_second=math.inf):
            began = trio.current_time()
            await produce(connection, b"x")
            assert trio.current_time() - began >= 0.06
        with broker.faults.slow_network(bytes_per_second=100_000):
            began = trio.current_time()
            await produce(connection, b"x" * 10_000)
            assert trio.current_time() - began >= 0.1


# ---- answers --------------------------------------------------------------------------------------------------


async def test_a_produce_that_fails_has_no_effect_and_the_next_has(broker: BackgroundBroker) -> None:
    fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    async with connected(broker) as connection:
        answers = [await produce(connection, b"%d" % number) for number in range(3)]
    assert [each.error_code for each in answers] == [error_codes.NOT_LEADER_OR_FOLLOWER] * 2 + [error_codes.NONE]
    assert [each.base_offset for each in answers] == [-1, -1, 0]
    assert values(broker) == [b"2"]
    assert fault.met_count == 2


async def test_a_fetch_fails_by_partition(broker: BackgroundBroker) -> None:
    async with connected(broker) as connection:
        metadata = await connection.request(
            MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), MetadataResponse
        )
        partition = FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000)
        topic = FetchTopic(topic=TOPIC, topic_id=metadata.topics[0].topic_id, partitions=[partition])
        request = FetchRequest(topics=[topic], max_wait_ms=0, min_bytes=0)
        with broker.faults.fail("Fetch", error_codes.OFFSET_OUT_OF_RANGE, times=None):
            for _ in range(2):
                response = await connection.request(request, FetchResponse)
                [answer] = response.responses[0].partitions
                assert (answer.partition_index, answer.error_code) == (1, error_codes.OFFSET_OUT_OF_RANGE)
        response = await connection.request(request, FetchResponse)
        assert response.responses[0].partitions[0].error_code == error_codes.NONE


async def test_an_offset_commit_that_fails_is_not_kept(broker: BackgroundBroker) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    request = OffsetCommitRequest(group_id="g", member_id="", topics=[topic])
    broker.faults.fail("OffsetCommit", "COORDINATOR_NOT_AVAILABLE")
    async with connected(broker) as connection:
        codes = [
            (await connection.request(request, OffsetCommitResponse)).topics[0].partitions[0].error_code
            for _ in range(2)
        ]
    assert codes == [error_codes.COORDINATOR_NOT_AVAILABLE, error_codes.NONE]


async def test_metadata_that_fails_still_names_the_brokers(broker: BackgroundBroker) -> None:
    broker.faults.fail("Metadata", "LEADER_NOT_AVAILABLE")
    async with connected(broker) as connection:
        response = await connection.request(
            MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), MetadataResponse
        )
    assert len(response.brokers) == 1
    assert response.topics[0].error_code == error_codes.LEADER_NOT_AVAILABLE


async def test_a_lost_reply_leaves_the_record_and_no_connection(broker: BackgroundBroker) -> None:
    fault = broker.faults.lose_reply("Produce")
    async with connected(broker) as connection:
        with pytest.raises(BrokerUnavailable):
            await produce(connection, b"x")
    assert values(broker) == [b"x"]
    assert fault.met_count == 1


async def test_a_delayed_answer_comes_after_the_record_is_stored(broker: BackgroundBroker) -> None:
    async with connected(broker) as connection:
        with broker.faults.delay("Produce", 0.1) as slow:
            began = trio.current_time()
            await produce(connection, b"x")
            assert trio.current_time() - began >= 0.1
        assert slow.met_count == 1
        await produce(connection, b"y")
        assert slow.met_count == 1


def test_names_that_kafka_does_not_have_are_refused(broker: BackgroundBroker) -> None:
    with pytest.raises(ValueError, match="'Producer' is not an API"):
        broker.faults.fail("Producer", "NOT_LEADER_OR_FOLLOWER")
    for error in ("NOT_LEADER", "NONE", 0, 5000):
        with pytest.raises(ValueError, match="is not a Kafka error"):
            broker.faults.fail("Produce", error)


# ---- object store ---------------------------------------------------------------------------------------------


async def test_a_store_that_fails_and_is_slow_is_waited_for() -> None:
    with running_broker(durability="segment") as broker:
        broker.create_topic(TOPIC)
        failing = broker.faults.fail_store("put*", times=2)
        slow = broker.faults.delay_store(0.01, "put*")
        async with connected(broker) as connection:
            assert (await produce(connection, b"x")).error_code == error_codes.NONE
        assert failing.met_count == 2
        assert slow.met_count >= 1
        slow.end()
        slow.end()


async def test_healing_ends_every_fault(broker: BackgroundBroker) -> None:
    faults = broker.faults
    faults.freeze()
    faults.refuse_connections()
    faults.slow_network(60.0, bytes_per_second=1)
    faults.fail("*", "UNKNOWN_SERVER_ERROR", times=None)
    faults.delay("*", 60.0)
    faults.lose_reply("*", times=None)
    faults.fail_store()
    faults.heal()
    async with connected(broker) as connection:
        assert (await produce(connection, b"x")).error_code == error_codes.NONE


def test_produce_returns_the_record_as_it_is_stored(broker: BackgroundBroker) -> None:
    headers = (("source", b"test"), ("source", None))
    first = broker.produce(TOPIC, "one", key="k", headers=headers, timestamp_ms=5)
    second = broker.produce(TOPIC, None, key=b"k")
    assert (first.key, first.value, first.headers, first.timestamp_ms) == (b"k", b"one", headers, 5)
    assert (second.value, second.partition) == (None, first.partition), "one key, one partition"
    assert second.offset == first.offset + 1
    placed = broker.produce(TOPIC, b"\x00", partition=1 - first.partition)
    assert sorted(broker.records(TOPIC), key=lambda record: record.partition != first.partition) == [
        first,
        second,
        placed,
    ]


def test_produce_makes_a_missing_topic_as_clients_do() -> None:
    with running_broker(default_partitions=3) as broker:
        assert broker.produce("new", "one").partition == 0
        with pytest.raises(KafkaError, match="topic 'new' has 3 partitions"):
            broker.produce("new", "one", partition=3)
    with running_broker(auto_create_topics=False) as broker, pytest.raises(KafkaError, match="there is no topic 'new'"):
        broker.produce("new", "one")


def test_produced_records_outlast_a_crash(broker: BackgroundBroker) -> None:
    broker.produce(TOPIC, "one")
    broker.crash()
    assert [record.value for record in broker.records(TOPIC)] == [b"one"]


def test_wait_for_returns_records_that_come_later(broker: BackgroundBroker) -> None:
    later = threading.Timer(0.2, lambda: [broker.produce(TOPIC, value) for value in ("one", "two")])
    later.start()
    assert [record.value for record in broker.wait_for(TOPIC, 2)] == [b"one", b"two"]
    later.join()


def test_wait_for_tells_what_was_there(broker: BackgroundBroker) -> None:
    for number in range(12):
        broker.produce(TOPIC, f"{number}-" + "x" * 100)
    with pytest.raises(AssertionError) as caught:
        broker.wait_for(TOPIC, 13, timeout_seconds=0.05)
    first, second, *_, last = str(caught.value).splitlines()
    assert first == "topic 'orders' has 12 of 13 records after 0.05 s"
    assert second == f"  partition 0, offset 0: key None, value {b'0-' + b'x' * 58!r}… (102 bytes)"
    assert last == "  and 2 more"
    with pytest.raises(AssertionError, match=r"has 0 of 1 records after 0\.05 s; there is no topic 'nowhere'"):
        broker.wait_for("nowhere", timeout_seconds=0.05)


def test_wait_for_outlasts_a_restart(broker: BackgroundBroker) -> None:
    broker.produce(TOPIC, "one")
    broker.stop()
    later = threading.Timer(0.2, broker.start)
    later.start()
    assert len(broker.wait_for(TOPIC, 1)) == 1
    later.join()
