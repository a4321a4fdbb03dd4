"""Brokers that die, are suspended or are cut off: what they led is led by others, and nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.records import BrokerState
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.registries.topics import Topic
from kafscale.config import Durability
from kafscale.errors import BrokerUnavailable, DeclaredDead, KafScaleError, StorageFailed
from kafscale.store.base import ObjectStore
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On, StoreCall
from kafscale.wire import error_codes
from kafscale.wire.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.cluster.membership.test_several import (
    SOON_SECONDS,
    Machine,
    create,
    led_by,
    produce,
    topic_at,
    until,
    values,
)
from tests.devtools.fakes.broker_network import BrokerNetwork, RunningBroker, network_of
from tests.devtools.fakes.memory_broker import memory_settings

SEGMENT = Durability.SEGMENT
MODES = [SEGMENT, Durability.S3_WAL]  # in which the bucket has what was acknowledged

UPLOAD, LOOK, STREAM_PUT = On("put*", "*.kfs"), On("head", "*/head"), On("put_if_absent", "*.wal")


@attrs.define(eq=False)
class Cluster:
    """Brokers 1, 2, … on one bucket and one network."""

    bucket: ObjectStore
    stack: AsyncExitStack
    machines: dict[int, Machine] = attrs.field(factory=dict)
    brokers: dict[int, RunningBroker] = attrs.field(factory=dict)

    async def start(self, broker_id: int, durability: Durability = SEGMENT, **changes: object) -> RunningBroker:
        machine = self.machines.setdefault(broker_id, Machine(self.bucket, broker_id))
        wanted = {"several_brokers": True, "broker_id": broker_id, "durability": durability, **changes}
        context = self.network.broker(machine.parts(), memory_settings(**wanted))
        running = self.brokers[broker_id] = await self.stack.enter_async_context(context)
        return running

    @property
    def network(self) -> BrokerNetwork:
        return network_of(self.bucket)

    def state(self, broker_id: int) -> ClusterState:
        return self.brokers[broker_id].broker.services.assignment.state  # type: ignore[attr-defined,no-any-return]

    def controller(self) -> int:
        """The id of the broker that the first one that runs takes for the controller."""
        return self.controller_as_seen_by(next(each for each, one in self.brokers.items() if not one.ended.is_set()))

    def controller_as_seen_by(self, broker_id: int) -> int:
        """Return the id of the broker that one takes for the controller, -1 for none."""
        controller = self.state(broker_id).controller
        return -1 if controller is None else controller.broker_id

    def others(self, *broker_ids: int) -> list[int]:
        return [each for each in self.brokers if each not in broker_ids]

    def all_led(self, count: int, by: Sequence[int]) -> bool:
        """Tell whether these lead all partitions, each of them once."""
        return sorted(index for each in by for index in led_by(self.brokers[each].broker)) == list(range(count))


@asynccontextmanager
async def cluster(count: int, durability: Durability = SEGMENT, **changes: object) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        running = Cluster(MemoryStore(), stack)
        for broker_id in range(1, count + 1):
            await running.start(broker_id, durability, **changes)
        if count:
            await until(lambda: running.controller() > 0)
        yield running


async def topic_of(running: Cluster, partition_count: int) -> Topic:
    """Make the topic, with a record in each partition, when all brokers know it."""
    topic = await create(next(iter(running.brokers.values())).broker, partition_count)
    for each in running.brokers.values():
        await topic_at(each.broker)
    await until(lambda: running.all_led(partition_count, list(running.brokers)))
    for each in running.brokers.values():
        for index in led_by(each.broker):
            assert await produce(each, index, b"before") == error_codes.NONE
    return topic


async def check_goes_on(running: Cluster, partition_count: int, by: Sequence[int]) -> None:
    """Check that each partition has what it had, and takes more."""
    for each in by:
        for index in led_by(running.brokers[each].broker):
            assert await values(running.brokers[each], index) == [b"before"]
            assert await produce(running.brokers[each], index, b"after") == error_codes.NONE
            assert await values(running.brokers[each], index) == [b"before", b"after"]


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("dies", ["a member", "the controller"])
async def test_partitions_of_a_dead_broker_fail_over_at_once(
    autojump_clock: MockClock, durability: Durability, dies: str
) -> None:
    async with cluster(3, durability) as running:
        topic = await topic_of(running, 6)
        controller = running.controller()
        dead = controller if dies == "the controller" else running.others(controller)[0]
        left = running.others(dead)
        began = trio.current_time()
        running.brokers[dead].kill()
        await until(lambda: running.all_led(6, left))
        assert trio.current_time() - began <= 2.5
        await check_goes_on(running, 6, left)
        for each in left:
            record = running.state(each).brokers[dead]
            assert record.state is BrokerState.FENCED
            leaders = running.brokers[each].broker.services.assignment.leaders(topic)
            assert {leader.node_id for leader in leaders if leader is not None} == set(left)


@pytest.mark.parametrize("durability", MODES)
async def test_a_member_and_the_controller_die_at_the_same_time(
    autojump_clock: MockClock, durability: Durability
) -> None:
    async with cluster(4, durability) as running:
        await topic_of(running, 8)
        controller = running.controller()
        dead = [controller, running.others(controller)[0]]
        left = running.others(*dead)
        for each in dead:
            running.brokers[each].kill()
        await until(lambda: running.all_led(8, left))
        await check_goes_on(running, 8, left)


@pytest.mark.parametrize("durability", MODES)
async def test_a_broker_that_comes_back_takes_part_again(autojump_clock: MockClock, durability: Durability) -> None:
    async with cluster(2, durability) as running:
        await topic_of(running, 4)
        running.brokers[2].kill()
        await until(lambda: running.all_led(4, [1]))
        await running.start(2, durability)
        await until(lambda: [len(led_by(each.broker)) for each in running.brokers.values()] == [2, 2])
        await check_goes_on(running, 4, [1, 2])


@pytest.mark.parametrize("durability", MODES)
async def test_a_restarted_cluster_keeps_its_leaders(autojump_clock: MockClock, durability: Durability) -> None:
    async with cluster(2, durability) as running:
        await topic_of(running, 4)
        former = {broker_id: led_by(each.broker) for broker_id, each in running.brokers.items()}
        for each in running.brokers.values():
            each.broker.stop()
        for each in running.brokers.values():
            await each.ended.wait()
        await running.start(1, durability)
        await trio.sleep(5.0)
        await running.start(2, durability)
        assert {broker_id: led_by(each.broker) for broker_id, each in running.brokers.items()} == former
        await check_goes_on(running, 4, [1, 2])


@pytest.mark.parametrize("durability", MODES)
async def test_partitions_of_a_stopped_broker_fail_over(autojump_clock: MockClock, durability: Durability) -> None:
    async with cluster(2, durability, shutdown_timeout_seconds=0.0) as running:  # no time to hand over
        await topic_of(running, 4)
        running.brokers[2].broker.stop()
        await running.brokers[2].ended.wait()
        await until(lambda: running.all_led(4, [1]))
        assert running.state(1).brokers[2].state is BrokerState.STOPPED
        await check_goes_on(running, 4, [1])


async def test_partitions_of_a_dead_broker_with_a_local_log_stay_without_leader(autojump_clock: MockClock) -> None:
    async with cluster(3, Durability.WAL) as running:
        topic = await topic_of(running, 6)
        controller = running.controller()
        dead = running.others(controller)[0]
        lost = led_by(running.brokers[dead].broker)
        running.brokers[dead].kill()
        await until(lambda: running.state(controller).brokers[dead].state is BrokerState.AWAY)
        await trio.sleep(30.0)
        leaders = running.brokers[controller].broker.services.assignment.leaders(topic)
        assert [index for index, leader in enumerate(leaders) if leader is None] == lost
        await running.start(dead, Durability.WAL)
        assert led_by(running.brokers[dead].broker) == lost
        await check_goes_on(running, 6, list(running.brokers))


async def test_a_broker_with_a_local_log_resumes_after_a_network_cut(autojump_clock: MockClock) -> None:
    async with cluster(3, Durability.WAL) as running:
        await topic_of(running, 6)
        controller = running.controller()
        away = running.others(controller)[0]
        incarnation = running.state(controller).brokers[away].incarnation
        running.network.cut(away, *running.others(away))
        await until(lambda: running.state(controller).brokers[away].state is BrokerState.AWAY)
        for index in led_by(running.brokers[away].broker):
            assert await produce(running.brokers[away], index, b"meanwhile") == error_codes.NONE
        running.network.heal()
        await until(lambda: running.state(controller).brokers[away].state is BrokerState.LIVE)
        assert running.state(controller).brokers[away].incarnation == incarnation
        assert not running.brokers[away].ended.is_set()


async def test_one_direction_that_is_cut_off_costs_nothing(autojump_clock: MockClock) -> None:
    """A connection that a member can't make, the controller makes; so both hear of each other."""
    async with cluster(3) as running:
        controller = running.controller()
        member = running.others(controller)[0]
        running.network.refuse(member, controller)
        await trio.sleep(60.0)
        assert running.controller() == controller
        assert len(running.state(controller).live()) == 3


