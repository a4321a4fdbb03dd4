"""A partition that is handed over is led by nobody for a short time, and by the right one in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.leading.leading import RELEASED_LEAST_COUNT, RETRY_SECONDS
from kafscale.cluster.membership.peers.heartbeats import (
    TOLD_MAX_BYTES,
    TOLD_MAX_COUNT,
    LeaderNotices,
    ReleasedContents,
)
from kafscale.cluster.membership.records import record_key
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.metadata.shared import ATTEMPTS_MAX_SECONDS
from kafscale.config import Durability
from kafscale.errors import BrokerUnavailable
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.brokers import OwnHeartbeatRequest, OwnHeartbeatResponse, ReleasedPartition
from kafscale.wire.records import ProducerStamp
from tests.cluster.membership.test_several import (
    MODES,
    SOON_SECONDS,
    TOPIC,
    Machine,
    create,
    led_by,
    move,
    produce,
    until,
    values,
)
from tests.cluster.membership.test_streams import crashing, fail_over, placements, produce_all
from tests.devtools.fakes.memory_broker import MemoryBroker

OUTAGE_SECONDS = 45.0  # longer than a commit is tried

STATE = ClusterState(MemoryMetadataStore(), 1, 1)


@asynccontextmanager
async def two(durability: Durability) -> AsyncIterator[tuple[FaultyStore, MemoryBroker, MemoryBroker, int]]:
    """Run two brokers that lead a partition each: yields the second one's bucket, both, and what the first one leads,
    with two records in it.
    """
    bucket = MemoryStore()
    seen = FaultyStore(bucket)
    async with Machine(bucket, 1).run(durability) as a, Machine(seen, 2).run(durability) as b:
        await create(a.broker, 2)
        await until(lambda: len(led_by(b.broker)) == 1)
        (index,) = led_by(a.broker)
        await produce_all(a, index, [b"1", b"2"])
        yield seen, a, b, index


@asynccontextmanager
async def forty_each() -> AsyncIterator[tuple[FaultyStore, MemoryBroker, MemoryBroker, Sequence[int]]]:
    """Run two brokers that lead forty partitions each: yields the first one's bucket, both, and what the first leads,
    with a record in each.
    """
    bucket = MemoryStore()
    slow = FaultyStore(bucket)
    async with Machine(slow, 1).run() as a, Machine(bucket, 2).run() as b:
        await create(a.broker, 80)
        await until(lambda: len(led_by(b.broker)) == 40)
        mine = led_by(a.broker)
        for index in mine:
            await produce_all(a, index, [b"x"])
        yield slow, a, b, mine


@pytest.mark.parametrize("durability", MODES)
async def test_a_handed_over_partition_begins_at_its_release_without_another_commit(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> None:
    async with two(durability) as (seen, a, b, index):
        gate = seen.hold(On("list"))
        monkeypatch.setattr(ReleasedContents, "take", lambda _self, _partition_id, _leader_epoch: None)
        await move(a, [index], 2)
        await gate.wait_arrived()
        placement = placements(b)[index]
        assert (placement.leader, placement.is_decided, placement.decided_offset) == (2, True, 2)
        seen.calls.clear()
        gate.open()
        await until(lambda: index in led_by(b.broker))
        assert seen.count("put_if_match") == 0
        await produce_all(b, index, [b"3"])
        assert await values(b, index) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("durability", MODES)
async def test_a_batch_that_overtook_its_predecessor_in_a_hand_over_can_be_retried(
    autojump_clock: MockClock, durability: Durability
) -> None:
    """librdkafka has several under way. Were the second one out of order, it would take a new epoch and send again in
    it what other partitions have already, if their leader was lost before it answered.
    """
    async with two(durability) as (_, a, b, index):
        stamps = [ProducerStamp(7, 0, sequence) for sequence in range(3)]
        assert await produce(a, index, b"3", stamps[0]) == error_codes.NONE
        await move(a, [index], 2)
        await until(lambda: index in led_by(b.broker))
        assert await produce(b, index, b"5", stamps[2]) == error_codes.NOT_LEADER_OR_FOLLOWER
        for value, stamp in zip((b"4", b"5"), stamps[1:], strict=True):
            assert await produce(b, index, value, stamp) == error_codes.NONE
        assert await values(b, index) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("durability", MODES)
async def test_the_next_leader_does_not_read_the_manifest_sent_by_the_former_one(
    autojump_clock: MockClock, durability: Durability
) -> None:
    async with two(durability) as (seen, a, b, index):
        before = a.broker.services.log.by_name[TOPIC][index]
        assert before is not None
        seen.calls.clear()
        await move(a, [index], 2)
        await until(lambda: index in led_by(b.broker))
        assert seen.count(key=f"*/{TOPIC}/*") == 0
        partition = b.broker.services.log.by_name[TOPIC][index]
        assert partition is not None
        assert partition.manifest.segments == before.manifest.segments
        await produce_all(b, index, [b"3"])
        assert await values(b, index) == [b"1", b"2", b"3"]
        await move(b, [index], 1)
        await until(lambda: index in led_by(a.broker))
        assert await values(a, index) == [b"1", b"2", b"3"]


async def test_a_late_hand_over_message_is_ignored_by_a_later_leader(autojump_clock: MockClock) -> None:
    """A broker that can't commit that another one leads leads again itself, with the epoch that it was told of."""
    bucket = MemoryStore()
    failing = FaultyStore(bucket)
    async with Machine(failing, 1).run() as a, Machine(bucket, 2).run() as b:
        hear = a.broker.services.heard_of
        assert hear is not None
        heard: list[OwnHeartbeatRequest] = []

        async def remember(request: OwnHeartbeatRequest) -> OwnHeartbeatResponse:
            heard.append(request)
            return await hear(request)

        a.broker.services.heard_of = remember
        await create(a.broker, 2)
        await until(lambda: len(led_by(b.broker)) == 1)
        (index,) = led_by(b.broker)
        await produce_all(b, index, [b"1"])
        await move(b, [index], 1)
        await until(lambda: index in led_by(a.broker))
        (told,) = [each for each in heard if each.released]
        await produce_all(a, index, [b"2"])
        gate = failing.hold(On("put_if_absent", "*.kfs"))
        await move(a, [index], 2)
        await gate.wait_arrived()
        rule = failing.fail(On("put_if_match", "*/head"))
        gate.open()
        await trio.sleep(ATTEMPTS_MAX_SECONDS + RETRY_SECONDS / 2)  # it has given up, and not begun again
        assert index not in led_by(a.broker)
        await move(b, [index], 1)
        await hear(told)
        failing.end(rule)
        await until(lambda: index in led_by(a.broker))
        assert placements(a)[index].epoch == told.released[0].leader_epoch
        await produce_all(a, index, [b"3"])
        assert await values(a, index) == [b"1", b"2", b"3"]


