"""A connection of a whole broker in memory: order, pipelining, limits, and what ends it."""

from __future__ import annotations

import logging
import struct
import weakref
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kafscale.api.handling.calls import Peer
from kafscale.api.handling.coordinators import prepare_groups
from kafscale.api.records import fetch
from kafscale.client.connection import Connection as Client
from kafscale.client.connection import Reply
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.context import GroupMemberIdentity
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Durability, Limits
from kafscale.errors import StoreUnavailable
from kafscale.server.kafka.arrivals import SLOWEST_BYTES, STALL_SECONDS
from kafscale.server.kafka.connection import ROOM_MAX_SECONDS, ServedConnection
from kafscale.server.kafka.dispatch import Dispatcher, Request
from kafscale.server.kafka.dispatch import EncodedReply as ServerReply
from kafscale.server.kafka.transport import SocketTransport
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.batch_header import batches
from kafscale.wire.codec import decode, encode
from kafscale.wire.frames import RequestHeader, request_frame
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue
from kafscale.wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafscale.wire.messages.groups import SyncGroupRequest, SyncGroupRequestAssignment
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings
from tests.hostile.hostile import request_bytes

TOPIC = "orders"
FETCH_VERSION = 12  # the last one that names topics


def _record(value: bytes) -> Record:
    return Record(offset=0, timestamp_ms=1_000, key=None, value=value, headers=[])


def _produce(value: bytes, *, acks: int = -1, partition: int = 0, topic: str = TOPIC) -> ProduceRequest:
    batch = build_batch([_record(value)])
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=partition, records=memoryview(batch))]
            )
        ],
    )


def _latest() -> ListOffsetsRequest:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[wanted])])


def _fetch(offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
    )


async def _send_fetch(client: Client, request: FetchRequest) -> Reply[FetchResponse]:
    call = client.call(FetchRequest, FetchResponse, version=FETCH_VERSION)
    return await client.send_encoded(call, encode(request, FETCH_VERSION))


def _values(response: FetchResponse) -> list[bytes | None]:
    records = response.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    return [record.value for batch in batches(records) for record in iterate_records(batch)]


def _base_offset(response: ProduceResponse) -> int:
    (partition,) = response.responses[0].partition_responses
    assert partition.error_code == error_codes.NONE
    return partition.base_offset


async def _create_topic(running: MemoryBroker) -> None:
    client = await running.connect()
    topic = CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
    response = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=1_000), CreateTopicsResponse)
    assert response.topics[0].error_code == error_codes.NONE
    await client.aclose()


@pytest.fixture
async def running() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(memory_parts()) as broker:
        await _create_topic(broker)
        yield broker


async def test_pipelined_produces_are_appended_in_order_and_answered_in_order(running: MemoryBroker) -> None:
    client = await running.connect()
    replies = [await client.send(_produce(b"%d" % number), ProduceResponse) for number in range(50)]
    assert [_base_offset(await reply.wait()) for reply in replies] == list(range(50))
    fetched = await (await _send_fetch(client, _fetch(0))).wait()
    assert _values(fetched) == [b"%d" % number for number in range(50)]


async def test_four_requests_share_a_slow_disk(autojump_clock: trio.testing.MockClock) -> None:
    """CLAIMS A1: with persistence of 5 ms, four pipelined requests take one or two of them, not four."""
    took = {}
    for depth in (1, 128):
        parts = memory_parts()
        limits = Limits(max_in_flight_requests_count=depth)
        async with memory_broker(parts, memory_settings(limits=limits)) as running:
            await _create_topic(running)
            assert isinstance(parts.disk, MemoryDisk)
            parts.disk.sync_seconds = 0.005
            client = await running.connect()
            started = trio.current_time()
            replies = [await client.send(_produce(b"x"), ProduceResponse) for _ in range(4)]
            for reply in replies:
                await reply.wait()
            took[depth] = trio.current_time() - started
    assert took[1] >= 4 * 0.005
    assert took[128] <= 2.1 * 0.005


