"""Memory that clients hold without doing anything with it: replies that they do not take, joins that they leave."""

from __future__ import annotations

from http.client import HTTPConnection

import trio

from kafscale.client.client import connect
from kafscale.client.producer import Producer
from kafscale.wire.error_codes import COORDINATOR_NOT_AVAILABLE, NONE
from kafscale.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafscale.wire.records import Record
from tests.devtools.processes.process import BrokerProcess, broker_process, rss_mib
from tests.hostile.hostile import (
    WARM_UP_ROUNDS,
    bystander,
    next_answer,
    raw_connection,
    raw_connections,
    request_bytes,
)

MIB = 1 << 20
FETCH_MAX_SECONDS = 20.0  # a client gives up after 30 s
COLD, COLD_MIB = "cold", 24
JOINS_COUNT, JOIN_BYTES = 200, 1_000_000
HELD_SECONDS = 4.0


def fetch_request(offset: int, size_bytes: int) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=size_bytes)
    topics = [FetchTopic(topic=COLD, partitions=[partition])]
    return request_bytes(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=size_bytes, topics=topics), 12)


async def fill_bucket(broker: BrokerProcess) -> None:
    """Records that are in the bucket alone."""
    async with connect(broker.kafka) as client:
        producer = Producer(client=client, topic=COLD)
        for _ in range(COLD_MIB):
            await producer.send([Record(value=bytes(850_000))], partition=0)
    posting = HTTPConnection(broker.admin.host, broker.admin.port)
    posting.request("POST", "/flush")
    posting.getresponse().read()
    posting.close()


async def test_consumers_that_do_not_read_their_responses_do_not_delay_others() -> None:
    """Five of them made the cold fetch of somebody else wait until it was given up."""
    with broker_process("--store=memory:256MiB", "--fetch-buffer-bytes=8MiB") as broker:
        await fill_bucket(broker)
        async with bystander(broker) as seen, raw_connections(broker.kafka, 12) as attackers:
            for offset, attacker in enumerate(attackers):
                await attacker.send_all(fetch_request(offset, 8 * MIB))
            await trio.sleep(0.3)
            async with raw_connection(broker.kafka) as good:
                with trio.fail_after(FETCH_MAX_SECONDS):
                    await good.send_all(fetch_request(20, 1000))
                    answer = await next_answer(good)
                assert answer is not None
                assert len(answer) > 850_000
        assert not seen.failures
        assert "takes a reply too slowly while others wait for its memory" in broker.log


async def test_joins_that_are_left_alone_stay_within_a_bound() -> None:
    """300 MB of them stayed for as long as their sessions, half an hour."""
    with broker_process("--group-state-bytes=32MiB") as broker:
        before_mib = rss_mib(broker.pid)
        protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(JOIN_BYTES))]
        outcomes = []
        async with bystander(broker) as seen:
            for number in range(JOINS_COUNT):
                request = JoinGroupRequest(
                    group_id=f"g{number}",
                    session_timeout_ms=1_800_000,
                    rebalance_timeout_ms=1_800_000,
                    member_id="",
                    protocol_type="x",
                    protocols=protocols,
                )
                async with raw_connection(broker.kafka) as attacker:
                    await attacker.send_all(request_bytes(request, 3))
                    answer = await next_answer(attacker)
                assert answer is not None
                outcomes.append(int.from_bytes(answer[8:10], "big", signed=True))
        assert not seen.failures
        assert set(outcomes) == {NONE, COORDINATOR_NOT_AVAILABLE}
        assert 25 < outcomes.count(NONE) <= 33
        assert rss_mib(broker.pid) - before_mib < 150
        assert broker.log.count("--group-state-bytes") == 1


async def test_produces_that_are_refused_wait_for_their_turn_within_a_bound() -> None:
    """Half a gigabyte of answers to 12 MB of them, on two connections whose first request waits for ever."""
    wide = [PartitionProduceData(index=index, records=None) for index in range(49_000)]
    topic_data = [TopicProduceData(name="unknown", partition_data=wide)]
    refused = request_bytes(ProduceRequest(acks=1, timeout_ms=0, topic_data=topic_data), 9)
    partition = FetchPartition(partition=0, fetch_offset=WARM_UP_ROUNDS, partition_max_bytes=1)
    topics = [FetchTopic(topic="bystander", partitions=[partition])]
    waiting = request_bytes(FetchRequest(max_wait_ms=600_000, min_bytes=1 << 30, max_bytes=1 << 30, topics=topics), 12)
    with broker_process("--queued-max-request-bytes=8MiB") as broker:
        async with bystander(broker) as seen, raw_connections(broker.kafka, 2) as attackers:
            with trio.move_on_after(HELD_SECONDS):
                async with trio.open_nursery() as nursery:
                    for attacker in attackers:
                        await attacker.send_all(waiting)
                        nursery.start_soon(attacker.send_all, 20 * refused)
        assert not seen.failures
        assert seen.grown_mib < 150
