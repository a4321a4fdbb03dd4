"""Fetch, asked of a whole broker in memory over the wire: what is returned, refused, and waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import attrs
import pytest
import trio
import trio.testing

from kafscale.client.connection import Connection, Reply
from kafscale.cluster.registries.topics import NewTopic
from kafscale.log.partition.partition import Partition
from kafscale.testing.disk import MemoryDisk
from kafscale.wire import error_codes
from kafscale.wire.batch_header import batches
from kafscale.wire.codec import encode
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.records import Record, build_batch, iterate_records
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts

TOPIC = "orders"
LAST_VERSION_BY_NAME = 12
BY_NAME = range(4, 13)
BY_ID = range(13, 17)
PLENTY_BYTES = 1 << 20
LONG_MS = 60_000
NO_ID = bytes(16)


def _batch(*values: bytes) -> bytearray:
    return build_batch(
        [
            Record(offset=offset, timestamp_ms=1_000, key=None, value=value, headers=[])
            for offset, value in enumerate(values)
        ]
    )


async def _produce(client: Connection, *values: bytes, partition: int = 0) -> int:
    """Produce one batch; its size in bytes."""
    batch = _batch(*values)
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    response = await client.request(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == error_codes.NONE
    return len(batch)


def _wanted(
    partition: int = 0, offset: int = 0, *, max_bytes: int = PLENTY_BYTES, leader_epoch: int = -1
) -> FetchPartition:
    return FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes, current_leader_epoch=leader_epoch
    )


def _fetch(
    *wanted: FetchPartition, topic: str = TOPIC, topic_id: bytes = NO_ID, max_bytes: int = PLENTY_BYTES
) -> FetchRequest:
    """A fetch that does not wait."""
    topics = [FetchTopic(topic=topic, topic_id=topic_id, partitions=list(wanted))]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=topics)


async def _send(client: Connection, request: FetchRequest, version: int) -> Reply[FetchResponse]:
    call = client.call(FetchRequest, FetchResponse, version=version)
    return await client.send_encoded(call, encode(request, version))


async def _ask(
    client: Connection, request: FetchRequest, version: int = LAST_VERSION_BY_NAME
) -> Sequence[PartitionData]:
    """What is answered about the partitions of the only topic."""
    response = await (await _send(client, request, version)).wait()
    assert response.error_code == error_codes.NONE
    (topic,) = response.responses
    return topic.partitions


def _values(data: PartitionData) -> list[bytes | None]:
    assert isinstance(data.records, memoryview)
    return [record.value for batch in batches(data.records) for record in iterate_records(batch)]


def _partition(running: MemoryBroker, index: int = 0) -> Partition:
    partition = running.broker.services.log.partition_named(TOPIC, index)
    assert partition is not None
    return partition


@pytest.fixture
async def running() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(memory_parts()) as broker:
        await broker.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=3)])
        yield broker


@pytest.fixture
async def client(running: MemoryBroker) -> Connection:
    return await running.connect()


# ---- what is returned -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [*BY_NAME, *BY_ID])
async def test_every_version_answers(
    running: MemoryBroker, client: Connection, version: int, autojump_clock: trio.testing.MockClock
) -> None:
    await _produce(client, b"x", b"y")
    topic_id = _partition(running).topic_id
    response = await (await _send(client, _fetch(_wanted(), topic_id=topic_id), version)).wait()
    (topic,) = response.responses
    assert (topic.topic, topic.topic_id) == ((TOPIC, NO_ID) if version in BY_NAME else ("", topic_id))
    (data,) = topic.partitions
    assert (data.partition_index, data.error_code) == (0, error_codes.NONE)
    assert (data.high_watermark, data.last_stable_offset) == (2, 2)
    assert data.log_start_offset == (0 if version >= 5 else -1)
    assert _values(data) == [b"x", b"y"]


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "in the bucket"])
async def test_an_offset_inside_a_batch_returns_that_batch(
    running: MemoryBroker, client: Connection, flushed: bool, autojump_clock: trio.testing.MockClock
) -> None:
    await _produce(client, b"0", b"1")
    await _produce(client, b"2", b"3", b"4")
    if flushed:
        await running.broker.services.log.flusher.flush_all()
    (data,) = await _ask(client, _fetch(_wanted(offset=3)))
    assert _values(data) == [b"2", b"3", b"4"]


async def test_the_high_watermark_is_in_range_and_returns_nothing(
    client: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    await _produce(client, b"0")
    (data,) = await _ask(client, _fetch(_wanted(offset=1)))
    assert (data.error_code, data.high_watermark, _values(data)) == (error_codes.NONE, 1, [])


async def test_whole_batches_up_to_the_limit_of_the_partition(
    client: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    (size,) = {await _produce(client, value) for value in (b"0", b"1", b"2")}
    for max_bytes, count in ((2 * size - 1, 1), (2 * size, 2), (3 * size - 1, 2), (3 * size, 3)):
        (data,) = await _ask(client, _fetch(_wanted(max_bytes=max_bytes)))
        assert len(_values(data)) == count


async def test_the_limit_of_the_response_is_shared_by_its_partitions(
    client: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    for partition in range(3):
        for value in (b"0", b"1"):
            size = await _produce(client, value, partition=partition)
    asked = [_wanted(partition) for partition in range(3)]
    for max_bytes, counts in ((6 * size, [2, 2, 2]), (3 * size, [2, 1, 0]), (2 * size, [2, 0, 0])):
        answered = await _ask(client, _fetch(*asked, max_bytes=max_bytes))
        assert [len(_values(data)) for data in answered] == counts
        assert [data.high_watermark for data in answered] == [2, 2, 2]


@pytest.mark.parametrize("limits", [(0, PLENTY_BYTES), (PLENTY_BYTES, 0), (1, 1)])
async def test_only_the_first_batch_may_exceed_the_size_limits(
    client: Connection, limits: tuple[int, int], autojump_clock: trio.testing.MockClock
) -> None:
    """Else a consumer could never get past a batch larger than what it asks for (KIP-74)."""
    for partition in (1, 2):
        for _ in range(2):
            await _produce(client, bytes(1000), partition=partition)
    of_partition, of_response = limits
    asked = [_wanted(partition, max_bytes=of_partition) for partition in (0, 1, 2)]
    answered = await _ask(client, _fetch(*asked, max_bytes=of_response))
    assert [len(_values(data)) for data in answered] == [0, 1, 0]


async def test_each_partition_is_answered_separately(
    client: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    await _produce(client, b"a", partition=0)
    await _produce(client, b"b", b"c", partition=2)
    first, unknown, last = await _ask(client, _fetch(_wanted(0), _wanted(7), _wanted(2, 1)))
    assert _values(first) == [b"a"]
    assert (unknown.partition_index, unknown.error_code) == (7, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    assert _values(unknown) == []
    assert (last.partition_index, last.high_watermark, _values(last)) == (2, 2, [b"b", b"c"])


@pytest.mark.parametrize(("isolation_level", "aborted"), [(0, None), (1, [])])
async def test_only_read_committed_fetches_get_a_list_of_aborted_transactions(
    client: Connection, isolation_level: int, aborted: list[object] | None, autojump_clock: trio.testing.MockClock
) -> None:
    await _produce(client, b"x")
    request = _fetch(_wanted())
    request.isolation_level = isolation_level
    (data,) = await _ask(client, request)
    assert data.aborted_transactions == aborted
    assert _values(data) == [b"x"]


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, 1, 4])
async def test_an_offset_out_of_range_is_answered_without_waiting(
    running: MemoryBroker, client: Connection, offset: int, autojump_clock: trio.testing.MockClock
) -> None:
    for value in (b"0", b"1", b"2"):
        await _produce(client, value)
    _partition(running).delete_records(2)
    request = _fetch(_wanted(offset=offset))
    request.max_wait_ms, request.min_bytes = LONG_MS, PLENTY_BYTES
    started = trio.current_time()
    (data,) = await _ask(client, request)
    assert trio.current_time() - started < 1
    assert (data.error_code, _values(data)) == (error_codes.OFFSET_OUT_OF_RANGE, [])


async def test_an_unknown_name(client: Connection, autojump_clock: trio.testing.MockClock) -> None:
    (data,) = await _ask(client, _fetch(_wanted(), topic="nobody"))
    assert data.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", BY_ID)
async def test_unknown_topic_ids_and_unknown_partitions_get_different_errors(
    running: MemoryBroker, client: Connection, version: int, autojump_clock: trio.testing.MockClock
) -> None:
    (data,) = await _ask(client, _fetch(_wanted(), topic_id=b"x" * 16), version)
    assert data.error_code == error_codes.UNKNOWN_TOPIC_ID
    (data,) = await _ask(client, _fetch(_wanted(7), topic_id=_partition(running).topic_id), version)
    assert data.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("leader_epoch", "error_code"),
    [
        (-1, error_codes.NONE),
        (4, error_codes.FENCED_LEADER_EPOCH),
        (5, error_codes.NONE),
        (6, error_codes.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_the_leader_epoch_is_checked(
    running: MemoryBroker,
    client: Connection,
    leader_epoch: int,
    error_code: int,
    autojump_clock: trio.testing.MockClock,
) -> None:
    _partition(running).leader_epoch = 5
    (data,) = await _ask(client, _fetch(_wanted(leader_epoch=leader_epoch)))
    assert data.error_code == error_code


# ---- what is waited for ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "error_code"),
    [(12, error_codes.UNKNOWN_TOPIC_OR_PARTITION), (13, error_codes.UNKNOWN_TOPIC_ID)],
)
async def test_a_waiting_fetch_is_answered_when_its_topic_is_deleted(
    running: MemoryBroker, client: Connection, version: int, error_code: int, autojump_clock: trio.testing.MockClock
) -> None:
    request = _fetch(_wanted(), topic_id=_partition(running).topic_id)
    request.max_wait_ms = LONG_MS
    waiting = await _send(client, request, version)
    await trio.testing.wait_all_tasks_blocked()
    assert waiting.body is None
    started = trio.current_time()
    await running.broker.services.topics.delete([TOPIC])
    response = await waiting.wait()
    assert trio.current_time() - started < 1
    assert response.responses[0].partitions[0].error_code == error_code


async def test_an_answered_fetch_waits_for_nothing_any_more(
    running: MemoryBroker, client: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    request = _fetch(_wanted(0), _wanted(1))
    request.max_wait_ms = LONG_MS
    waiting = await _send(client, request, LAST_VERSION_BY_NAME)
    await trio.testing.wait_all_tasks_blocked()
    assert len(_partition(running, 0).waiters) == len(_partition(running, 1).waiters) == 1
    producer = await running.connect()
    await _produce(producer, b"x", partition=1)
    await waiting.wait()
    assert not _partition(running, 0).waiters
    assert not _partition(running, 1).waiters
    assert not running.broker.services.waiting_fetches


@attrs.define(eq=False)
class _HeldDisk(MemoryDisk):
    """A disk that reads only once it is told to."""

    released: trio.Event = attrs.field(factory=trio.Event)

    async def read(self, name: str, position: int, length_bytes: int) -> bytes:
        await self.released.wait()
        return await MemoryDisk.read(self, name, position, length_bytes)


async def test_records_appended_during_a_fetch_count(autojump_clock: trio.testing.MockClock) -> None:
    """It comes to a partition that was looked at already, while another one is read from the WAL."""
    disk = _HeldDisk()
    async with memory_broker(attrs.evolve(memory_parts(), disk=disk)) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=2)])
        producer, consumer = await running.connect(), await running.connect()
        size = await _produce(producer, b"spilled", partition=1)
        assert _partition(running, 1).spill() == size
        request = _fetch(_wanted(0), _wanted(1))
        request.max_wait_ms, request.min_bytes = LONG_MS, 2 * size
        waiting = await _send(consumer, request, LAST_VERSION_BY_NAME)
        await trio.testing.wait_all_tasks_blocked()
        await _produce(producer, b"in pool", partition=0)
        started = trio.current_time()
        disk.released.set()
        response = await waiting.wait()
        assert trio.current_time() - started < 1
        assert [_values(data) for data in response.responses[0].partitions] == [[b"in pool"], [b"spilled"]]