@pytest.mark.parametrize("deaf", ["a member", "the controller"])
async def test_one_of_two_brokers_with_a_one_way_link_ends_and_the_others_lead(
    autojump_clock: MockClock, deaf: str
) -> None:
    async with cluster(3) as running:
        await topic_of(running, 6)
        controller = running.controller()
        member, third = running.others(controller)
        ends = (controller, member) if deaf == "a member" else (member, controller)
        running.network.cut(*ends, one_way=True)
        await until(lambda: running.all_led(6, [controller, third]) or running.all_led(6, [member, third]))
        await until(lambda: any(each.ended.is_set() for each in running.brokers.values()))
        left = [broker_id for broker_id, each in running.brokers.items() if not each.ended.is_set()]
        assert len(left) == 2
        await check_goes_on(running, 6, left)


async def test_a_controller_that_has_lost_most_brokers_steps_down(autojump_clock: MockClock) -> None:
    async with cluster(3) as running:
        await topic_of(running, 6)
        controller = running.controller()
        others = running.others(controller)
        running.network.cut(controller, *others)
        await until(lambda: running.all_led(6, others))
        await until(lambda: running.brokers[controller].failure is not None)
        assert running.controller() in others
        assert not any(running.brokers[each].ended.is_set() for each in others)
        await check_goes_on(running, 6, others)


