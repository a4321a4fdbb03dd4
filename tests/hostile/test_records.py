"""Batches that cost more to check than to send: bombs, and as many small records as fit."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

import pytest
import trio

from kafscale.client.client import connect
from kafscale.wire import codec, compression, error_codes
from kafscale.wire.frames import parse_response_header
from kafscale.wire.messages.records import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.primitives import varint
from kafscale.wire.records import Record, build_batch
from tests.api.produce.foreign_headers import of_records, raw_record
from tests.devtools.processes.process import BrokerProcess
from tests.hostile.hostile import (
    bystander,
    greet,
    next_answer,
    raw_connection,
    raw_connections,
    request_bytes,
)

VERSION = 9
UNPACKED_BYTES = 64 << 20

# Bombs of 100 MiB held up the event loop for 12 s, and small records for half a second a request. The larger bombs took
# 593 MiB on 12 connections, now 105.
BOMBS_COUNT = 16  # of a connection, each 5.4 KB
CHECK_MAX_SECONDS = 2.0  # for a usual large batch beside an attack; a tenth of that is usual
GROWN_MAX_MIB = 250.0  # one bomb at a time, and zstd's window

_counter = itertools.count()


def produce(topic: str, batches: Sequence[bytes | bytearray]) -> bytes:
    data = [PartitionProduceData(index=0, records=memoryview(batch)) for batch in batches]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return request_bytes(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), VERSION)


@pytest.fixture
async def topic(broker: BrokerProcess) -> str:
    """Of which the client beside the attack reads nothing, nor do other tests."""
    name = f"attacked-{next(_counter)}"
    async with connect(broker.kafka) as client:
        await client.topic(name, create=True)
    return name


async def answered_codes(stream: trio.SocketStream) -> list[int]:
    frame = await next_answer(stream)
    assert frame is not None
    _, start = parse_response_header(memoryview(frame), flexible_header=True)
    response = codec.decode(ProduceResponse, VERSION, memoryview(frame)[start:])
    return [answer.error_code for topic in response.responses for answer in topic.partition_responses]


def bomb_of(size_bytes: int) -> bytearray:
    """A batch of about so many bytes, and at least some thousands, that unpacks to UNPACKED_BYTES."""
    value = random.Random(1).randbytes(size_bytes) + bytes(UNPACKED_BYTES - size_bytes)
    return build_batch([Record(value=value)], codec=compression.ZSTD)


async def test_fifty_compression_bombs_in_one_request_do_not_delay_others(broker: BrokerProcess, topic: str) -> None:
    attack = produce(topic, [bomb_of(0)] * 50)
    async with bystander(broker) as seen, raw_connection(broker.kafka) as attacker:
        await attacker.send_all(attack)
        codes = await answered_codes(attacker)
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []
    within_limit = (1 << 30) // (UNPACKED_BYTES + 100)
    assert codes == [error_codes.NONE] * within_limit + [error_codes.MESSAGE_TOO_LARGE] * (50 - within_limit)


@pytest.mark.parametrize("size_bytes", [0, 100_000])
async def test_bombs_on_many_connections_take_the_memory_of_one(
    broker: BrokerProcess, topic: str, size_bytes: int
) -> None:
    attack = produce(topic, [bomb_of(size_bytes)])
    async with bystander(broker) as seen, raw_connections(broker.kafka, 12) as attackers:
        for attacker in attackers:
            await greet(attacker)
            await attacker.send_all(attack)
        for attacker in attackers:
            assert await answered_codes(attacker) == [error_codes.NONE]
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []


@pytest.mark.parametrize("name", ["none", "lz4"])
async def test_requests_full_of_tiny_records_do_not_delay_others(broker: BrokerProcess, topic: str, name: str) -> None:
    """Unlike each other, so that they are looked at one by one: half a second for each request."""
    number = next(number for number, each in compression.NAMES.items() if each == name)
    small = [Record(key=b"k" * (i % 3 % 2), value=b"", timestamp_ms=i % 5) for i in range(100_000)]
    batch = build_batch(small, codec=number)
    attack = produce(topic, [batch] * 5)
    async with bystander(broker) as seen, raw_connections(broker.kafka, 2) as attackers:
        for attacker in attackers:
            await greet(attacker)
            await attacker.send_all(attack)
        for attacker in attackers:
            assert set(await answered_codes(attacker)) == {error_codes.NONE}
    assert seen.problems() == []


async def test_one_record_with_half_a_million_headers_does_not_delay_others(broker: BrokerProcess, topic: str) -> None:
    batch = build_batch([Record(headers=[("", None)] * 500_000)])
    attack = produce(topic, [batch] * 5)
    async with bystander(broker) as seen, raw_connection(broker.kafka) as attacker:
        await greet(attacker)
        await attacker.send_all(attack)
        assert set(await answered_codes(attacker)) == {error_codes.NONE}
    assert seen.problems() == []


def header_bomb() -> bytes:
    """2,000 records of 1,000 empty headers each: 4 MB that are 5.4 KB of zstd, and took 0.25 s to check."""
    rest = b"\1\1" + varint(1000) + b"\0\1" * 1000
    records = (raw_record(index, rest=rest) for index in range(2000))
    return of_records(*records, codec=compression.ZSTD, count=2000)


def usual_large() -> bytearray:
    """A megabyte of text that is checked in a thread."""
    words = random.Random(2)
    text = (b" ".join(b"%d" % words.randrange(1000) for _ in range(250)) for _ in range(1000))
    return build_batch([Record(value=value) for value in text], codec=compression.ZSTD)


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
async def test_header_bombs_hold_up_no_other_checks(broker: BrokerProcess, topic: str, leaves: bool) -> None:
    """15 connections that sent 1.3 MB and closed held everybody's larger compressed produces at 6 s for a minute."""
    attack, wanted = produce(topic, [header_bomb()]), produce(topic, [usual_large()])
    waited: list[float] = []
    async with (
        bystander(broker) as seen,
        raw_connections(broker.kafka, 15) as attackers,
        raw_connection(broker.kafka) as client,
    ):
        for attacker in attackers:
            await greet(attacker)
            await attacker.send_all(attack * BOMBS_COUNT)
            if leaves:
                await attacker.aclose()
        for _ in range(10):
            began = time.perf_counter()
            await client.send_all(wanted)
            assert await answered_codes(client) == [error_codes.NONE]
            waited.append(time.perf_counter() - began)
    assert max(waited) < CHECK_MAX_SECONDS, waited
    assert seen.problems() == []