async def test_a_request_sees_the_effect_of_every_earlier_produce(running: MemoryBroker) -> None:
    client = await running.connect()
    produced = [await client.send(_produce(b"x"), ProduceResponse) for _ in range(3)]
    listed = await client.send(_latest(), ListOffsetsResponse)
    later = await client.send(_produce(b"y"), ProduceResponse)
    assert (await listed.wait()).topics[0].partitions[0].offset >= 3
    assert [_base_offset(await reply.wait()) for reply in (*produced, later)] == [0, 1, 2, 3]


async def test_a_waiting_fetch_is_woken_by_an_append_of_another_connection(
    running: MemoryBroker, autojump_clock: trio.testing.MockClock
) -> None:
    consumer, producer = await running.connect(), await running.connect()
    waiting = await _send_fetch(consumer, _fetch(0, max_wait_ms=60_000))
    await trio.testing.wait_all_tasks_blocked()
    started = trio.current_time()
    await producer.request(_produce(b"news"), ProduceResponse)
    assert _values(await waiting.wait()) == [b"news"]
    assert trio.current_time() - started < 1


async def test_a_fetch_waits_for_min_bytes_up_to_max_wait(
    running: MemoryBroker, autojump_clock: trio.testing.MockClock
) -> None:
    consumer, producer = await running.connect(), await running.connect()
    size = len(build_batch([_record(b"12345678")]))
    waiting = await _send_fetch(consumer, _fetch(0, max_wait_ms=60_000, min_bytes=2 * size))
    await producer.request(_produce(b"12345678"), ProduceResponse)
    await trio.sleep(1)
    assert waiting.body is None
    await producer.request(_produce(b"87654321"), ProduceResponse)
    assert _values(await waiting.wait()) == [b"12345678", b"87654321"]
    started = trio.current_time()
    waiting = await _send_fetch(consumer, _fetch(2, max_wait_ms=700))
    assert _values(await waiting.wait()) == []
    assert trio.current_time() - started == pytest.approx(0.7, abs=0.1)


