"""A broker that is stopped has others lead what it leads, where there are others that stay."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.peers.loads import UNKNOWN, Loads
from kafscale.cluster.membership.placement.choice import Move
from kafscale.cluster.membership.placement.leaving import Departure
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.config import Durability
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from tests.cluster.membership.test_several import (
    MODES,
    TOPIC,
    Machine,
    create,
    led_by,
    machines,
    produce,
    until,
    values,
)
from tests.devtools.fakes.broker_network import RunningBroker


@pytest.mark.parametrize("durability", MODES)
async def test_partitions_of_a_stopped_broker_move_away_and_return_with_the_broker(
    autojump_clock: MockClock, durability: Durability
) -> None:
    one, two, three = machines(3)
    async with one.run(durability) as a, three.run(durability) as c:
        async with two.run(durability) as b:
            await create(a.broker, 6)
            await until(lambda: [len(led_by(each.broker)) for each in (a, b, c)] == [2, 2, 2])
            former = led_by(b.broker)
            for index in former:
                assert await produce(b, index, b"x") == error_codes.NONE
            began = trio.current_time()
        assert trio.current_time() - began < a.broker.settings.shutdown_timeout_seconds / 2
        await until(lambda: [len(led_by(each.broker)) for each in (a, c)] == [3, 3])
        for running in (a, c):
            for index in set(led_by(running.broker)) & set(former):
                assert await values(running, index) == [b"x"]
                assert await produce(running, index, b"y") == error_codes.NONE
        async with two.run(durability) as b:
            await until(lambda: [len(led_by(each.broker)) for each in (a, b, c)] == [2, 2, 2])


async def test_nothing_moves_where_all_are_stopped_at_the_same_time(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run() as a, two.run() as b:
        topic = await create(a.broker, 4)
        await until(lambda: len(led_by(b.broker)) == 2)
        former = led_by(b.broker)
        a.broker.stop()
        b.broker.stop()
    async with one.run() as a, two.run() as b:
        assert led_by(b.broker) == former  # before balance could have moved anything back
        row = b.broker.services.assignment.state.placements[topic.topic_id]  # type: ignore[attr-defined]
        assert all(each.target is None for each in row)


async def test_a_stop_waits_for_no_hand_over_that_takes_too_long(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    slow = FaultyStore(two.bucket)
    gate = slow.hold(On("put*", "*.kfs"))
    machine = Machine(slow, 2)
    async with one.run() as a:
        async with machine.run() as b:
            topic = await create(a.broker, 2)
            await until(lambda: len(led_by(b.broker)) == 1)
            (index,) = led_by(b.broker)
            assert await produce(b, index, b"x") == error_codes.NONE
            began = trio.current_time()
        assert trio.current_time() - began <= b.broker.settings.shutdown_timeout_seconds + 3.0
        await trio.sleep(2.0)
        assert a.broker.services.assignment.leader(topic, index) is None
        gate.open()
        async with Machine(one.bucket, 2, machine.disk, machine.metadata).run():
            await until(lambda: index in led_by(a.broker))  # what had begun with the stop goes on
            assert await values(a, index) == [b"x"]


async def test_a_leaving_broker_gives_no_partitions_to_a_drained_one(autojump_clock: MockClock) -> None:
    one, two, three = machines(3)
    async with one.run() as a, three.run() as c:
        async with two.run() as b:
            membership = a.broker.services.membership
            await until(lambda: 3 in membership.records)
            await membership.set_draining(3, True)
            await create(a.broker, 4)
            await until(lambda: [len(led_by(each.broker)) for each in (a, b, c)] == [2, 2, 0])
        await until(lambda: len(led_by(a.broker)) == 4)
        assert led_by(c.broker) == []
        assert TOPIC in c.broker.services.log.by_name


def targets_count(running: RunningBroker, broker_id: int) -> int:
    """Count the partitions that are on their way to a broker."""
    placements = running.broker.services.assignment.state.placements  # type: ignore[attr-defined]
    return sum(each.target == broker_id for row in placements.values() for each in row)


LONG_SECONDS, SHORT_SECONDS = 120.0, 15.0


async def test_moves_to_a_stopping_broker_are_cancelled(autojump_clock: MockClock) -> None:
    """Nobody would have it led by others: it would wait for the time of the shutdown, and then for this broker."""
    one, two = machines(2)
    slow = FaultyStore(one.bucket)
    async with Machine(slow, 1).run(flush_interval_seconds=3600.0) as a:
        await create(a.broker, 60)
        for index in range(60):
            assert await produce(a, index, b"x") == error_codes.NONE
        slow.delay(On("put*", "*.kfs"), seconds=2.0)
        async with two.run(shutdown_timeout_seconds=LONG_SECONDS) as b:
            await until(lambda: led_by(b.broker) and targets_count(a, 2) > 10)
            began = trio.current_time()
        assert trio.current_time() - began < SHORT_SECONDS
        await until(lambda: len(led_by(a.broker)) == 60)
        assert trio.current_time() - began < SHORT_SECONDS
        for index in range(60):
            assert await values(a, index) == [b"x"]


async def test_a_leaving_broker_picks_other_targets_when_a_target_is_stopped_too(autojump_clock: MockClock) -> None:
    one, two, three = machines(3)
    slow = FaultyStore(two.bucket)
    async with one.run() as a, three.run(shutdown_timeout_seconds=LONG_SECONDS) as c:
        async with Machine(slow, 2).run(shutdown_timeout_seconds=LONG_SECONDS, flush_interval_seconds=3600.0) as b:
            await create(a.broker, 60)
            await until(lambda: [len(led_by(each.broker)) for each in (a, b, c)] == [20, 20, 20])
            for index in led_by(b.broker):
                assert await produce(b, index, b"x") == error_codes.NONE
            slow.delay(On("put*", "*.kfs"), seconds=2.0)
            b.broker.stop()
            await until(lambda: targets_count(a, 3))
            began = trio.current_time()
            c.broker.stop()
        assert trio.current_time() - began < SHORT_SECONDS
        await until(lambda: len(led_by(a.broker)) == 60)
        assert trio.current_time() - began < SHORT_SECONDS


BUSY = Loads({bytes([1] * 16): {0: 1e9}, bytes([3] * 16): {0: 1e9}}, {2: 0.0})


@pytest.mark.parametrize(("loads", "is_shared"), [(UNKNOWN, False), (BUSY, True)], ids=["number", "load"])
async def test_a_leaving_broker_spreads_busy_partitions_over_its_targets(loads: Loads, is_shared: bool) -> None:
    state = ClusterState(MemoryMetadataStore(), 2, 1)
    record = BrokerRecord(
        incarnation=1, state=BrokerState.LIVE, endpoints={}, directory_id="", acknowledges_locally=False
    )
    state.brokers |= dict.fromkeys((1, 2, 3), record)
    state.placements |= {bytes([number] * 16): [Placement(2, 1, 1, 0)] for number in (1, 2, 3, 4)}
    named: dict[bytes, int] = {}

    async def name_targets(moves: Sequence[Move]) -> None:
        await trio.lowlevel.checkpoint()
        named.update({each.topic_id: each.target for each in moves})

    leaving = Departure(
        state=state,
        writer=cast(Any, SimpleNamespace(name_targets=name_targets)),
        refresh=trio.lowlevel.checkpoint,
        balance=cast(Any, SimpleNamespace(liveness=SimpleNamespace(silent=tuple), loads_of_own=lambda: loads)),
    )
    await leaving._name_targets()
    assert sorted(named.values()) == [1, 1, 3, 3]
    assert (named[bytes([1] * 16)] != named[bytes([3] * 16)]) == is_shared
    for topic_id, row in state.placements.items():
        row[0] = attrs.evolve(row[0], target=named[topic_id])
    state.brokers[3] = attrs.evolve(record, is_leaving=True)
    was = {topic_id for topic_id, target in named.items() if target == 3}
    named.clear()
    await leaving._name_targets()
    assert named == dict.fromkeys(was, 1)