async def test_the_next_leader_looks_at_once(autojump_clock: MockClock) -> None:
    bucket = MemoryStore()
    async with Machine(bucket, 1).run() as a, Machine(bucket, 2).run() as b:
        await create(a.broker, 40)
        await until(lambda: len(led_by(b.broker)) == 20)
        await trio.sleep(5.0)
        began = trio.current_time()
        wanted = {*led_by(a.broker)}
        await move(a, [*wanted], 2)
        with trio.fail_after(SOON_SECONDS):
            while not wanted <= {*led_by(b.broker)}:
                await trio.sleep(0.001)
        assert trio.current_time() - began < 0.05


async def test_partitions_waiting_for_their_hand_over_are_still_served(autojump_clock: MockClock) -> None:
    async with forty_each() as (slow, a, b, mine):
        slow.delay(On("put*"), 0.1)
        await move(a, mine, 2)
        least_count, wanted = 40, {*mine}
        with trio.fail_after(SOON_SECONDS):
            while not wanted <= {*led_by(b.broker)}:
                least_count = min(least_count, len(wanted & {*led_by(a.broker), *led_by(b.broker)}))
                await trio.sleep(0.01)
        assert 0 < 40 - least_count <= 2 * RELEASED_LEAST_COUNT
        for index in mine:
            assert await values(b, index) == [b"x"]


