"""Brokers are taken away until one is left, which goes on as a cluster of one."""

from __future__ import annotations

from trio.testing import MockClock

from kafscale.wire import error_codes
from tests.cluster.membership.test_several import create, led_by, machines, produce, topic_at, until, values


async def test_the_last_broker_of_a_cluster_continues_alone_and_can_be_joined_again(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run() as a:
        membership = a.broker.services.membership
        async with two.run() as b:
            await create(a.broker, 4)
            await until(lambda: len(led_by(b.broker)) == 2)
            for index in led_by(b.broker):
                assert await produce(b, index, b"x") == error_codes.NONE
            moved = led_by(b.broker)
            await membership.set_draining(2, True)
            await until(lambda: len(led_by(a.broker)) == 4)
        await until(lambda: not a.broker.services.assignment.state.live().get(2))  # type: ignore[attr-defined]
        await membership.unregister(2)
    async with one.run(several_brokers=False) as a:
        await topic_at(a.broker)
        assert led_by(a.broker) == [0, 1, 2, 3]
        assert [node.node_id for node in a.broker.services.assignment.brokers()] == [1]
        for index in moved:
            assert await values(a, index) == [b"x"]
            assert await produce(a, index, b"y") == error_codes.NONE
        await create(a.broker, 3, "later")
        async with two.run() as b:  # it was forgotten, and so was that it is drained
            await until(lambda: len(led_by(b.broker)) >= 2)