async def test_a_waiting_fetch_does_not_hold_records_it_has_read(
    running: MemoryBroker, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Its room was given back to others, and the records were kept."""
    looks: list[Any] = []
    read_all = fetch._read_all

    async def note(*args: Any) -> Any:
        looks.append(await read_all(*args))
        return looks[-1]

    monkeypatch.setattr(fetch, "_read_all", note)
    client = await running.connect()
    await client.request(_produce(b"12345678"), ProduceResponse)
    waiting = await _send_fetch(client, _fetch(0, max_wait_ms=10_000, min_bytes=1 << 20))
    await trio.testing.wait_all_tasks_blocked()
    assert looks
    assert [data for look in looks for _, data in look.results] == []
    assert _values(await waiting.wait()) == [b"12345678"]


async def test_a_fetch_that_begins_in_the_bucket_does_not_wait_for_min_bytes(
    running: MemoryBroker, autojump_clock: trio.testing.MockClock
) -> None:
    """As in Kafka, where a fetch from an older segment is answered at once: there is more behind what it returns."""
    client = await running.connect()
    await client.request(_produce(b"flushed"), ProduceResponse)
    await running.broker.services.log.flusher.flush_all()
    await client.request(_produce(b"in memory"), ProduceResponse)
    started = trio.current_time()
    waiting = await _send_fetch(client, _fetch(0, max_wait_ms=60_000, min_bytes=1 << 19))
    assert _values(await waiting.wait()) == [b"flushed"]
    assert trio.current_time() - started < 1


async def test_acks_0_is_written_and_gets_no_reply(running: MemoryBroker) -> None:
    client = await running.connect()
    call = client.call(ProduceRequest, ProduceResponse)
    await client.send_encoded(call, encode(_produce(b"silent", acks=0), call.version), has_reply=False)
    assert _base_offset(await client.request(_produce(b"loud"), ProduceResponse)) == 1


async def test_a_refused_produce_with_acks_0_ends_the_connection(running: MemoryBroker) -> None:
    client = await running.connect()
    call = client.call(ProduceRequest, ProduceResponse)
    request = _produce(b"lost", acks=0, topic="unknown")
    await client.send_encoded(call, encode(request, call.version), has_reply=False)
    assert await client.stream.receive_some() == b""


async def test_reading_pauses_at_the_in_flight_limit_and_resumes(autojump_clock: trio.testing.MockClock) -> None:
    limits = Limits(max_in_flight_requests_count=2)
    async with memory_broker(memory_parts(), memory_settings(limits=limits)) as running:
        await _create_topic(running)
        client = await running.connect()
        waiting = await _send_fetch(client, _fetch(0, max_wait_ms=5_000, min_bytes=1 << 20))
        replies = [await client.send(_produce(b"x"), ProduceResponse) for _ in range(20)]
        await trio.testing.wait_all_tasks_blocked()
        (connection,) = [each for each in running.broker.acceptor.connections if each.pauses.reasons]
        assert connection.pauses.reasons == {"in_flight_requests"}
        assert [_base_offset(await reply.wait()) for reply in replies] == list(range(20))
        assert not connection.pauses.reasons
        await waiting.wait()


@pytest.fixture
async def behind_a_fetch(
    running: MemoryBroker, autojump_clock: trio.testing.MockClock
) -> tuple[Client, ServedConnection]:
    """A connection of which nothing has its turn for a while."""
    client = await running.connect()
    await _send_fetch(client, _fetch(0, max_wait_ms=20_000, min_bytes=1 << 20))
    await trio.testing.wait_all_tasks_blocked()
    (connection,) = [each for each in running.broker.acceptor.connections if not each.idle]
    return client, connection


async def test_a_queued_request_does_not_hold_the_buffer_it_arrived_in(
    behind_a_fetch: tuple[Client, ServedConnection], autojump_clock: trio.testing.MockClock
) -> None:
    """A few bytes of each read kept all of it: some 30 MB of a connection, which counted as nothing."""
    client, connection = behind_a_fetch
    for _ in range(3):
        large = request_bytes(_produce(bytes(100_000), topic="unknown"), 9)
        await client.stream.send_all(request_bytes(_latest(), 7) + large)
    await trio.testing.wait_all_tasks_blocked()
    waiting = [request for request in connection._queue if request.pending is None]
    assert len(waiting) == 4
    assert max(len(request.body.obj) for request in waiting) < 1_000


async def test_an_idle_connection_keeps_no_request_and_no_answer(
    running: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 16 MiB of one, and 64 of the other, for as long as a connection was idle, or a fetch waited."""
    seen: list[weakref.ref[object]] = []
    accept, send = Dispatcher.accept, ServedConnection._send

    def note_frame(dispatcher: Dispatcher, frame: memoryview, *rest: Any) -> Request:
        seen.append(weakref.ref(frame))
        return accept(dispatcher, frame, *rest)

    async def note_replies(connection: ServedConnection, outgoing: list[tuple[Request, ServerReply]]) -> None:
        seen.extend(weakref.ref(reply) for _, reply in outgoing)
        await send(connection, outgoing)

    monkeypatch.setattr(Dispatcher, "accept", note_frame)
    monkeypatch.setattr(ServedConnection, "_send", note_replies)
    client = await running.connect()
    await client.request(_latest(), ListOffsetsResponse)
    await trio.testing.wait_all_tasks_blocked()
    assert len(seen) >= 2
    assert [each for each in seen if each() is not None] == []


async def test_queued_error_responses_count_against_the_memory_budget(
    behind_a_fetch: tuple[Client, ServedConnection], autojump_clock: trio.testing.MockClock
) -> None:
    """A batch of six bytes has an answer of some three hundred: 40 requests of 294 KB took half a GB."""
    client, connection = behind_a_fetch
    wide = [PartitionProduceData(index=index, records=None) for index in range(3_000)]
    request = ProduceRequest(acks=1, timeout_ms=0, topic_data=[TopicProduceData(name="unknown", partition_data=wide)])
    reply = await client.send(request, ProduceResponse)
    await trio.testing.wait_all_tasks_blocked()
    assert connection.arrivals.used_bytes > 3_000 * 250
    response = await reply.wait()
    assert len(response.responses[0].partition_responses) == 3_000
    assert connection.arrivals.used_bytes == 0


async def test_a_connection_with_requests_waiting_too_long_counts_as_stalled(
    behind_a_fetch: tuple[Client, ServedConnection], autojump_clock: trio.testing.MockClock
) -> None:
    """Those that had come by one read each never did."""
    client, connection = behind_a_fetch
    part = SyncGroupRequestAssignment(member_id="m", assignment=bytes(50_000))
    large = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[part])
    for _ in range(2):
        await client.stream.send_all(request_bytes(large, 4))
        await trio.testing.wait_all_tasks_blocked()
    assert connection.arrival.counted_bytes > 0
    now = trio.current_time()
    assert not connection.arrival.has_stalled(now)
    assert connection.arrival.has_stalled(now + STALL_SECONDS + 0.1)


