"""Produces that are like earlier ones take a shorter way, and nobody can tell by what comes of it."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio.testing

from kafscale.api.produce import ProduceGroup, ShortWay
from kafscale.api.produce.short_way import LEARNED_EVERY_COUNT, PlainProduces
from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Durability
from kafscale.errors import StorageFailed
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.tail import coalesce
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import TRANSACTIONAL, set_max_timestamp
from kafscale.wire.codec import encode
from kafscale.wire.frames import SIZE_BYTES, RequestHeader, request_frame
from kafscale.wire.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.records import ProducerStamp, Record, build_batch
from tests.api.handlers import some_peer
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings

TOPICS = {"orders": {}, "keyed": {"cleanup.policy": "compact"}, "stamped": {"message.timestamp.type": "LogAppendTime"}}
NOW_MS = time.time_ns() // 1_000_000
VERSION = 9
BY_ID = 13
Outcome = tuple[Sequence[PartitionProduceResponse], Sequence[bytes], float]


def batch_of(rng: random.Random) -> bytes:
    """Good ones as a rule; also what is refused, repeated, or answered in another way."""
    key = rng.choice([b"k", b"k", b"k", None])
    timestamp_ms = NOW_MS + rng.choice([0, 0, 0, 10**9])
    values = [rng.randbytes(rng.choice([1, 100])) for _ in range(rng.choice([1, 1, 5]))]
    stamp = ProducerStamp(rng.choice([7, 8]), 0, rng.choice([0, 0, 1, 2, 3])) if rng.random() < 0.5 else ProducerStamp()
    batch = build_batch(
        [Record(key=key, value=value, timestamp_ms=timestamp_ms) for value in values],
        codec=rng.choice([compression.NONE, compression.NONE, compression.GZIP, compression.ZSTD]),
        attributes=rng.choice([0] * 8 + [TRANSACTIONAL]),
        producer=stamp,
    )
    if rng.random() < 0.1:
        with memoryview(batch) as view:
            set_max_timestamp(view, NOW_MS - 1)
    if rng.random() < 0.1:
        batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
    return bytes(batch)


def requests_of(rng: random.Random) -> list[ProduceRequest]:
    found = []
    for number in range(80):
        topic = rng.choice(["orders", (*TOPICS, "unknown")[number // 20]])
        data = PartitionProduceData(index=rng.choice([0, 0, 1, 2]), records=memoryview(batch_of(rng)))
        topics = [TopicProduceData(name=topic, partition_data=[data])]
        found.append(ProduceRequest(acks=rng.choice([-1, -1, 1, 3]), timeout_ms=1_000, topic_data=topics))
    return found


@asynccontextmanager
async def broker(durability: Durability = Durability.WAL) -> AsyncIterator[MemoryBroker]:
    async with memory_broker(memory_parts(), memory_settings(durability=durability)) as running:
        topics = [NewTopic(name=name, partition_count=2, overrides=dict(each)) for name, each in TOPICS.items()]
        await running.broker.services.topics.create(topics)
        yield running


def partitions_of(running: MemoryBroker) -> list[Partition]:
    found = (running.broker.services.log.partition_named(name, index) for name in TOPICS for index in (0, 1))
    return [each for each in found if each is not None]


def stored(partition: Partition) -> bytes:
    """The batches, but for their broker's times and the CRCs over these."""
    slices = coalesce(partition.tail.batches)
    try:
        return b"".join(slices.buffers) if not partition.config.log_append_time else b"%d" % partition.next_offset
    finally:
        slices.release()


async def send(client: Connection, requests: Sequence[ProduceRequest], version: int = VERSION) -> list[ProduceResponse]:
    """All in one write, so that the broker finds them in one read."""
    call = client.call(ProduceRequest, ProduceResponse, version=version)
    replies = await client.send_many(call, [encode(each, version) for each in requests])
    return [await reply.wait() for reply in replies]


def add_ids(running: MemoryBroker, requests: Sequence[ProduceRequest]) -> None:
    """Say by id, too, which topics the requests name; an id that no topic has for one that does not exist."""
    for topic in (topic for request in requests for topic in request.topic_data):
        found = running.broker.services.topics.get(topic.name)
        topic.topic_id = bytes(range(16)) if found is None else found.topic_id