async def test_a_controller_that_hears_no_broker_declares_none_dead(autojump_clock: MockClock) -> None:
    async with cluster(3) as running:
        await topic_of(running, 6)
        controller = running.controller()
        others = running.others(controller)
        for each in others:
            running.network.cut(each, controller, one_way=True)
        await until(lambda: running.all_led(6, others))
        await trio.sleep(30.0)
        assert [running.brokers[each].ended.is_set() for each in (controller, *others)] == [True, False, False]
        await check_goes_on(running, 6, others)


async def test_an_isolated_broker_that_becomes_controller_declares_none_dead(autojump_clock: MockClock) -> None:
    async with cluster(0) as running:
        bucket = FaultyStore(running.bucket)
        running.machines[1] = Machine(bucket, 1)
        for broker_id in (1, 2, 3):
            await running.start(broker_id)
        await until(lambda: running.controller() == 1)
        await topic_of(running, 6)
        bucket.fail(On("put_if_match"))
        running.network.cut(3, 1, 2)
        await until(lambda: getattr(running.state(3).controller, "broker_id", None) == 3)
        bucket.heal()
        await until(lambda: running.all_led(6, [1, 2]))
        await until(lambda: running.brokers[3].ended.is_set())
        assert not any(running.brokers[each].ended.is_set() for each in (1, 2))
        await check_goes_on(running, 6, [1, 2])


async def test_an_isolated_former_controller_takes_no_broker_for_dead(autojump_clock: MockClock) -> None:
    """It hears of nobody, and finds only when it commits that another one decides."""
    async with cluster(0) as running:
        bucket = FaultyStore(running.bucket)
        running.machines[1] = Machine(bucket, 1)
        for broker_id in (1, 2, 3):
            await running.start(broker_id, Durability.WAL)
        await until(lambda: all(len(running.state(each).live()) == 3 for each in running.brokers))
        await trio.sleep(5.0)
        bucket.fail(LOOK)
        running.network.cut(1, 2, 3)
        states: set[BrokerState] = set()
        for _ in range(600):
            await trio.sleep(0.1)
            states |= {running.state(2).brokers[each].state for each in (2, 3)}
        assert states == {BrokerState.LIVE}
        assert running.state(2).brokers[1].state is BrokerState.AWAY
        assert getattr(running.state(2).controller, "broker_id", None) in (2, 3)