async def test_a_muted_connection_gives_up_its_right_to_exceed_the_budget(running: MemoryBroker) -> None:
    """What is too much for its quota is held back for so long, and large requests of all others with it."""
    await running.connect()
    await trio.testing.wait_all_tasks_blocked()
    (connection,) = running.broker.acceptor.connections
    connection.arrivals._favourite = connection.arrival
    connection._mute(50)
    await connection._wait_until_resumed()
    assert connection.arrivals._favourite is None


MUTED_SECONDS = 50
PEER = Peer(host="127.0.0.1", port=1, listener_name="PLAINTEXT", reached_host="127.0.0.1", reached_port=2)


@pytest.mark.parametrize("has_sent_more", [False, True])
async def test_a_muted_connection_that_closes_ends_at_once_unless_requests_are_queued(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, running: MemoryBroker, has_sent_more: bool
) -> None:
    """It held its place among the connections for as long as it had been told to hold back."""
    take_frames = ServedConnection._take_frames

    async def take_too_much(connection: ServedConnection, received_at: float) -> None:
        await take_frames(connection, received_at)
        connection._mute(MUTED_SECONDS * 1000)

    monkeypatch.setattr(ServedConnection, "_take_frames", take_too_much)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        theirs = await trio.testing.open_stream_to_socket_listener(listener)
        transport = SocketTransport.of(await listener.accept())
        running.nursery.start_soon(running.broker.acceptor.serve, transport, PEER)
        await theirs.send_all(_frame(18, 0))
        assert await theirs.receive_some(), "it is answered all the same"
        if has_sent_more:
            await theirs.send_all(_frame(18, 0))
        await theirs.aclose()
        while running.broker.acceptor.connections:
            await trio.sleep(0.1)
        assert (trio.current_time() > MUTED_SECONDS) == has_sent_more


def _frame(key: int, version: int, body: bytes = b"", *, flexible: bool = False) -> bytes:
    header = RequestHeader(key, version, 77, "test")
    return b"".join(bytes(part) for part in request_frame(header, [body], flexible_header=flexible))


