"""In `s3-wal` a broker in the consumer's rack reads the tail, too, from the stream of who leads (KIP-392)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.leading import following
from kafscale.config import Durability
from kafscale.formats.wal_objects import ObjectHeader, decode_header, encode_header
from kafscale.formats.wal_runs import list_epoch, wal_key
from kafscale.log.wal import streams
from kafscale.log.wal.streams import FollowedStream
from kafscale.testing.faulty_store import On
from kafscale.wire import error_codes as e
from kafscale.wire.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tests.cluster.membership.test_following import HERE, THERE, Pair, a_pair, coordinator_id, values
from tests.cluster.membership.test_several import TOPIC, Machine, create, led_by, produce, topic_at, until
from tests.cluster.membership.test_streams import crashing
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_parts
from tests.devtools.fakes.transactional_producer import Producer


@pytest.fixture
async def pair(autojump_clock: MockClock) -> AsyncIterator[Pair]:
    async with a_pair(Durability.S3_WAL) as made:
        yield made


def stream_of(pair: Pair) -> FollowedStream:
    reads = pair.other.broker.services.following
    assert reads is not None
    (followed,) = reads.tails._followed.values()
    return followed.stream


def incarnation_of(pair: Pair) -> int:
    reads = pair.other.broker.services.following
    assert reads is not None
    return reads.state.brokers[1].incarnation


async def test_the_tail_is_read_in_ones_own_rack(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    told = await pair.fetch(pair.leader, 0)
    assert (told.error_code, told.preferred_read_replica, told.records or b"") == (e.NONE, 2, b"")
    read = await pair.fetch(pair.other, 0)
    assert values(read) == [b"0", b"1", b"2"]
    assert (read.high_watermark, read.last_stable_offset, read.log_start_offset) == (3, 3, 0)
    at_end = await pair.fetch(pair.other, 3)
    assert (at_end.error_code, at_end.high_watermark, at_end.records or b"") == (e.NONE, 3, b"")
    for rack in ("", HERE):
        assert (await pair.fetch(pair.leader, 0, rack)).preferred_read_replica == -1
        assert (await pair.fetch(pair.other, 0, rack)).error_code == e.NOT_LEADER_OR_FOLLOWER


async def test_a_waiting_fetch_returns_newly_produced_records(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    await pair.fetch(pair.other, 0)
    for number in range(3, 6):
        answers: list[PartitionData] = []

        async def wait(offset: int, answers: list[PartitionData] = answers) -> None:
            answers.append(await pair.fetch(pair.other, offset, max_wait_ms=60_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, number)
            await trio.sleep(10)
            assert not answers
            began = trio.current_time()
            assert await produce(pair.leader, 0, b"%d" % number) == e.NONE
        assert values(answers[0]) == [b"%d" % number]
        assert trio.current_time() - began <= following.TAIL_LOOK_MOST_SECONDS


async def test_reading_continues_from_flushed_segments_to_the_tail(autojump_clock: MockClock, pair: Pair) -> None:
    wanted = [b"%d" % number for number in range(12)]
    for number, value in enumerate(wanted):
        assert await produce(pair.leader, 0, value) == e.NONE
        assert values(await pair.fetch(pair.other, number, max_wait_ms=1000)) == [value]
        if number % 3 == 2:
            await pair.flush()
    await trio.sleep(10)  # objects are deleted
    assert values(await pair.fetch(pair.other, 11)) == wanted[11:]
    found: list[bytes | None] = []
    while len(found) < len(wanted):
        found += values(await pair.fetch(pair.other, len(found)))
    assert found == wanted


async def test_behind_a_number_that_is_missing_nothing_is_read(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    await pair.fetch(pair.other, 0)
    gate = pair.store.hold(On("put_if_absent", "*.wal", times=1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce, pair.leader, 0, b"3")
        await gate.wait_arrived()
        nursery.start_soon(produce, pair.leader, 0, b"4")  # the store takes this one first
        await trio.sleep(1)
        assert max(await list_epoch(pair.store, "default", incarnation_of(pair))) == stream_of(pair).next_number + 1
        assert (await pair.fetch(pair.other, 3, max_wait_ms=1000)).high_watermark == 3
        gate.open()
    for number in (3, 4):
        assert values(await pair.fetch(pair.other, number, max_wait_ms=1000))[:1] == [b"%d" % number]


async def test_nothing_behind_a_fence_is_read(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    await pair.fetch(pair.other, 0)
    stream, epoch = stream_of(pair), incarnation_of(pair)
    number = stream.next_number
    assert await produce(pair.leader, 0, b"cut off") == e.NONE
    key = wal_key("default", epoch, number).key
    behind = await pair.store.get(key)
    await pair.store.delete([key])
    fence = ObjectHeader(salt=0, epoch=99, entry_count=0, number=number, durable_number=0, sequence=0, body_bytes=0)
    await pair.store.put(key, [encode_header(fence)])
    header = decode_header(key, behind.data)
    assert not header.is_fence
    await pair.store.put(wal_key("default", epoch, number + 1).key, [behind.data])
    assert (await pair.fetch(pair.other, 3, max_wait_ms=1000)).high_watermark == 3
    assert stream.has_ended
    assert stream.next_number == number


async def test_all_partitions_share_one_tail_request_made_only_during_a_waiting_fetch(
    autojump_clock: MockClock,
) -> None:
    count = 40
    async with a_pair(Durability.S3_WAL, partition_count=2 * count) as pair:
        await until(lambda: len(led_by(pair.leader.broker)) == count)
        mine = led_by(pair.leader.broker)
        for index in mine:
            assert await produce(pair.leader, index, b"x") == e.NONE
        wanted = [FetchPartition(partition=index, fetch_offset=1, partition_max_bytes=1 << 20) for index in mine]
        fetched = FetchTopic(topic=TOPIC, topic_id=pair.topic_id, partitions=wanted)

        async def wait(seconds: int) -> None:
            client = await pair.other.connect()
            request = FetchRequest(max_wait_ms=seconds * 1000, min_bytes=1, topics=[fetched], rack_id=THERE)
            answer = await client.request(request, FetchResponse)
            assert [each.error_code for each in answer.responses[0].partitions] == [e.NONE] * count

        await wait(1)
        pair.store.calls.clear()
        await wait(20)
        own = [each for each in pair.store.calls if f"/{incarnation_of(pair):010d}/" in str(each)]
        assert 20 / following.TAIL_LOOK_MOST_SECONDS * 0.9 <= len(own) <= 20 / following.TAIL_LOOK_MOST_SECONDS * 1.1
        pair.store.calls.clear()
        await trio.sleep(100)
        assert [each for each in pair.store.calls if "/wal/" in str(each)] == []


async def test_tail_contents_evicted_from_memory_are_read_from_the_object(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CONTENTS_MAX_BYTES", 600)
    async with a_pair(Durability.S3_WAL) as pair:
        wanted = [b"%d" % number * 50 for number in range(10)]
        for value in wanted:
            assert await produce(pair.leader, 0, value) == e.NONE
        assert values(await pair.fetch(pair.other, 0)) == wanted
        pair.store.calls.clear()
        assert values(await pair.fetch(pair.other, 4)) == wanted[4:]
        assert [each.operation for each in pair.store.calls if "/wal/" in str(each)].count("get_range") == 4
        pair.store.calls.clear()
        assert values(await pair.fetch(pair.other, 8)) == wanted[8:]
        assert [each for each in pair.store.calls if "/wal/" in str(each)] == []


async def test_the_tail_is_found_after_its_former_objects_were_flushed_and_deleted(
    autojump_clock: MockClock, pair: Pair
) -> None:
    await pair.produce()
    await pair.fetch(pair.other, 0)
    for number in range(3, 9):
        assert await produce(pair.leader, 0, b"%d" % number) == e.NONE
        await pair.flush()
        await trio.sleep(5)
    first = min(await list_epoch(pair.store, "default", incarnation_of(pair)))
    assert first > stream_of(pair).next_number
    assert values(await pair.fetch(pair.other, 3, max_wait_ms=10_000)) == [b"3"]
    found = [b"3"]
    while len(found) < 6:
        found += values(await pair.fetch(pair.other, 3 + len(found), max_wait_ms=1000))
    assert found == [b"%d" % number for number in range(3, 9)]


async def test_a_wait_ends_when_another_broker_leads(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    await pair.fetch(pair.other, 0)
    topic = pair.other.broker.services.topics.get(TOPIC)
    mover = pair.other.broker.services.mover
    assert topic is not None
    assert mover is not None
    answers: list[PartitionData] = []

    async def wait() -> None:
        answers.append(await pair.fetch(pair.other, 3, max_wait_ms=600_000))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            await mover.move(topic, 0, [2])
    assert answers[0].error_code in (e.NOT_LEADER_OR_FOLLOWER, e.NONE)
    await until(lambda: led_by(pair.other.broker) == [0])
    assert values(await pair.fetch(pair.other, 0)) == [b"0", b"1", b"2"]


async def test_only_transactions_decided_in_the_stream_are_read_as_committed(
    autojump_clock: MockClock, pair: Pair
) -> None:
    await pair.produce(1)
    at = await coordinator_id(pair)
    coordinator = await (pair.leader if at == 1 else pair.other).connect()
    producer = Producer(coordinator, coordinator_id=at)
    assert await producer.init() == e.NONE
    for committed in (True, False):
        end = (await pair.fetch(pair.other, 1)).high_watermark
        producer.client = await pair.leader.connect()
        await producer.write(0, b"t")
        read = await pair.fetch(pair.other, end, committed=True, max_wait_ms=1000)
        assert (read.high_watermark, read.last_stable_offset, read.records or b"") == (end + 1, end, b"")
        assert values(await pair.fetch(pair.other, end)) == [b"t"]
        producer.client = coordinator
        assert await producer.end(committed=committed) == e.NONE
        read = await pair.fetch(pair.other, end, committed=True, max_wait_ms=1000)
        assert (read.high_watermark, read.last_stable_offset) == (end + 2, end + 2)
        assert [each.first_offset for each in read.aborted_transactions or ()] == ([] if committed else [end])


async def test_a_consumer_that_returns_from_a_follower_at_once_is_served_by_the_leader(
    autojump_clock: MockClock, pair: Pair
) -> None:
    await pair.produce()
    client = await pair.leader.connect()
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    fetched = FetchTopic(topic=TOPIC, topic_id=pair.topic_id, partitions=[wanted])
    request = FetchRequest(max_wait_ms=10, min_bytes=1, topics=[fetched], rack_id=THERE)
    told: list[int] = []
    for _ in range(2):
        (answer,) = (await client.request(request, FetchResponse)).responses[0].partitions
        told.append(answer.preferred_read_replica)
    assert told == [2, -1]


async def test_a_leader_that_starts_again_is_followed_in_its_new_stream(autojump_clock: MockClock) -> None:
    store = memory_parts().store
    one = Machine(store, 1)
    async with Machine(store, 2).run(Durability.S3_WAL, rack=THERE) as other:
        acknowledged: list[bytes] = []
        topic_id = b""
        for start in range(3):
            async with crashing(Machine(store, 1, network=one.network)) as leader:
                if not start:
                    topic = await create(leader.broker, 2)
                    topic_id = topic.topic_id
                    await until(lambda: other.broker.services.topics.get(TOPIC) is not None)
                await until(lambda leader=leader: led_by(leader.broker))
                (index,) = led_by(leader.broker)
                for number in range(3):
                    acknowledged.append(b"%d-%d" % (start, number))
                    assert await produce(leader, index, acknowledged[-1]) == e.NONE
                await leader.broker.services.log.flusher.flush_all()
                acknowledged.append(b"%d-tail" % start)
                assert await produce(leader, index, acknowledged[-1]) == e.NONE
                with trio.fail_after(60):
                    assert await read_from(other, topic_id, index, len(acknowledged)) == acknowledged


async def read_from(running: MemoryBroker, topic_id: bytes, index: int, count: int) -> list[bytes | None]:
    """Read so many records from a broker that follows, until it has them."""
    client = await running.connect()
    found: list[bytes | None] = []
    while len(found) < count:
        wanted = FetchPartition(partition=index, fetch_offset=len(found), partition_max_bytes=1 << 20)
        fetched = FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=1000, min_bytes=1, topics=[fetched], rack_id=THERE)
        (answer,) = (await client.request(request, FetchResponse)).responses[0].partitions
        if answer.error_code == e.NONE:
            found += values(answer)
        else:
            assert answer.error_code == e.NOT_LEADER_OR_FOLLOWER
            await trio.sleep(0.2)
    return found


async def test_a_stream_that_outgrew_its_cache_is_served_again_after_a_flush(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEPT_MAX_COUNT", 2)
    async with a_pair(Durability.S3_WAL) as pair:
        await pair.produce(5)
        for offset in (0, 3):
            assert (await pair.fetch(pair.other, offset)).error_code == e.NOT_LEADER_OR_FOLLOWER
        await pair.flush()
        assert len(values(await pair.fetch(pair.other, 0))) == 5


async def test_many_partitions_are_looked_at_together(autojump_clock: MockClock) -> None:
    count = 60
    async with a_pair(Durability.S3_WAL, partition_count=2 * count) as pair:
        await until(lambda: len(led_by(pair.leader.broker)) == count)
        mine = led_by(pair.leader.broker)
        for operation in ("list", "get*", "head"):
            pair.store.delay(On(operation, "*"), 0.05)
        wanted = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in mine]
        fetched = FetchTopic(topic=TOPIC, topic_id=pair.topic_id, partitions=wanted)
        client, began = await pair.other.connect(), trio.current_time()
        request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[fetched], rack_id=THERE)
        answer = await client.request(request, FetchResponse)
        assert [each.error_code for each in answer.responses[0].partitions] == [e.NONE] * count
        assert trio.current_time() - began < 2.0


async def test_a_tail_that_has_become_long_is_looked_at_beside(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "TAIL_MAX_COUNT", 5)
    monkeypatch.setattr(following, "TAIL_LEAST_SECONDS", 2.0)
    async with a_pair(Durability.S3_WAL, flush_seconds=1.0) as pair:
        for number in range(60):
            assert await produce(pair.leader, 0, b"%d" % number) == e.NONE
            read = await pair.fetch(pair.other, number, max_wait_ms=1000)
            assert (read.error_code, values(read)) == (e.NONE, [b"%d" % number])
            await trio.sleep(0.2)
        followed = pair.other.broker.services.following
        assert followed is not None
        partition = await followed.find(await topic_at(pair.other.broker), 0, 60)
        assert partition is not None
        assert partition.flushed_offset > 30
        assert len(partition.tail.batches) < 30


async def test_more_partitions_than_are_kept_are_the_leaders_to_serve(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "KEPT_MAX_COUNT", 2)
    async with a_pair(Durability.S3_WAL, partition_count=6) as pair:
        await until(lambda: len(led_by(pair.leader.broker)) == 3)
        client, mine = await pair.other.connect(), led_by(pair.leader.broker)

        async def codes(*indexes: int) -> list[int]:
            wanted = [FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1 << 20) for each in indexes]
            fetched = FetchTopic(topic=TOPIC, topic_id=pair.topic_id, partitions=wanted)
            request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[fetched], rack_id=THERE)
            return [each.error_code for each in (await client.request(request, FetchResponse)).responses[0].partitions]

        assert await codes(*mine[:2]) == [e.NONE, e.NONE]
        pair.store.calls.clear()
        for _ in range(3):
            assert await codes(*mine) == [e.NONE, e.NONE, e.NOT_LEADER_OR_FOLLOWER]
        assert [each for each in pair.store.calls if each.operation == "list" and TOPIC in str(each)] == []
        await trio.sleep(following.IDLE_SECONDS + 1)
        assert await codes(mine[2]) == [e.NONE]


async def test_a_fetch_waiting_on_an_unreadable_stream_is_sent_to_the_leader(
    autojump_clock: MockClock, pair: Pair
) -> None:
    await pair.produce()
    await pair.fetch(pair.other, 0)
    answers: list[PartitionData] = []

    async def wait() -> None:
        answers.append(await pair.fetch(pair.other, 3, max_wait_ms=20_000))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            await pair.produce(1)
            key = wal_key("default", incarnation_of(pair), stream_of(pair).next_number).key
            await pair.store.put(key, [b"damaged" * 20])
    assert answers[0].error_code == e.NOT_LEADER_OR_FOLLOWER
