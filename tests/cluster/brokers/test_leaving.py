"""A broker that is stopped has others lead what it leads, where there are others that stay."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kafscale.config import Durability
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from tests.cluster.brokers.test_several import (
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


@pytest.mark.parametrize("durability", MODES)
async def test_others_lead_what_a_stopped_broker_led_and_it_leads_again_when_it_is_back(
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


async def test_a_drained_broker_is_given_nothing_by_one_that_leaves(autojump_clock: MockClock) -> None:
    one, two, three = machines(3)
    async with one.run() as a, three.run() as c:
        async with two.run() as b:
            membership = a.broker.services.membership
            assert membership is not None
            await until(lambda: 3 in membership.records)
            await membership.set_draining(3, True)
            await create(a.broker, 4)
            await until(lambda: [len(led_by(each.broker)) for each in (a, b, c)] == [2, 2, 0])
        await until(lambda: len(led_by(a.broker)) == 4)
        assert led_by(c.broker) == []
        assert TOPIC in c.broker.services.log.by_name
