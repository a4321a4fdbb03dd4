"""A broker with a log of its own acknowledges nothing when others may lead in its place, however it was cut off."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.peers.lease import (
    GIVEN_UP_WAIT_SECONDS,
    LEASE_SECONDS,
    RETRY_SECONDS,
    AcknowledgementLease,
)
from kafscale.cluster.membership.peers.liveness import Liveness
from kafscale.cluster.membership.placement.administration import BrokerAdministration
from kafscale.cluster.membership.records import BrokerState, record_key
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.config import Durability
from kafscale.errors import DeclaredDead, KafScaleError
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from kafscale.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.records import Record, build_batch
from tests.cluster.membership.test_fail_over import Cluster, cluster, topic_of
from tests.cluster.membership.test_group_fail_over import commit_offset, committed_offset, coordinator_of
from tests.cluster.membership.test_several import TOPIC, Machine, led_by, produce, until, values
from tests.devtools.fakes.transactional_producer import NEW, Producer
from tests.devtools.world.simulated_process import PROCESS, Process, suspend_machine

WAL = Durability.WAL


class Producing:
    """A produce to partition `index` of broker 3 that may take as long as it likes."""

    def __init__(self, running: Cluster, index: int, value: bytes) -> None:
        self.is_acknowledged = False
        self.running, self.index, self.value = running, index, value
        running.brokers[3].nursery.start_soon(self._run)

    async def _run(self) -> None:
        with suppress(KafScaleError):
            self.is_acknowledged = await produce(self.running.brokers[3], self.index, self.value) == error_codes.NONE


@asynccontextmanager
async def three_with_logs() -> AsyncIterator[tuple[Cluster, list[FaultyStore]]]:
    """Run three brokers, each with a way of its own to the bucket, and a topic of which broker 3 leads a partition."""
    async with cluster(0) as running:
        buckets = [FaultyStore(running.bucket) for _ in range(3)]
        for broker_id, bucket in enumerate(buckets, start=1):
            running.machines[broker_id] = Machine(bucket, broker_id)
            await running.start(broker_id, WAL, flush_interval_seconds=3600.0)
        await until(lambda: running.controller() == 1)
        await topic_of(running, 3)
        yield running, buckets


async def fence(state: ClusterState, broker_id: int) -> None:
    """Give up a broker that the others may still hear of."""
    given_up = attrs.evolve(state.brokers[broker_id], state=BrokerState.FENCED, is_given_up=True)
    await state.follower.commit(Transaction(puts={record_key(broker_id): encode(given_up)}, essential=True))


async def test_producing_continues_while_the_bucket_is_unreachable(autojump_clock: MockClock) -> None:
    async with three_with_logs() as (running, buckets):
        for bucket in buckets:
            bucket.fail(On())
        await trio.sleep(60.0)
        for each in running.brokers.values():
            (index,) = led_by(each.broker)
            assert await produce(each, index, b"meanwhile") == error_codes.NONE


async def test_a_broker_that_reaches_neither_the_bucket_nor_the_others_waits(autojump_clock: MockClock) -> None:
    async with three_with_logs() as (running, buckets):
        (index,) = led_by(running.brokers[3].broker)
        buckets[2].fail(On())
        running.network.cut(3, 1, 2)
        await trio.sleep(10.0)
        late = Producing(running, index, b"late")
        await trio.sleep(30.0)
        assert not late.is_acknowledged
        buckets[2].heal()
        await trio.sleep(5.0)
        assert await values(running.brokers[3], index) == [b"before", b"late"]
        assert await produce(running.brokers[3], index, b"after") == error_codes.NONE


@pytest.mark.parametrize("is_heard", [False, True], ids=["hears nobody", "hears the others"])
async def test_a_given_up_broker_stops_acknowledging_before_others_lead(
    autojump_clock: MockClock, is_heard: bool
) -> None:
    async with three_with_logs() as (running, buckets):
        (index,) = led_by(running.brokers[3].broker)
        buckets[2].fail(On())
        running.network.cut(3, 1, 2, one_way=is_heard)
        await fence(running.state(2), 3)
        acknowledged_at: list[float] = []

        async def produce_all_the_time() -> None:
            with suppress(KafScaleError):
                while await produce(running.brokers[3], index, b"late") == error_codes.NONE:
                    acknowledged_at.append(trio.current_time())
                    await trio.sleep(0.1)

        running.brokers[3].nursery.start_soon(produce_all_the_time)
        await until(lambda: running.all_led(3, [1, 2]))
        led_at = trio.current_time()
        heir = next(each for each in (1, 2) if index in led_by(running.brokers[each].broker))
        assert await values(running.brokers[heir], index) == []  # an operator has accepted that
        buckets[2].heal()
        await running.brokers[3].ended.wait()
        failure = running.brokers[3].failure
        assert failure is not None
        assert failure.split(DeclaredDead)[0] is not None
        assert acknowledged_at
        assert max(acknowledged_at) < led_at - 0.25
        back = await running.start(3, WAL)
        assert back.broker.services.log.kept.superseded.total() >= 1 + len(acknowledged_at)  # kept for the operator


async def test_a_replaced_broker_cut_off_from_the_bucket_stops_acknowledging(
    autojump_clock: MockClock,
) -> None:
    """It hears of the others, who go on as ever."""
    async with three_with_logs() as (running, buckets):
        replaced = running.brokers[3]
        (index,) = led_by(replaced.broker)
        buckets[2].fail(On())
        await trio.sleep(10.0)
        acknowledged_at: list[float] = []

        async def produce_all_the_time() -> None:
            with suppress(KafScaleError):
                while await produce(replaced, index, b"late") == error_codes.NONE:
                    acknowledged_at.append(trio.current_time())
                    await trio.sleep(0.1)

        replaced.nursery.start_soon(produce_all_the_time)
        await trio.sleep(1.0)
        assert len(acknowledged_at) > 5
        running.machines[3] = Machine(running.bucket, 3)  # an empty data directory
        replacing = await running.start(3, WAL)
        led_at = trio.current_time()
        assert led_by(replacing.broker) == [index]
        await trio.sleep(10.0)
        assert max(acknowledged_at) < led_at
        buckets[2].heal()
        await replaced.ended.wait()


async def test_a_broker_that_reaches_neither_peers_nor_the_bucket_stops_acknowledging(
    autojump_clock: MockClock,
) -> None:
    """One that has joined meanwhile may have it given up, and nothing but the bucket would tell of that."""
    async with lone() as (running, bucket):
        bucket.fail(On())
        running.network.cut(3, 1)
        await running.start(1, WAL)
        await until(lambda: running.state(1).brokers[3].state is BrokerState.AWAY)
        await BrokerAdministration(running.state(1)).give_up(3)
        await until(lambda: led_by(running.brokers[1].broker) == [0])
        late = Producing(running, 0, b"late")
        await trio.sleep(30.0)
        assert not late.is_acknowledged
        bucket.heal()
        await running.brokers[3].ended.wait()
        assert not late.is_acknowledged


async def test_a_lone_broker_acknowledges_again_when_the_bucket_is_back(autojump_clock: MockClock) -> None:
    async with lone() as (running, bucket):
        bucket.fail(On())
        await trio.sleep(LEASE_SECONDS + RETRY_SECONDS)
        late = Producing(running, 0, b"late")
        await trio.sleep(60.0)
        assert not late.is_acknowledged
        assert await values(running.brokers[3], 0) == [b"before"]
        bucket.heal()
        with trio.fail_after(2 * RETRY_SECONDS):
            assert await produce(running.brokers[3], 0, b"after") == error_codes.NONE
        assert await values(running.brokers[3], 0) == [b"before", b"late", b"after"]


async def test_a_broker_without_a_lease_reveals_no_offsets_and_no_outcome(autojump_clock: MockClock) -> None:
    """Whoever leads in its place may have acknowledged later ones."""
    async with lone() as (running, bucket):
        assert await commit_offset(running, "group", 1) == error_codes.NONE
        assert await committed_offset(running, "group") == 1
        client = await coordinator_of(running, "group")
        producer = Producer(await running.brokers[3].connect(), "producer", NEW, coordinator_id=3)
        assert await producer.init() == error_codes.NONE
        await producer.write(0, b"x")
        before = attrs.evolve(producer)
        assert await producer.end(committed=True) == error_codes.NONE
        bucket.fail(On())
        await trio.sleep(LEASE_SECONDS + RETRY_SECONDS)
        wanted = OffsetFetchRequestGroup(group_id="group", topics=None)
        for is_stable in (False, True):
            asked = OffsetFetchRequest(groups=[wanted], require_stable=is_stable)
            (answer,) = (await client.request(asked, OffsetFetchResponse)).groups
            assert answer.error_code == error_codes.NOT_COORDINATOR
        assert await before.end(committed=True) == error_codes.NOT_COORDINATOR
        bucket.heal()
        assert await committed_offset(running, "group") == 1
        assert await before.end(committed=True) == error_codes.NONE


async def test_a_broker_in_touch_with_peers_serves_offsets_without_the_bucket(autojump_clock: MockClock) -> None:
    async with three_with_logs() as (running, buckets):
        assert await commit_offset(running, "group", 1) == error_codes.NONE
        for bucket in buckets:
            bucket.fail(On())
        await trio.sleep(60.0)
        assert await committed_offset(running, "group") == 1


@asynccontextmanager
async def lone() -> AsyncIterator[tuple[Cluster, FaultyStore]]:
    """Run broker 3 as the only one, with a topic of one partition."""
    async with cluster(0) as running:
        bucket = FaultyStore(running.bucket)
        running.machines[3] = Machine(bucket, 3)
        await running.start(3, WAL, flush_interval_seconds=3600.0)
        await until(lambda: running.controller() == 3)
        await topic_of(running, 1)
        yield running, bucket


async def test_a_broker_given_up_while_suspended_acknowledges_nothing_on_resume(
    autojump_clock: MockClock,
) -> None:
    """It has heard of nobody since, though all that it knows of that is older by a time in which it did not run."""
    process = Process("broker 3")
    async with cluster(0) as running:
        slow = FaultyStore(running.bucket)
        for broker_id in (1, 2):
            await running.start(broker_id, WAL)
        running.machines[3] = Machine(slow, 3)
        PROCESS.set(process)
        suspended = await running.start(3, WAL, flush_interval_seconds=3600.0)
        client = await suspended.connect()
        PROCESS.set(None)
        await until(lambda: running.controller() == 1)
        await topic_of(running, 3)
        (index,) = led_by(suspended.broker)
        slow.delay(On("*", "*/head"), seconds=1.0)
        await trio.sleep(10.0)
        process.suspend()
        await until(lambda: running.state(1).brokers[3].state is BrokerState.AWAY)
        await BrokerAdministration(running.state(1)).give_up(3)
        await until(lambda: running.all_led(3, [1, 2]))
        is_acknowledged = False

        async def produce_late() -> None:
            nonlocal is_acknowledged
            data = PartitionProduceData(index=index, records=memoryview(build_batch([Record(value=b"late")])))
            request = ProduceRequest(
                acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
            )
            with suppress(KafScaleError):
                response = await client.request(request, ProduceResponse)
                (answer,) = response.responses[0].partition_responses
                is_acknowledged = answer.error_code == error_codes.NONE

        running.brokers[1].nursery.start_soon(produce_late)
        await trio.sleep(1.0)
        process.resume()
        await suspended.ended.wait()
        await trio.sleep(1.0)
        assert not is_acknowledged


async def test_a_second_replacement_waits_when_the_first_ended_during_its_wait(autojump_clock: MockClock) -> None:
    """The one before both may go on all that time, as the second knows of the first alone."""
    async with three_with_logs() as (running, buckets):
        buckets[2].fail(On())
        running.network.cut(3, 1, 2)
        running.machines[3] = Machine(running.bucket, 3)
        with trio.move_on_after(1.0) as first:
            await running.start(3, WAL)
        assert first.cancelled_caught
        for least_seconds, most_seconds in ((GIVEN_UP_WAIT_SECONDS, math.inf), (0.0, GIVEN_UP_WAIT_SECONDS)):
            began = trio.current_time()
            replacing = await running.start(3, WAL)
            assert least_seconds <= round(trio.current_time() - began, 3) < most_seconds
            replacing.kill()
            await trio.sleep(1.0)


async def test_a_machine_that_was_suspended_has_lost_its_lease(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    liveness = Liveness(3.0)
    liveness.is_watching = True
    liveness.follow({2: 20})
    liveness.answered(2, 20, liveness.clock())
    looked_at = liveness.clock()
    lease = AcknowledgementLease(liveness, lambda: looked_at, trio.lowlevel.checkpoint)
    assert lease.is_good()
    suspend_machine(monkeypatch, 600.0)
    assert not lease.is_good()
    liveness.follow({2: 20})
    assert not lease.is_good()
    liveness.answered(2, 20, liveness.clock())
    assert lease.is_good()