async def outcome(requests: Sequence[ProduceRequest], version: int = VERSION) -> Outcome:
    async with broker() as running:
        client = await running.connect()
        add_ids(running, requests)
        answers = [each.responses[0].partition_responses[0] for each in await send(client, requests, version)]
        for answer in answers:
            answer.log_append_time_ms = min(answer.log_append_time_ms, 0)
        requests_counted = running.broker.metrics.families["kafscale_requests_total"].of("Produce").value  # type: ignore[union-attr,call-arg]
        return answers, [stored(each) for each in partitions_of(running)], requests_counted


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request that was like an earlier one was plain."""
    found: list[bool] = []
    take = ShortWay.take

    def spy(self: ShortWay, frame: memoryview) -> ProduceGroup | None:
        group = take(self, frame)
        if self._patterns.match(frame) is not None:
            found.append(group is not None)
        return group

    monkeypatch.setattr(ShortWay, "take", spy)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("version", [VERSION, BY_ID])
async def test_the_short_way_and_the_long_one_have_the_same_outcome(
    version: int, seed: int, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    requests = requests_of(random.Random(seed))
    short = await outcome(requests, version)
    assert any(taken)
    assert not all(taken)
    monkeypatch.setattr(PlainProduces, "match", lambda self, frame: None)
    assert await outcome(requests, version) == short


async def test_by_name_and_by_id_have_the_same_outcome_but_for_topics_that_do_not_exist(
    autojump_clock: trio.testing.MockClock,
) -> None:
    requests = requests_of(random.Random(1))
    by_name, by_id = await outcome(requests, VERSION), await outcome(requests, BY_ID)
    assert by_name[1:] == by_id[1:]
    unknown = [error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.UNKNOWN_TOPIC_ID]
    for request, named, found in zip(requests, by_name[0], by_id[0], strict=True):
        is_known = request.topic_data[0].name in TOPICS
        if is_known or request.acks not in (-1, 1):
            assert named == found
        else:
            assert [named.error_code, found.error_code] == unknown
    assert {unknown[1]} < {each.error_code for each in by_id[0]}


def plain_requests(count: int, *, partitions: int = 1) -> list[ProduceRequest]:
    return [
        ProduceRequest(
            acks=-1,
            timeout_ms=1_000,
            topic_data=[
                TopicProduceData(
                    name="orders",
                    partition_data=[
                        PartitionProduceData(
                            index=number % partitions,
                            records=memoryview(build_batch([Record(value=b"%d" % number, timestamp_ms=NOW_MS)])),
                        )
                    ],
                )
            ],
        )
        for number in range(count)
    ]


async def test_all_of_a_read_are_answered_with_an_error_if_its_round_fails(
    autojump_clock: trio.testing.MockClock, taken: list[bool]
) -> None:
    async with broker(Durability.SEGMENT) as running:
        client = await running.connect()
        partition = partitions_of(running)[0]
        partition.on_dirty = lambda partition: None
        (first, *others) = plain_requests(5)
        async with trio.open_nursery() as nursery:

            async def expect_refusal() -> None:
                answers = [each.responses[0].partition_responses[0] for each in await send(client, [first, *others])]
                assert [each.error_code for each in answers] == [error_codes.KAFKA_STORAGE_ERROR] * 5
                assert [each.base_offset for each in answers] == [-1] * 5
                assert {each.error_message for each in answers} == {"the disk has gone"}

            nursery.start_soon(expect_refusal)
            await trio.testing.wait_all_tasks_blocked()
            assert taken == [True] * 4
            partition.journal.forget(partition, StorageFailed("the disk has gone"))
        errors = running.broker.metrics.families["kafscale_errors_total"]
        assert errors.of("Produce", "KAFKA_STORAGE_ERROR").value == 5  # type: ignore[union-attr,call-arg]


async def test_a_produce_does_not_wait_for_a_slower_partition_of_another_produce(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with broker(Durability.SEGMENT) as running:
        client = await running.connect()
        late = partitions_of(running)[1]
        late.on_dirty = lambda partition: None
        call = client.call(ProduceRequest, ProduceResponse, version=VERSION)
        await send(client, plain_requests(1))
        replies = await client.send_many(call, [encode(each, VERSION) for each in plain_requests(2, partitions=2)])
        assert (await replies[0].wait()).responses[0].partition_responses[0].error_code == error_codes.NONE
        assert replies[1].body is None
        running.broker.services.log.flusher.mark(late)
        assert (await replies[1].wait()).responses[0].partition_responses[0].base_offset == 0


def known_way(running: MemoryBroker, *versions: int) -> tuple[ShortWay, list[memoryview]]:
    """A short way that knows requests of these versions, and one of each."""
    way = ShortWay(running.broker.services, some_peer())
    frames = []
    for version in versions:
        header = RequestHeader(0, version, correlation_id=7, client_id="c")
        requests = plain_requests(1)
        add_ids(running, requests)
        parts = request_frame(header, encode(requests[0], version), flexible_header=version >= 9)
        frames.append(memoryview(b"".join(parts))[SIZE_BYTES:])
    for frame in frames:
        for _ in range(LEARNED_EVERY_COUNT):
            way.learn(frame)
    return way, frames


async def test_requests_of_two_versions_are_two_groups(autojump_clock: trio.testing.MockClock) -> None:
    async with broker() as running:
        way, (older, newer) = known_way(running, 8, 9)
        groups = [way.take(frame) for frame in (older, older, newer, newer)]
        assert groups[0] is groups[1]
        assert groups[2] is groups[3]
        assert [group and (group.call.version, len(group.replies)) for group in groups[1:3]] == [(8, 2), (9, 2)]


async def test_a_deleted_topic_id_is_not_taken_by_the_short_way(autojump_clock: trio.testing.MockClock) -> None:
    async with broker() as running:
        way, (frame,) = known_way(running, BY_ID)
        assert way.take(frame) is not None
        way.interrupt()
        await running.broker.services.topics.delete(["orders"])
        assert way.take(frame) is None


async def test_while_the_log_has_no_room_nothing_takes_the_short_way(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker() as running:
        way, (frame,) = known_way(running, 9)
        with monkeypatch.context() as full:
            full.setattr(type(running.broker.services.log.journal), "is_full", property(lambda self: True))
            assert way.take(frame) is None
            assert partitions_of(running)[0].next_offset == 0
        assert way.take(frame) is not None
        assert partitions_of(running)[0].next_offset == 1
