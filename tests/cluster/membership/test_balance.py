"""Whole brokers get about the same load, where some partitions are written to and others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.peers.heartbeats import Heartbeats
from kafscale.cluster.membership.peers.liveness import Liveness
from kafscale.cluster.membership.peers.loads import FRESH_SECONDS, UNKNOWN, Loads
from kafscale.cluster.membership.placement import choice
from kafscale.cluster.membership.placement.choice import BalancePlanner
from kafscale.cluster.membership.placement.controller import _FailOverPlan
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.log.load import BrokerLoad, LoadMeter
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from tests.cluster.membership.test_several import Machine, create, led_by, machines, move, produce, until, values
from tests.devtools.fakes.broker_network import RunningBroker

BATCH = b"x" * 10_000
EVERY_SECONDS = 2.5
SETTLE_SECONDS = 90.0
CALM_SECONDS = 60.0
BOUND = 1.3  # of the average, which a move begins beyond 1.15 of


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take some KB a second for much."""
    monkeypatch.setattr(choice, "IDLE_BYTES_PER_SECOND", 1 << 10)
    monkeypatch.setattr(choice, "PARTITION_BYTES_PER_SECOND", 64)


@attrs.define(eq=False)
class Traffic:
    """What is written to partitions of the topic, by who has taken it."""

    brokers: dict[int, RunningBroker]
    taken: Counter[int] = attrs.field(factory=Counter)

    async def write(self, index: int) -> None:
        """Write to a partition all the time, wherever it is led."""
        while True:
            leader = self.leader(index)
            if leader is not None and await produce(self.brokers[leader], index, BATCH) == error_codes.NONE:
                self.taken[leader] += len(BATCH)
            await trio.sleep(EVERY_SECONDS)

    def leader(self, index: int) -> int | None:
        return next((each for each, running in self.brokers.items() if index in led_by(running.broker)), None)

    async def shares(self, seconds: float) -> list[float]:
        """Return what each broker takes from now on, of the average."""
        self.taken.clear()
        await trio.sleep(seconds)
        average = self.taken.total() / len(self.brokers)
        return [self.taken[each] / average for each in self.brokers]

    def leaders(self) -> Sequence[int]:
        placements = next(iter(self.brokers.values())).broker.services.mover.state.placements  # type: ignore[union-attr]
        return [each.leader for row in placements.values() for each in row]


@asynccontextmanager
async def running(
    members: Sequence[Machine], hot: Collection[int], count: int = 12, **changes: object
) -> AsyncIterator[Traffic]:
    """Run brokers that lead as many partitions each, of which some are written to."""
    async with AsyncExitStack() as stack:
        brokers = {each.broker_id: await stack.enter_async_context(each.run(**changes)) for each in members}
        traffic = Traffic(brokers)
        await create(brokers[1].broker, count)
        await until(lambda: sum(len(led_by(each.broker)) for each in brokers.values()) == count)
        async with trio.open_nursery() as nursery:
            for index in hot:
                nursery.start_soon(traffic.write, index)
            yield traffic
            nursery.cancel_scope.cancel()


def some_of(count: int, brokers: int, wanted: int) -> list[int]:
    """Return partitions that the first broker leads, as partitions of a new topic go to one after the other."""
    return [index for index in range(count) if index % brokers == 0][:wanted]


async def test_a_hot_topic_is_spread_and_then_nothing_moves(autojump_clock: MockClock) -> None:
    async with running(machines(3), some_of(18, 3, 6), 18) as traffic:
        assert await traffic.shares(10.0) == [3.0, 0.0, 0.0]
        await trio.sleep(SETTLE_SECONDS)
        before = traffic.leaders()
        assert max(await traffic.shares(CALM_SECONDS)) < BOUND
        assert traffic.leaders() == before
        counts = Counter(before)
        assert max(counts.values()) - min(counts.values()) <= 1


async def test_new_topics_go_to_the_least_loaded_broker_from_any_creator(autojump_clock: MockClock) -> None:
    """What is assigned to a broker stays there, and so it has more to do than the other one, which leads as many."""
    async with running(machines(2), some_of(12, 2, 6)) as traffic:
        await move(traffic.brokers[1], some_of(12, 2, 6), 1)
        await trio.sleep(SETTLE_SECONDS)
        assert await traffic.shares(10.0) == [2.0, 0.0]
        assert Counter(traffic.leaders()) == {1: 6, 2: 6}
        for number in range(6):
            await create(traffic.brokers[1 + number % 2].broker, 1, f"new-{number}")
            await trio.sleep(1.0)
        expected = {1: 6, 2: 12}
        assert Counter(traffic.leaders()) == expected
        await create(traffic.brokers[2].broker, 6, "spread")
        await trio.sleep(1.0)
        assert Counter(traffic.leaders()) == {each: count + 3 for each, count in expected.items()}


async def test_the_surplus_expires_without_news_from_the_controller(
    autojump_clock: MockClock,
) -> None:
    balance = BalancePlanner(
        state=ClusterState(MemoryMetadataStore(), 1, 1),
        liveness=Liveness(1.0),
        meter=LoadMeter(),
    )
    assert balance.surplus() == {}
    balance.take_surplus({1: 2.0, 2: 0.0})
    await trio.sleep(FRESH_SECONDS)
    assert balance.surplus() == {1: 2.0, 2: 0.0}
    await trio.sleep(1.0)
    assert balance.surplus() == {}