@pytest.mark.parametrize("name", ["none", "zstd"])
async def test_a_timestamp_lookup_in_a_huge_batch_does_not_delay_others(
    broker: BrokerProcess, topic: str, name: str
) -> None:
    """Only the last of the records is late enough; all were made objects, on the event loop."""
    number = next(number for number, each in compression.NAMES.items() if each == name)
    small = [Record(value=b"", timestamp_ms=1) for _ in range(100_000)]
    batch = build_batch([*small, Record(value=b"", timestamp_ms=2)], codec=number)
    partition = ListOffsetsPartition(partition_index=0, timestamp=2)
    topics = [ListOffsetsTopic(name=topic, partitions=[partition])]
    ask = request_bytes(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics), 5)
    async with bystander(broker) as seen, raw_connection(broker.kafka) as attacker:
        await attacker.send_all(produce(topic, [batch]))
        assert await answered_codes(attacker) == [error_codes.NONE]
        for _ in range(10):
            await attacker.send_all(ask)
        frames = [await next_answer(attacker) for _ in range(10)]
    assert seen.problems() == []
    for frame in frames:
        assert frame is not None
        _, start = parse_response_header(memoryview(frame), flexible_header=False)
        response = codec.decode(ListOffsetsResponse, 5, memoryview(frame)[start:])
        assert response.topics[0].partitions[0].offset == 100_000
