"""A transaction whose coordinator was lost with its disk is aborted by the leader of the partition, beside others."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.placement.administration import BrokerAdministration
from kafscale.cluster.membership.records import BrokerState
from kafscale.cluster.registries.topic_names import TRANSACTION_STATE_NAME
from kafscale.cluster.transactions.hanging import INTERVAL_SECONDS
from kafscale.config import Durability
from kafscale.wire import error_codes as e
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from tests.api.several_brokers import key_in
from tests.cluster.membership.test_fail_over import cluster
from tests.cluster.membership.test_several import MODES, TOPIC, create, led_by, topic_at, until
from tests.cluster.membership.test_transactions import PROTOCOLS, SETTINGS, led_by_all, two_brokers
from tests.devtools.fakes.transactional_producer import NEW, Producer, committed_values


@pytest.mark.parametrize("version", PROTOCOLS)
async def test_a_transaction_of_a_coordinator_lost_with_its_disk_is_aborted(
    autojump_clock: MockClock, version: int
) -> None:
    async with cluster(3, Durability.WAL, flush_interval_seconds=3600.0, **SETTINGS) as running:
        brokers = running.brokers
        await create(brokers[1].broker, 3)
        for each in brokers.values():
            await topic_at(each.broker)
        await until(lambda: running.all_led(3, [1, 2, 3]))
        anybody = FindCoordinatorRequest(key_type=1, coordinator_keys=["any"])
        await (await brokers[1].connect()).request(anybody, FindCoordinatorResponse)  # makes the topic
        await until(lambda: sum(len(led_by_all(each, TRANSACTION_STATE_NAME)) for each in brokers.values()) == 4)
        lost = max(brokers, key=lambda each: (len(led_by_all(brokers[each], TRANSACTION_STATE_NAME)), each != 1))
        key = key_in(led_by_all(brokers[lost], TRANSACTION_STATE_NAME)[0], 4, "t")
        left = running.others(lost)
        (index,) = led_by(brokers[left[0]].broker)
        producer = Producer(await brokers[lost].connect(), key, version, coordinator_id=lost)
        assert await producer.init() == e.NONE
        if version < NEW:
            assert await producer.add(index) == [e.NONE]
        there = attrs.evolve(producer, client=await brokers[left[0]].connect())
        assert await there.send(index, b"never committed") == e.NONE
        brokers[lost].kill()
        await until(lambda: running.state(left[0]).brokers[lost].state is BrokerState.AWAY)
        partition = brokers[left[0]].broker.services.log.partition_named(TOPIC, index)
        assert partition is not None
        await trio.sleep(5 * INTERVAL_SECONDS)
        assert partition.transactions.open  # its coordinator may come back, and know
        await BrokerAdministration(running.state(left[0])).give_up(lost)
        await until(lambda: sum(len(led_by_all(brokers[each], TRANSACTION_STATE_NAME)) for each in left) == 4)
        await trio.sleep(3 * INTERVAL_SECONDS)
        assert not partition.transactions.open
        assert partition.last_stable_offset == partition.next_offset
        assert brokers[left[0]].broker.services.transactions.hanging.value == 1
        assert await committed_values(await brokers[left[0]].connect(), index) == []


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("version", PROTOCOLS)
async def test_a_transaction_coordinated_by_another_broker_stays_open_until_its_end(
    autojump_clock: MockClock, durability: Durability, version: int
) -> None:
    async with two_brokers(durability) as two:
        producer = await two.producer(version)
        assert await producer.init(timeout_ms=900_000) == e.NONE
        here, there = two.places()
        await producer.write(here, b"x")
        await producer.write(there, b"x")
        await trio.sleep(5 * INTERVAL_SECONDS)
        assert two.partition(here).transactions.open
        assert two.partition(there).transactions.open
        assert await producer.end(committed=True) == e.NONE
        assert await two.committed(here) == await two.committed(there) == [b"x"]
        for each in two.brokers.values():
            assert each.broker.services.transactions.hanging.value == 0