async def test_a_move_that_is_taken_back_before_its_turn_changes_nothing(autojump_clock: MockClock) -> None:
    async with forty_each() as (slow, a, b, mine):
        gate = slow.hold(On("put_if_absent", "*.kfs"))
        await move(a, mine, 2)
        await gate.wait_arrived(RELEASED_LEAST_COUNT)
        before = {index: placements(a)[index] for index in mine}
        led = a.broker.services.log.by_name[TOPIC]
        kept = [index for index in mine if (each := led[index]) is not None and not each.is_leaving][:4]
        await move(a, kept, 1)
        gate.open()
        await until(lambda: {*mine} - {*kept} <= {*led_by(b.broker)})
        assert {*kept} <= {*led_by(a.broker)}
        assert all(placements(a)[index].epoch == before[index].epoch for index in kept)


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("durability", MODES)
async def test_a_hand_over_commit_that_fails_for_long_loses_no_records(
    autojump_clock: MockClock, durability: Durability, *, goes_on: bool
) -> None:
    """It was opened empty, as it was new when this broker began to lead it."""
    bucket = MemoryStore()
    failing = FaultyStore(bucket)
    async with Machine(failing, 1).run(durability) as a, Machine(bucket, 2).run(durability) as b:
        await create(a.broker, 2)
        await until(lambda: len(led_by(b.broker)) == 1)
        (index,) = led_by(a.broker)
        await produce_all(a, index, [b"1", b"2"])
        gate = failing.hold(On("put_if_absent", "*.kfs"))
        if durability is Durability.SEGMENT:
            gate.open()
        await move(a, [index], 2)
        if durability is not Durability.SEGMENT:
            await gate.wait_arrived()
        rule = failing.fail(On("put_if_match", "*/head"))
        gate.open()
        await trio.sleep(OUTAGE_SECONDS)
        assert rule.met_count
        assert led_by(a.broker) == []
        if not goes_on:
            await move(b, [index], 1)
        failing.end(rule)
        leader = b if goes_on else a
        await until(lambda: index in led_by(leader.broker))
        await produce_all(leader, index, [b"3"])
        assert await values(leader, index) == [b"1", b"2", b"3"]


async def test_an_unrecovered_stream_is_recovered_by_the_next_leader(autojump_clock: MockClock) -> None:
    """Its stream was forgotten, and acknowledged records were lost."""
    bucket = MemoryStore()
    failing = FaultyStore(bucket)
    async with crashing(Machine(failing, 1)) as a, crashing(Machine(bucket, 3)) as c:
        async with crashing(Machine(bucket, 2)) as b:
            await create(a.broker, 3)
            await until(lambda: len(led_by(b.broker)) == 1)
            (index,) = led_by(b.broker)
            await produce_all(b, index, [b"1", b"2"])
        rule = failing.fail(On("list"))
        await fail_over(a, 2, 1)
        await until(lambda: rule.met_count)
        assert index not in led_by(a.broker)
        await until(lambda: placements(c)[index].leader == 1)
        await move(c, [index], 3)
        await until(lambda: index in led_by(c.broker))
        assert await values(c, index) == [b"1", b"2"]


@attrs.define(eq=False)
class FakeCalls:
    """Answers when it is let; `asked` are the revisions that it was told."""

    requests: list[OwnHeartbeatRequest] = attrs.field(factory=list)
    answer: trio.Event = attrs.field(factory=trio.Event)
    fails: bool = False

    @property
    def asked(self) -> list[int]:
        return [each.current_metadata_offset for each in self.requests]

    async def ask(self, _broker_id: int, message: Any, _response_class: object) -> None:
        self.requests.append(message)
        await self.answer.wait()
        if self.fails:
            raise BrokerUnavailable("nobody is there")


@pytest.mark.parametrize("fails", [False, True])
async def test_notices_during_a_pending_call_share_the_next_call(autojump_clock: MockClock, *, fails: bool) -> None:
    revision, calls = 1, FakeCalls(fails=fails)
    telling = LeaderNotices(state=STATE, calls=calls, revision=lambda: revision)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(telling.run)
        telling.tell(2)
        await trio.sleep(1.0)
        revision = 3
        telling.tell(2)
        telling.tell(2)
        await trio.sleep(1.0)
        assert calls.asked == [1]
        calls.answer.set()
        await trio.sleep(1.0)
        assert calls.asked == [1, 3]
        telling.tell(2)
        await trio.sleep(1.0)
        assert calls.asked == [1, 3, 3]
        nursery.cancel_scope.cancel()


def released(number: int, leader_epoch: int = 1) -> ReleasedPartition:
    return ReleasedPartition(
        topic_id=bytes(16), partition_index=number, leader_epoch=leader_epoch, contents=b"%d" % leader_epoch
    )