MALFORMED = {
    "negative size": struct.pack(">i", -1),
    "size past the limit": struct.pack(">i", (100 << 20) + 1),
    "unknown key": _frame(9999, 0),
    "unknown version": _frame(3, 99),
    "produce version 2": _frame(0, 2, b"\xff\xff\0\0\0\1\0\0\0\0"),
    "body cut off": _frame(2, 1, b"\0\0"),
    "empty frame": struct.pack(">i", 0),
    "http": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_frame_closes_only_that_connection(
    running: MemoryBroker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bystander = await running.connect()
    caplog.set_level(logging.WARNING)
    stream = running.open_stream()
    async with stream:
        await stream.send_all(MALFORMED[name])
        assert await stream.receive_some() == b""
    closing = [record for record in caplog.records if "closing the connection" in record.message]
    assert len(closing) == 1
    assert closing[0].exc_info is None
    assert _base_offset(await bystander.request(_produce(b"still here"), ProduceResponse)) == 0


async def test_requests_before_a_malformed_one_are_answered(running: MemoryBroker) -> None:
    client = await running.connect()
    reply = await client.send(_produce(b"x"), ProduceResponse)
    await client.stream.send_all(_frame(9999, 0))
    assert _base_offset(await reply.wait()) == 0


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(running: MemoryBroker) -> None:
    stream = running.open_stream()
    async with stream:
        await stream.send_all(_frame(18, 9, b"\1\1\0", flexible=True))
        data = await stream.receive_some()
    size, correlation_id = struct.unpack_from(">ii", data)
    assert (size, correlation_id) == (len(data) - 4, 77)
    response = decode(ApiVersionsResponse, 0, data[8:])
    assert response.error_code == error_codes.UNSUPPORTED_VERSION
    assert {key.api_key for key in response.api_keys} >= {0, 1, 18}


async def test_one_byte_at_a_time(running: MemoryBroker) -> None:
    stream = running.open_stream()
    request = ApiVersionsRequest(client_software_name="tests", client_software_version="1")
    frame = _frame(18, 3, b"".join(encode(request, 3)), flexible=True)
    async with stream:
        for byte in frame:
            await stream.send_all(bytes([byte]))
        data = await stream.receive_some()
    assert struct.unpack_from(">ii", data) == (len(data) - 4, 77)


async def test_a_large_produce_is_received_into_the_pool_and_stays_there_once(running: MemoryBroker) -> None:
    client = await running.connect()
    pool = running.broker.services.log.pool
    value = bytes(range(256)) * 400
    assert _base_offset(await client.request(_produce(value), ProduceResponse)) == 0
    assert len(value) < pool.used_bytes < 2 * len(value)
    fetched = await (await _send_fetch(client, _fetch(0))).wait()
    assert _values(fetched) == [value]
    await running.broker.services.log.flusher.flush_all()
    assert pool.used_bytes == 0


@pytest.mark.parametrize("version", [2, 9])
async def test_a_large_produce_that_ends_its_connection_gives_its_memory_back(
    running: MemoryBroker, version: int
) -> None:
    """One of a version that is not served, or that could not be decoded, used to keep it for ever."""
    pool = running.broker.services.log.pool
    body = encode(_produce(bytes(100_000)), version) if version == 2 else [bytes([0xFF] * 100_000)]
    header = RequestHeader(0, version, correlation_id=1, client_id="c")
    frame = b"".join(request_frame(header, body, flexible_header=version == 9))
    async with running.open_stream() as stream:
        await stream.send_all(frame[:90_000])
        await trio.testing.wait_all_tasks_blocked()
        assert pool.used_bytes > 100_000
        await stream.send_all(frame[90_000:])
        assert await stream.receive_some() == b""
    assert pool.used_bytes == 0


async def test_large_produces_are_not_used_to_learn_patterns(
    running: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[int] = []
    monkeypatch.setattr(
        "kafscale.api.produce.short_way.PlainProduces.learn", lambda self, frame: learned.append(len(frame))
    )
    client = await running.connect()
    for size_bytes in (100, 400_000, 200):
        await client.request(_produce(bytes(size_bytes)), ProduceResponse)
    assert len(learned) == 2
    assert max(learned) < 1000


async def test_a_producer_waits_while_the_pool_is_exhausted_and_loses_nothing(running: MemoryBroker) -> None:
    client = await running.connect()
    pool = running.broker.services.log.pool
    held = await pool.acquire(pool.size_bytes)
    waiting = await client.send(_produce(b"small"), ProduceResponse)
    large = await client.send(_produce(bytes(100_000)), ProduceResponse)
    await trio.testing.wait_all_tasks_blocked()
    (connection,) = [each for each in running.broker.acceptor.connections if each.pauses.reasons]
    assert connection.pauses.reasons == {"pool"}
    held.release()
    assert [_base_offset(await reply.wait()) for reply in (waiting, large)] == [0, 1]
    assert not connection.pauses.reasons


def _error(response: ProduceResponse) -> int:
    return response.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("durability", [Durability.SEGMENT, Durability.S3_WAL])
async def test_during_an_outage_a_large_frame_without_memory_is_refused_in_time_and_taken_afterwards(
    autojump_clock: trio.testing.MockClock, durability: Durability
) -> None:
    """It used to wait for memory for as long as the bucket was away, and its connection with it."""
    store = FaultyStore(MemoryStore())
    parts = attrs.evolve(memory_parts(), store=store)
    async with memory_broker(parts, memory_settings(durability=durability)) as running:
        await _create_topic(running)
        pool = running.broker.services.log.pool
        filler, late, other = [await running.connect() for _ in range(3)]
        store.fail(On("put*"))
        size = pool.size_bytes // 4 - pool.chunk_bytes
        filling = [await filler.send(_produce(bytes(size), partition=1), ProduceResponse) for _ in range(4)]
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        refused = [await late.send(_produce(bytes(200_000)), ProduceResponse) for _ in range(5)]
        await trio.sleep(1)
        with trio.fail_after(1):
            await other.request(_latest(), ListOffsetsResponse)
            await (await _send_fetch(other, _fetch(0))).wait()
        assert [_error(await reply.wait()) for reply in refused] == [error_codes.KAFKA_STORAGE_ERROR] * 5
        assert ROOM_MAX_SECONDS <= trio.current_time() - began < 25
        store.heal()
        assert [_error(await reply.wait()) for reply in filling] == [error_codes.NONE] * 4
        await running.broker.services.log.flusher.flush_all()
        assert _base_offset(await late.request(_produce(bytes(200_000)), ProduceResponse)) == 0
        await running.broker.services.log.flusher.flush_all()
        assert pool.used_bytes == 0


async def test_a_client_that_leaves_while_waiting_for_memory_frees_its_place(
    running: MemoryBroker, autojump_clock: trio.testing.MockClock
) -> None:
    pool = running.broker.services.log.pool
    held = await pool.acquire(pool.size_bytes)
    client = await running.connect()
    await client.send(_produce(bytes(100_000)), ProduceResponse)
    await trio.testing.wait_all_tasks_blocked()
    await client.aclose()
    await trio.sleep(ROOM_MAX_SECONDS + 2)
    assert not running.broker.acceptor.connections
    assert pool.waiting_count == 0
    held.release()
    assert pool.used_bytes == 0


async def test_a_large_frame_without_memory_that_comes_too_slowly_ends_its_connection(
    running: MemoryBroker, autojump_clock: trio.testing.MockClock
) -> None:
    pool = running.broker.services.log.pool
    held = await pool.acquire(pool.size_bytes)
    async with running.open_stream() as stream:
        await stream.send_all(struct.pack(">ihhih", 100_000, 0, 9, 1, -1) + bytes(90_000))
        with trio.fail_after(ROOM_MAX_SECONDS + Limits().frame_timeout_seconds + 90_000 / SLOWEST_BYTES + 2):
            assert await stream.receive_some() == b""
    held.release()


async def test_a_produce_larger_than_the_pool_ends_the_connection(running: MemoryBroker) -> None:
    stream = running.open_stream()
    size = running.broker.services.log.pool.size_bytes + 1
    async with stream:
        await stream.send_all(struct.pack(">ihhih", size, 0, 9, 1, -1) + bytes(100))
        assert await stream.receive_some() == b""


async def test_idempotent_retries_are_recognised_before_they_are_durable(running: MemoryBroker) -> None:
    client = await running.connect()
    stamp = ProducerStamp(await running.broker.services.producer_ids.allocate(), producer_epoch=0, base_sequence=0)
    request = _produce(b"x")
    request.topic_data[0].partition_data[0].records = memoryview(build_batch([_record(b"x")], producer=stamp))
    replies = [await client.send(request, ProduceResponse) for _ in range(3)]
    assert [_base_offset(await reply.wait()) for reply in replies] == [0, 0, 0]
    assert (await client.request(_latest(), ListOffsetsResponse)).topics[0].partitions[0].offset == 1


async def test_draining_answers_waiting_fetches_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with memory_broker(memory_parts()) as running:
        await _create_topic(running)
        client = await running.connect()
        waiting = await _send_fetch(client, _fetch(0, max_wait_ms=60_000))
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        running.broker.stop()
        assert _values(await waiting.wait()) == []
        assert trio.current_time() - started < 1
        assert await client.stream.receive_some() == b""


async def test_acknowledged_records_survive_a_crash_and_a_restart(autojump_clock: trio.testing.MockClock) -> None:
    parts = memory_parts()
    with trio.CancelScope() as crash:
        async with memory_broker(parts) as running:
            await _create_topic(running)
            client = await running.connect()
            for number in range(10):
                await client.request(_produce(b"%d" % number), ProduceResponse)
            crash.cancel()
            await trio.lowlevel.checkpoint()
    assert isinstance(parts.disk, MemoryDisk)
    parts = attrs.evolve(parts, disk=parts.disk.crash())
    async with memory_broker(parts) as running:
        client = await running.connect()
        fetched = await (await _send_fetch(client, _fetch(0))).wait()
        assert _values(fetched) == [b"%d" % number for number in range(10)]
        await running.broker.services.log.flusher.flush_all()
        fetched = await (await _send_fetch(client, _fetch(3))).wait()
        assert _values(fetched) == [b"%d" % number for number in range(3, 10)]


async def test_an_unavailable_metadata_store_gives_retriable_errors_on_open_connections(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it is in the bucket, and that is away: the connection ended, with a traceback in the log."""
    parts = memory_parts()
    async with memory_broker(parts) as running:
        client = await running.connect()
        assert isinstance(parts.metadata, MemoryMetadataStore)
        parts.metadata.failure = StoreUnavailable("away")
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        creation = CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
        refused = await client.request(creation, CreateTopicsResponse)
        assert refused.topics[0].error_code == error_codes.REQUEST_TIMED_OUT
        wanted = FindCoordinatorRequest(coordinator_keys=["g"])
        (found,) = (await client.request(wanted, FindCoordinatorResponse)).coordinators
        assert found.error_code == error_codes.COORDINATOR_NOT_AVAILABLE
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
        metadata = await client.request(asked, MetadataResponse)
        assert [each.error_code for each in metadata.topics] == [error_codes.LEADER_NOT_AVAILABLE]
        assert metadata.brokers
        parts.metadata.failure = None
        created = await client.request(creation, CreateTopicsResponse)
        assert created.topics[0].error_code == error_codes.NONE
    assert "CreateTopics is refused, and may be tried again: away" in caplog.text
    assert "bug" not in caplog.text


async def test_offsets_of_a_topic_with_an_interrupted_deletion_are_removed_at_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A topic created again under the same name must not begin where the old one's consumers had come to."""
    parts = memory_parts()
    async with memory_broker(parts) as running:
        await _create_topic(running)
        await prepare_groups(running.broker.services)
        groups = running.broker.services.groups
        offset = OffsetCommitValue(offset=5, commit_timestamp_ms=groups.wall_clock_ms())
        nobody = GroupMemberIdentity(member_id="")
        assert await groups.commit("g", nobody, {TopicPartition(TOPIC, 0): offset}).wait() == error_codes.NONE
    await parts.metadata.commit(Transaction(deletes=[f"topics/{TOPIC}"]))
    async with memory_broker(parts) as running:
        await trio.testing.wait_all_tasks_blocked()
        assert list(running.broker.services.groups.committed_offsets()) == []


async def test_a_failed_partition_does_not_fail_others_of_the_same_produce(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Else a producer without idempotence would send again what is written already."""
    settings = memory_settings(durability=Durability.SEGMENT)
    async with memory_broker(memory_parts(), settings) as running:
        await _create_topic(running)
        client = await running.connect()
        services = running.broker.services
        await services.topics.create([NewTopic(name="doomed", partition_count=1)])
        request = _produce(b"kept")
        request.topic_data += _produce(b"lost", topic="doomed").topic_data
        services.log.partition_named("doomed", 0).on_dirty = lambda partition: None  # type: ignore[union-attr]
        reply = await client.send(request, ProduceResponse)
        await trio.testing.wait_all_tasks_blocked()
        await services.topics.delete(["doomed"])
        kept, lost = [topic.partition_responses[0] for topic in (await reply.wait()).responses]
        assert (kept.error_code, kept.base_offset) == (error_codes.NONE, 0)
        assert (lost.error_code, lost.base_offset) == (error_codes.KAFKA_STORAGE_ERROR, -1)
