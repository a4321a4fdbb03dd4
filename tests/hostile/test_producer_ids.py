"""Producer ids without end, given out or made up, take no more than their bound."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import attrs
import pytest
import trio

from kafscale.client.client import connect
from kafscale.client.connection import Connection
from kafscale.wire import error_codes
from kafscale.wire.batch_header import HEADER_BYTES, BatchHeader, encode_batch, parse_header
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafscale.wire.records import ProducerStamp, Record, build_batch
from tests.devtools.processes import timed_loop
from tests.devtools.processes.process import BrokerProcess, broker_process
from tests.hostile.hostile import bystander

TOPIC = "attacked"
IDS_COUNT = 3_000
IN_FLIGHT_COUNT = 100
PARTITION_MAX_COUNT = 1_000
GROWN_MAX_MIB = 48.0

_BATCH = build_batch([Record(value=b"v", timestamp_ms=1)], producer=ProducerStamp(0, 0, 0))
_HEADER = parse_header(memoryview(_BATCH))
_RECORDS = bytes(_BATCH[HEADER_BYTES:])


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    options = ("--max-producer-ids-per-partition", str(PARTITION_MAX_COUNT), "--flush-interval", "100ms")
    with broker_process(*options, program=timed_loop.PROGRAM) as running:
        yield running
        assert running.returncode is None, running.log


def produce(producer_id: int) -> ProduceRequest:
    header: BatchHeader = attrs.evolve(_HEADER, producer_id=producer_id)
    data = PartitionProduceData(index=0, records=memoryview(encode_batch(header, _RECORDS)))
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])])


async def answers(connection: Connection, producer_ids: range) -> set[int]:
    """The error codes of one batch of each, many in flight."""
    codes = set()
    for start in range(producer_ids.start, producer_ids.stop, IN_FLIGHT_COUNT):
        window = range(start, min(start + IN_FLIGHT_COUNT, producer_ids.stop))
        replies = [await connection.send(produce(each), ProduceResponse) for each in window]
        for reply in replies:
            codes.add((await reply.wait()).responses[0].partition_responses[0].error_code)
    return codes


def metrics(broker: BrokerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (each.rpartition(" ") for each in lines if each[:1] != "#")}


async def test_made_up_ids_cost_the_bound_and_no_more(broker):
    async with connect(broker.kafka) as client:
        await client.topic(TOPIC, create=True)
        leader = await client.leader(TOPIC, 0)
        async with bystander(broker) as seen:
            codes = await answers(leader, range(1 << 61, (1 << 61) + IDS_COUNT))
    assert codes == {error_codes.NONE}
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []
    told = await trio.to_thread.run_sync(metrics, broker)
    assert told["kafscale_producer_ids"] == PARTITION_MAX_COUNT


async def test_more_producers_than_a_partition_remembers_cost_the_bound_and_no_more(broker):
    async with connect(broker.kafka) as client:
        await client.topic(TOPIC, create=True)
        leader = await client.leader(TOPIC, 0)
        given = await leader.request(InitProducerIdRequest(transaction_timeout_ms=1000), InitProducerIdResponse)
        first = given.producer_id
        for _ in range(IDS_COUNT - 1):
            await leader.send(InitProducerIdRequest(transaction_timeout_ms=1000), InitProducerIdResponse)
        async with bystander(broker) as seen:
            codes = await answers(leader, range(first, first + IDS_COUNT))
        assert codes == {error_codes.NONE}
        assert await answers(leader, range(first + IDS_COUNT - 1, first + IDS_COUNT)) == {error_codes.NONE}
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []
    told = await trio.to_thread.run_sync(metrics, broker)
    assert told["kafscale_producer_ids"] == PARTITION_MAX_COUNT
    assert told['kafscale_producer_ids_evicted_total{state="active"}'] == IDS_COUNT - PARTITION_MAX_COUNT
    broker.restart(kill=True)
    told = await trio.to_thread.run_sync(metrics, broker)
    assert told["kafscale_producer_ids"] == PARTITION_MAX_COUNT