def test_released_contents_are_taken_once_by_the_matching_epoch() -> None:
    told = ReleasedContents()
    told.note([released(0), released(1), released(1, 2), released(2)])
    assert told.take((bytes(16), 0), 1) == b"1"
    assert told.take((bytes(16), 0), 1) is None
    assert told.take((bytes(16), 1), 2) == b"2"
    assert told.take((bytes(16), 2), 3) is None
    assert told.take((bytes(16), 2), 1) is None


def test_released_contents_have_a_memory_limit() -> None:
    """Whoever may send a heartbeat could send a thousand that are as large as a request may be."""
    told = ReleasedContents()
    large = [attrs.evolve(released(number), contents=bytes(TOLD_MAX_BYTES // 4)) for number in range(3)]
    told.note([*large, *large, released(3), *large, released(4)])
    assert told.take((bytes(16), 3), 1) == b"1"
    assert [told.take((bytes(16), number), 1) is not None for number in range(3)] == [True, True, True]
    assert told.take((bytes(16), 4), 1) == b"1"
    told.note([*large, attrs.evolve(released(5), contents=bytes(TOLD_MAX_BYTES))])
    assert [told.take((bytes(16), number), 1) is not None for number in (0, 1, 2, 5)] == [False, False, False, True]
    told.note([attrs.evolve(released(6), contents=bytes(TOLD_MAX_BYTES + 1))])
    assert told.take((bytes(16), 6), 1) is None


async def test_released_contents_and_notices_have_a_count_limit(autojump_clock: MockClock) -> None:
    told, calls = ReleasedContents(), FakeCalls()
    told.note(map(released, range(TOLD_MAX_COUNT + 1)))
    assert told.take((bytes(16), 0), 1) is None
    assert told.take((bytes(16), 1), 1) == b"1"
    telling = LeaderNotices(state=STATE, calls=calls, revision=lambda: 1)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(telling.run)
        for number in range(TOLD_MAX_COUNT + 1):
            telling.tell(2, [released(number)])
        await trio.sleep(1.0)
        (request,) = calls.requests
        assert [each.partition_index for each in request.released] == [*range(1, TOLD_MAX_COUNT + 1)]
        nursery.cancel_scope.cancel()


async def test_nothing_is_released_while_the_bucket_is_away(autojump_clock: MockClock) -> None:
    """Nobody could be told to lead it; with a log of its own its broker goes on to serve it."""
    bucket = MemoryStore()
    slow = FaultyStore(bucket)
    async with Machine(slow, 1).run() as a, Machine(bucket, 2).run() as b:
        await create(a.broker, 80)
        await until(lambda: len(led_by(b.broker)) == 40)
        mine = led_by(a.broker)
        slow.delay(On("put*", "*/head"), seconds=2.0)
        await move(a, mine, 2)
        slow.fail(On("*", "*/head"))
        await trio.sleep(10 * OUTAGE_SECONDS)
        assert len(led_by(a.broker)) >= len(mine) - 2 * RELEASED_LEAST_COUNT
        slow.heal()
        await until(lambda: not set(mine) & set(led_by(a.broker)))


@pytest.mark.parametrize("durability", MODES)
async def test_a_hand_over_to_a_stopping_broker_is_reverted(autojump_clock: MockClock, durability: Durability) -> None:
    """It serves no more of what comes, and nobody would have others lead it before it has stopped."""
    bucket = MemoryStore()
    slow = FaultyStore(bucket)
    async with Machine(slow, 1).run(durability) as a, Machine(bucket, 2).run(durability) as b:
        await create(a.broker, 2)
        await until(lambda: len(led_by(b.broker)) == 1)
        (index,) = led_by(a.broker)
        await produce_all(a, index, [b"1"])
        slow.delay(On("put*", "*/head"), seconds=1.0)
        await move(a, [index], 2)
        await until(lambda: index not in led_by(a.broker))
        state = b.broker.services.assignment.state  # type: ignore[attr-defined]
        leaving = encode(attrs.evolve(state.brokers[2], is_leaving=True))
        await state.follower.commit(Transaction(puts={record_key(2): leaving}, essential=True))
        await until(lambda: index in led_by(a.broker))
        await trio.sleep(10.0)
        assert index in led_by(a.broker)
        assert await values(a, index) == [b"1"]
