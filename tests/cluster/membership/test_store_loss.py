"""A broker that alone has lost the store: others lead what it led, and nothing moves where all have lost it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.broker_storage import StorageParts
from kafscale.cluster.membership.records import BrokerState
from kafscale.config import Durability, Settings
from kafscale.errors import BrokerUnavailable, DeclaredDead, SlowDown, StoreUnavailable
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.opening.views import StoreViews
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.reach import Reach
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from kafscale.wire.messages.topics import MetadataRequest, MetadataResponse
from tests.cluster.membership.test_fail_over import MODES, Cluster, check_goes_on, cluster, topic_of
from tests.cluster.membership.test_several import Machine, led_by, produce, until

STORE_TIMEOUT_SECONDS = Settings().broker_store_timeout_seconds
MOVED_SECONDS = STORE_TIMEOUT_SECONDS + 3.0
LONG_SECONDS = 40.0

Cut = Callable[[FaultyStore], Callable[[], None]]  # returns what ends it


def refuse(store: FaultyStore) -> Callable[[], None]:
    return partial(store.end, store.fail(On(), StoreUnavailable))


def say_busy(store: FaultyStore) -> Callable[[], None]:
    return partial(store.end, store.fail(On(), SlowDown))


def hang(store: FaultyStore) -> Callable[[], None]:
    return store.hold(On()).open


CUTS = [refuse, say_busy, hang]


@attrs.define(eq=False)
class FarMachine(Machine):
    """One whose way to the bucket can fail, and which tries again as a broker does."""

    def parts(self) -> StorageParts:
        reach = Reach("the object store", partial(self.bucket.head, "probe"))
        metrics = StoreMetrics.register(Metrics())
        retrying = RetryingStore(self.bucket, RetryPolicy(), Random(self.broker_id), metrics, reach)
        views = StoreViews.alike(retrying, reach)
        return StorageParts(store=retrying, metadata=self.metadata, disk=self.disk, views=views)


@asynccontextmanager
async def far_cluster(count: int, durability: Durability) -> AsyncIterator[Cluster]:
    """Run brokers that have a way to the bucket each."""
    async with cluster(0) as running:
        for broker_id in range(1, count + 1):
            running.machines[broker_id] = FarMachine(FaultyStore(running.bucket), broker_id)
            await running.start(broker_id, durability)
        await until(lambda: running.controller() > 0)
        yield running


def store_of(running: Cluster, broker_id: int) -> FaultyStore:
    store: ObjectStore = running.machines[broker_id].bucket
    assert isinstance(store, FaultyStore)
    return store


def states(running: Cluster, at: int) -> Collection[BrokerState]:
    return {record.state for record in running.state(at).brokers.values()}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("loses", ["a member", "the controller"])
@pytest.mark.parametrize("durability", MODES)
async def test_partitions_of_a_broker_that_alone_lost_the_store_fail_over(
    autojump_clock: MockClock, durability: Durability, loses: str, cut: Cut
) -> None:
    """Nothing of it was acknowledged for as long as it had lost the store, as it was heard of all the time."""
    async with far_cluster(3, durability) as running:
        await topic_of(running, 6)
        controller = running.controller()
        lost = controller if loses == "the controller" else running.others(controller)[0]
        left = running.others(lost)
        await trio.sleep(LONG_SECONDS)  # it looks seldom by then
        client, index = await running.brokers[lost].connect(), led_by(running.brokers[lost].broker)[0]
        end = cut(store_of(running, lost))
        began = trio.current_time()
        with suppress(BrokerUnavailable):  # where it answers nobody any more
            assert await produce(running.brokers[lost], index, b"lost") != error_codes.NONE
        await until(lambda: running.all_led(6, left))
        assert STORE_TIMEOUT_SECONDS <= trio.current_time() - began <= MOVED_SECONDS
        with pytest.raises(BrokerUnavailable):
            await client.request(MetadataRequest(topics=None), MetadataResponse)
        await check_goes_on(running, 6, left)
        await trio.sleep(LONG_SECONDS)
        assert not running.brokers[lost].ended.is_set()
        end()
        await running.brokers[lost].ended.wait()
        failure = running.brokers[lost].failure
        assert failure is not None
        assert failure.subgroup(DeclaredDead) is not None
        assert running.controller_as_seen_by(left[0]) in left
        await running.start(lost, durability)
        await until(lambda: all(led_by(each.broker) for each in running.brokers.values()))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("late_seconds", [0.0, 1.5])
async def test_nothing_moves_where_all_lose_the_store(
    autojump_clock: MockClock, durability: Durability, cut: Cut, late_seconds: float
) -> None:
    """Some lose it, and have it back, sooner than others."""
    async with far_cluster(3, durability) as running:
        await topic_of(running, 6)
        led = {each: led_by(running.brokers[each].broker) for each in running.brokers}
        for lost_seconds in (2.0, STORE_TIMEOUT_SECONDS - 0.1, STORE_TIMEOUT_SECONDS + 1.0, LONG_SECONDS):
            ends = []
            for each in running.brokers:
                ends.append(cut(store_of(running, each)))
                await trio.sleep(late_seconds / 2)
            await trio.sleep(lost_seconds)
            for end in ends:
                end()
                await trio.sleep(late_seconds / 2)
            await trio.sleep(LONG_SECONDS)
            assert {each: led_by(running.brokers[each].broker) for each in running.brokers} == led
            assert states(running, 1) == {BrokerState.LIVE}


async def test_the_last_that_reaches_the_store_leads_everything(autojump_clock: MockClock) -> None:
    async with far_cluster(3, Durability.S3_WAL) as running:
        await topic_of(running, 6)
        last = running.others(running.controller())[0]
        for each in running.others(last):
            refuse(store_of(running, each))
        await until(lambda: running.all_led(6, [last]))
        await check_goes_on(running, 6, [last])


async def test_a_controller_with_a_local_log_that_loses_the_store_is_replaced_but_leads_on(
    autojump_clock: MockClock,
) -> None:
    async with far_cluster(3, Durability.WAL) as running:
        await topic_of(running, 6)
        lost = running.controller()
        other = running.others(lost)[0]
        mine = led_by(running.brokers[lost].broker)
        hang(store_of(running, lost))
        await trio.sleep(MOVED_SECONDS)
        assert running.controller_as_seen_by(other) != lost
        for index in mine:
            assert await produce(running.brokers[lost], index, b"after") == error_codes.NONE
        await trio.sleep(LONG_SECONDS)
        assert led_by(running.brokers[lost].broker) == mine
        assert states(running, other) == {BrokerState.LIVE}