async def test_recent_bytes_add_up_writes_and_reads(autojump_clock: MockClock) -> None:
    async with running(machines(1), [], 1) as traffic:
        assert await produce(traffic.brokers[1], 0, BATCH) == error_codes.NONE
        (partition,) = traffic.brokers[1].broker.services.log.partitions.values()
        written_bytes = partition.recent_bytes
        assert written_bytes > len(BATCH)
        assert await values(traffic.brokers[1], 0) == [BATCH]
        assert partition.recent_bytes == 2 * written_bytes


async def test_beside_a_broker_that_tells_no_load_numbers_count(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tells = Heartbeats._decides

    def of_an_earlier_version(self: Heartbeats, broker_id: int) -> bool:
        return self.state.broker_id != 2 and tells(self, broker_id)

    monkeypatch.setattr(Heartbeats, "_decides", of_an_earlier_version)
    async with running(machines(2), some_of(6, 2, 3), 6) as traffic:
        await trio.sleep(SETTLE_SECONDS)
        assert await traffic.shares(10.0) == [2.0, 0.0]
        await move(traffic.brokers[1], range(6), 2)
        await trio.sleep(SETTLE_SECONDS)
        assert Counter(traffic.leaders())[2] == 6
        monkeypatch.setattr(Heartbeats, "_decides", tells)  # it is started anew, of this version


async def test_a_joining_broker_gets_its_share_of_the_load(autojump_clock: MockClock) -> None:
    one, two, three = machines(3)
    async with running([one, two], [*some_of(12, 2, 3), 1, 3, 5]) as traffic:
        await trio.sleep(SETTLE_SECONDS)
        assert max(await traffic.shares(10.0)) < BOUND
        async with three.run() as third:
            traffic.brokers[3] = third
            await trio.sleep(SETTLE_SECONDS)
            assert max(await traffic.shares(CALM_SECONDS)) < BOUND
            assert sorted(Counter(traffic.leaders()).values()) == [4, 4, 4]
            del traffic.brokers[3]


def test_partitions_of_a_dead_broker_go_to_the_least_loaded_ones() -> None:
    state = ClusterState(MemoryMetadataStore(), 1, 1)
    record = BrokerRecord(
        incarnation=1, state=BrokerState.LIVE, endpoints={}, directory_id="", acknowledges_locally=False
    )
    state.brokers = dict.fromkeys((1, 2, 3), record)
    mib = float(1 << 20)
    loads = {3: [5 * mib, 4 * mib, 3 * mib, 3 * mib], 1: [8 * mib], 2: [1 * mib, 0.0]}
    busiest: dict[bytes, dict[int, float]] = {}
    for leader, each in loads.items():
        for load in each:
            topic_id = bytes([len(busiest)]) * 16  # of one partition each
            state.placements[topic_id] = [Placement(leader, 1, 1, 0)]
            busiest[topic_id] = {0: load}
    plan = _FailOverPlan(state, {3: "it is killed"}, (), (1, 2, 3), Loads(busiest, {}))
    assert plan.make() is not None
    assert plan.moved == {(3, 2): 3, (3, 1): 1}  # to broker 2 with 1 MiB/s those of 5, 4 and 3, to the other one 3
    plan = _FailOverPlan(state, {3: "it is killed"}, (), (1, 2, 3), UNKNOWN)
    assert plan.make() is not None
    assert plan.moved == {(3, 1): 3, (3, 2): 1}


async def test_loads_of_unregistered_brokers_are_ignored() -> None:
    """Anybody may send a heartbeat where nobody has to log in, with any broker id."""
    state = ClusterState(MemoryMetadataStore(), 1, 1)
    state.brokers = {
        2: BrokerRecord(
            incarnation=7, state=BrokerState.LIVE, endpoints={}, directory_id="", acknowledges_locally=False
        )
    }
    balance = BalancePlanner(
        state=state,
        liveness=Liveness(1.0),
        meter=LoadMeter(),
    )
    load = BrokerLoad(busiest={}, others_count=0, others_bytes_per_second=0, is_settled=True)
    for broker_id, incarnation in ((2, 6), (2, 8), (3, 7), (2, 7)):
        balance.take(broker_id, incarnation, load)
    assert balance._heard.of_broker(2, 7) == load
    assert list(balance._heard._told) == [2]
    assert balance._heard.of_broker(2, 8) is None


def test_a_broker_without_loads_of_others_uses_loads_of_its_led_partitions() -> None:
    """As one that is stopped, and is not the controller, which alone is told."""
    load = BrokerLoad(busiest={(b"t" * 16, 3): 7}, others_count=2, others_bytes_per_second=5, is_settled=False)
    balance = BalancePlanner(
        state=ClusterState(MemoryMetadataStore(), 1, 1),
        liveness=Liveness(1.0, clock=lambda: 0.0),
        meter=cast(LoadMeter, SimpleNamespace(load=lambda: load)),
    )
    assert balance.loads_of_own().busiest == {b"t" * 16: {3: 7}}