async def test_a_fenced_broker_cannot_change_metadata_before_noticing(autojump_clock: MockClock) -> None:
    async with cluster(2) as running:
        bucket = FaultyStore(running.bucket)
        running.machines[3] = Machine(bucket, 3)
        fenced = await running.start(3)
        await until(lambda: 3 in running.state(1).brokers)
        bucket.fail(LOOK)
        bucket.fail(On("put_if_match"))  # it would decide who is dead as well
        running.network.cut(3, 1, 2)
        await until(lambda: running.state(1).brokers[3].state is BrokerState.FENCED)
        bucket.heal()
        with pytest.raises(StorageFailed), trio.fail_after(SOON_SECONDS):
            await create(fenced.broker, 1, "new")
        await fenced.ended.wait()
        assert running.brokers[1].broker.services.topics.get("new") is None


async def test_the_last_of_three_brokers_declares_the_others_dead(autojump_clock: MockClock) -> None:
    async with cluster(3) as running:
        await topic_of(running, 6)
        controller = running.controller()
        for each in running.others(controller):
            running.brokers[each].kill()
        await until(lambda: running.all_led(6, [controller]))
        await check_goes_on(running, 6, [controller])


async def test_a_commit_reaches_other_brokers_with_the_next_heartbeat(autojump_clock: MockClock) -> None:
    """It is sent at once, and once more by the controller; they look at the head every half a second besides."""
    async with cluster(3) as running:
        await trio.sleep(5.0)
        longest = 0.0
        for number in range(12):
            await trio.sleep(0.93)  # at ever other places between two looks
            began = trio.current_time()
            creator = running.brokers[1 + number % 3].broker
            await create(creator, 3, f"topic-{number}")
            while any(each.broker.services.topics.get(f"topic-{number}") is None for each in running.brokers.values()):
                await trio.sleep(0.01)
            longest = max(longest, trio.current_time() - began)
        assert longest <= 0.25


async def test_idle_brokers_write_nothing_and_the_controller_looks_for_all(autojump_clock: MockClock) -> None:
    bucket = FaultyStore(MemoryStore())
    async with AsyncExitStack() as stack:
        running = Cluster(bucket, stack)
        for broker_id in (1, 2, 3):
            await running.start(broker_id)
        await topic_of(running, 6)
        await trio.sleep(60.0)
        bucket.calls.clear()
        await trio.sleep(60.0)
        assert {call.operation for call in bucket.calls} == {"head"}
        assert 140 <= len(bucket.calls) <= 150  # two a second, and two every five seconds
        controller = running.controller()
        running.network.cut(controller, *running.others(controller))
        bucket.calls.clear()
        await trio.sleep(2.5)
        assert bucket.count("head") >= 10  # who hears of nobody looks for itself


async def test_asking_whether_a_broker_still_leads_makes_the_broker_poll_the_head(
    autojump_clock: MockClock,
) -> None:
    bucket = FaultyStore(MemoryStore())
    async with AsyncExitStack() as stack:
        running = Cluster(bucket, stack)
        for broker_id in (1, 2, 3):
            await running.start(broker_id)
        await topic_of(running, 6)
        await trio.sleep(62.0)
        member = running.brokers[running.others(running.controller())[0]]
        has_led_lately = member.broker.services.has_led_lately
        assert not has_led_lately()
        await trio.sleep(0.1)
        assert has_led_lately()
        bucket.calls.clear()
        await trio.sleep(9.0)
        assert bucket.count("head") >= 2 * 17
        assert has_led_lately()


async def test_a_broker_that_acknowledges_locally_keeps_polling_the_bucket(autojump_clock: MockClock) -> None:
    bucket = FaultyStore(MemoryStore())
    async with AsyncExitStack() as stack:
        running = Cluster(bucket, stack)
        for broker_id in (1, 2, 3):
            await running.start(broker_id, Durability.WAL)
        await trio.sleep(60.0)
        bucket.calls.clear()
        await trio.sleep(60.0)
        assert len(bucket.calls) >= 3 * 110


@attrs.define(eq=False)
class Suspension:
    """Has a broker stand still: from one operation on, nothing that it asks of the bucket takes effect or is answered.

    It is the first one of `on` behind the beginning of an upload, by default of a segment, or that upload itself.
    """

    store: FaultyStore
    on: On
    after_effect: bool = False
    upload: On = UPLOAD
    began: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    _is_uploading: bool = False

    def __attrs_post_init__(self) -> None:
        async def upload(call: StoreCall) -> None:
            self._is_uploading = True

        async def begin(call: StoreCall) -> None:
            if self._is_uploading:
                self.began.set()
                await self.ended.wait()

        async def stand(call: StoreCall) -> None:
            if self.began.is_set():
                await self.ended.wait()

        self.store.rule(self.upload, upload)
        self.store.rule(self.on, begin, after_effect=self.after_effect)
        self.store.rule(On(), stand)
        self.store.rule(On(), stand, after_effect=True)


# Where it stands still in the middle of a produce, and whether it may acknowledge that when it goes on: only what the
# others have found.
STEPS = {
    "before the upload": (UPLOAD, False, False),
    "behind the upload": (UPLOAD, True, False),
    "before the look at the head": (LOOK, False, False),
    "behind the look at the head": (LOOK, True, True),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_suspended_broker_acknowledges_only_records_that_the_next_leader_has(
    autojump_clock: MockClock, step: str
) -> None:
    on, after_effect, may_acknowledge = STEPS[step]
    async with cluster(2) as running:
        bucket = FaultyStore(running.bucket)
        running.machines[3] = Machine(bucket, 3)
        await running.start(3)
        await topic_of(running, 3)
        suspended = running.brokers[3]
        (index,) = led_by(suspended.broker)
        suspension = Suspension(bucket, on, after_effect)
        acknowledged: list[bytes] = []

        async def produce_late() -> None:
            with suppress(KafScaleError):
                if await produce(suspended, index, b"late") == error_codes.NONE:
                    acknowledged.append(b"late")

        suspended.nursery.start_soon(produce_late)
        await suspension.began.wait()
        running.network.cut(3, 1, 2)
        await until(lambda: running.all_led(3, [1, 2]))
        heir = next(each for each in (1, 2) if index in led_by(running.brokers[each].broker))
        found = await values(running.brokers[heir], index)
        assert found == ([b"before"] if step == "before the upload" else [b"before", b"late"])
        assert await produce(running.brokers[heir], index, b"after") == error_codes.NONE
        suspension.ended.set()
        await suspended.ended.wait()
        assert suspended.failure is not None
        assert suspended.failure.split(DeclaredDead)[0] is not None
        assert acknowledged == ([b"late"] if may_acknowledge else [])
        await trio.sleep(10.0)
        assert await values(running.brokers[heir], index) == [*found, b"after"]
        running.brokers[heir].kill()
        (last,) = running.others(3, heir)
        await until(lambda: running.all_led(3, [last]))
        assert await values(running.brokers[last], index) == [*found, b"after"]


async def test_a_broker_declared_dead_restarts_despite_requests_waiting_for_commits(
    autojump_clock: MockClock,
) -> None:
    """It ended with the error of such a request, "the metadata store's writer has ended", and stayed down."""
    async with cluster(2, Durability.S3_WAL) as running:
        bucket = FaultyStore(running.bucket)
        running.machines[3] = Machine(bucket, 3)
        suspended = await running.start(3, Durability.S3_WAL)
        await topic_of(running, 3)
        (index,) = led_by(suspended.broker)
        connection = await suspended.connect()
        head = bucket.hold(On("*", "*/head"))

        async def create_late() -> None:
            request = CreateTopicsRequest(topics=[CreatableTopic(name="late", num_partitions=1, replication_factor=1)])
            with suppress(BrokerUnavailable):
                await connection.request(request, CreateTopicsResponse)

        async def produce_late() -> None:
            with suppress(KafScaleError):
                await produce(suspended, index, b"late")

        suspended.nursery.start_soon(create_late)
        await head.wait_arrived()
        running.network.cut(3, 1, 2)
        await until(lambda: running.all_led(3, [1, 2]))
        suspended.nursery.start_soon(produce_late)  # which its stream refuses
        await trio.sleep(5.0)
        assert not suspended.ended.is_set()
        head.open()
        await suspended.ended.wait()
        assert suspended.failure is not None
        assert suspended.failure.split(DeclaredDead)[1] is None


@pytest.mark.parametrize("is_put", [False, True])
async def test_a_suspended_broker_acknowledges_only_stream_records_the_next_leader_has(
    autojump_clock: MockClock, is_put: bool
) -> None:
    async with cluster(2, Durability.S3_WAL) as running:
        bucket = FaultyStore(running.bucket)
        running.machines[3] = Machine(bucket, 3)
        await running.start(3, Durability.S3_WAL)
        await topic_of(running, 3)
        suspended = running.brokers[3]
        (index,) = led_by(suspended.broker)
        suspension = Suspension(bucket, STREAM_PUT, after_effect=is_put, upload=STREAM_PUT)
        acknowledged: list[bytes] = []

        async def produce_late(value: bytes) -> None:
            with suppress(KafScaleError):
                if await produce(suspended, index, value) == error_codes.NONE:
                    acknowledged.append(value)

        suspended.nursery.start_soon(produce_late, b"late")
        await suspension.began.wait()
        suspended.nursery.start_soon(produce_late, b"later")
        running.network.cut(3, 1, 2)
        await until(lambda: running.all_led(3, [1, 2]))
        heir = next(each for each in (1, 2) if index in led_by(running.brokers[each].broker))
        expected = [b"before", b"late"] if is_put else [b"before"]
        assert await values(running.brokers[heir], index) == expected
        assert await produce(running.brokers[heir], index, b"after") == error_codes.NONE
        suspension.ended.set()
        await suspended.ended.wait()
        assert suspended.failure is not None
        assert suspended.failure.split(DeclaredDead)[0] is not None
        assert set(acknowledged) <= set(expected)
        running.brokers[heir].kill()
        (last,) = running.others(3, heir)
        await until(lambda: running.all_led(3, [last]))
        assert await values(running.brokers[last], index) == [*expected, b"after"]


async def test_only_a_broker_with_a_stream_takes_over_partitions_of_a_stream(autojump_clock: MockClock) -> None:
    async with cluster(2, Durability.S3_WAL) as running:
        await topic_of(running, 4)
        await running.start(3)
        await until(lambda: len(led_by(running.brokers[3].broker)) == 1)
        running.brokers[2].kill()
        await until(lambda: running.all_led(4, [1, 3]))
        assert len(led_by(running.brokers[3].broker)) == 1
        await check_goes_on(running, 4, [1, 3])
        running.brokers[1].kill()
        await trio.sleep(20.0)
        assert len(led_by(running.brokers[3].broker)) == 1
        await running.start(1, Durability.S3_WAL)
        await until(lambda: running.all_led(4, [1, 3]))
        for each in (1, 3):
            for index in led_by(running.brokers[each].broker):
                assert await values(running.brokers[each], index) == [b"before", b"after"]


async def test_metrics_count_declared_brokers_and_leaderless_partitions(autojump_clock: MockClock) -> None:
    async with cluster(3) as running:
        await running.start(4, Durability.WAL)
        await topic_of(running, 8)
        controller = running.controller()
        running.brokers[running.others(controller)[0]].kill()
        running.brokers[4].kill()
        await until(lambda: running.all_led(6, running.others(4)) or len(running.state(controller).live()) == 2)
        await trio.sleep(5.0)
        exposed = running.brokers[controller].broker.metrics.expose().splitlines()
        assert {
            'kafscale_brokers{state="live"} 2',
            'kafscale_brokers{state="away"} 1',
            'kafscale_brokers{state="fenced"} 1',
            'kafscale_brokers_declared_total{state="away"} 1',
            'kafscale_brokers_declared_total{state="fenced"} 1',
            "kafscale_partitions_failed_over_total 2",
            "kafscale_partitions_without_leader 2",
            "kafscale_partitions_recovering 0",
            "kafscale_is_controller 1",
        } <= set(exposed)
