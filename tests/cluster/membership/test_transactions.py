"""Transactions whose coordinator and partitions are at different brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.client.connection import Connection
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME, TRANSACTION_STATE_NAME
from kafscale.config import Durability
from kafscale.log.partition.partition import Partition
from kafscale.wire import error_codes as e
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from tests.api.several_brokers import key_in
from tests.cluster.membership.test_several import MODES, TOPIC, Machine, create, led_by, machines, until
from tests.devtools.fakes.broker_network import RunningBroker
from tests.devtools.fakes.transactional_producer import NEW, OLD, Producer, committed_values

PROTOCOLS = [OLD, NEW]
INTERNAL_COUNT = 4
SETTINGS = {"transaction_state_partitions_count": INTERNAL_COUNT, "offsets_topic_partitions_count": INTERNAL_COUNT}


@attrs.define(eq=False)
class Spread(Producer):
    """One that writes to each partition where it is led."""

    leader: Callable[[int], RunningBroker] = attrs.field(kw_only=True)

    async def send(self, index: int, *values: bytes, transactional_id: str | None = "") -> int:
        coordinator, self.client = self.client, await self.leader(index).connect()
        try:
            return await super().send(index, *values, transactional_id=transactional_id)
        finally:
            self.client = coordinator


@attrs.define(eq=False)
class Two:
    """Two brokers, the first of which coordinates what the tests ask for."""

    brokers: dict[int, RunningBroker]
    clients: dict[int, Connection]

    def leader(self, index: int, topic: str = TOPIC) -> RunningBroker:
        (found,) = (each for each in self.brokers.values() if index in led_by_all(each, topic))
        return found

    async def key_at(self, broker_id: int, topic: str, prefix: str) -> str:
        """A group, or a transactional id, that a broker coordinates."""
        found = FindCoordinatorRequest(key_type=int(topic == TRANSACTION_STATE_NAME), coordinator_keys=["any"])
        await self.clients[1].request(found, FindCoordinatorResponse)
        count = INTERNAL_COUNT
        await until(lambda: sum(len(led_by_all(each, topic)) for each in self.brokers.values()) == count)
        return key_in(led_by_all(self.brokers[broker_id], topic)[0], count, prefix)

    async def producer(self, version: int, coordinator_id: int = 1) -> Spread:
        """One that is coordinated by this broker, and is ready."""
        transactional_id = await self.key_at(coordinator_id, TRANSACTION_STATE_NAME, "t")
        client = self.clients[coordinator_id]
        producer = Spread(client, transactional_id, version, coordinator_id=coordinator_id, leader=self.leader)
        assert await producer.init() == e.NONE
        return producer

    async def committed(self, index: int) -> list[bytes | None]:
        return await committed_values(await self.leader(index).connect(), index)

    def partition(self, index: int) -> Partition:
        found = self.leader(index).broker.services.log.partition_named(TOPIC, index)
        assert found is not None
        return found

    def places(self) -> tuple[int, int]:
        """A partition that the first leads, and one that the second does."""
        return led_by(self.brokers[1].broker)[0], led_by(self.brokers[2].broker)[0]


def led_by_all(running: RunningBroker, topic: str) -> list[int]:
    rows = running.broker.services.log.by_name.get(topic, [])
    return [index for index, each in enumerate(rows) if each is not None]


@asynccontextmanager
async def two_brokers(durability: Durability, ours: list[Machine] | None = None) -> AsyncIterator[Two]:
    one, two = ours or machines(2)
    async with one.run(durability, **SETTINGS) as a, two.run(durability, **SETTINGS) as b:
        if a.broker.services.topics.get(TOPIC) is None:
            await create(a.broker, 4)
        await until(lambda: len(led_by(a.broker)) == len(led_by(b.broker)) == 2)
        yield Two({1: a, 2: b}, {1: await a.connect(), 2: await b.connect()})


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("version", PROTOCOLS)
async def test_a_transaction_ends_with_the_same_outcome_on_every_broker(
    autojump_clock: MockClock, durability: Durability, version: int
) -> None:
    async with two_brokers(durability) as two:
        producer = await two.producer(version)
        here, there = two.places()
        for number, committed in enumerate([True, False, True]):
            value = b"%d" % number
            await producer.write(here, value)
            await producer.write(there, value, value)
            assert two.partition(there).transactions.open
            assert await producer.end(committed=committed) == e.NONE
            assert not two.partition(here).transactions.open
            assert not two.partition(there).transactions.open
        assert await two.committed(here) == [b"0", b"2"]
        assert await two.committed(there) == [b"0", b"0", b"2", b"2"]


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("version", PROTOCOLS)
async def test_offsets_are_committed_with_a_transaction_coordinated_by_another_broker(
    autojump_clock: MockClock, durability: Durability, version: int
) -> None:
    async with two_brokers(durability) as two:
        producer = await two.producer(version)
        group_id = await two.key_at(2, CONSUMER_OFFSETS_NAME, "g")
        groups = two.brokers[2].broker.services.groups
        for offset, committed in ((5, True), (6, False)):
            if version < NEW:
                assert await producer.add_offsets(group_id) == e.NONE
            producer.client = two.clients[2]
            assert await producer.send_offsets(group_id, {0: offset}) == [e.NONE]
            producer.client = two.clients[1]
            assert await producer.end(committed=committed) == e.NONE
        assert groups.offsets(group_id)[TOPIC][0].offset == 5


@pytest.mark.parametrize("version", PROTOCOLS)
async def test_a_write_without_enrolment_is_refused_by_the_leader(autojump_clock: MockClock, version: int) -> None:
    async with two_brokers(Durability.WAL) as two:
        producer = await two.producer(version)
        _, there = two.places()
        if version < NEW:
            assert await producer.send(there, b"x") == e.TRANSACTION_ABORTABLE
        later = Spread(producer.client, producer.transactional_id, version, coordinator_id=1, leader=two.leader)
        await producer.write(there, b"y")
        assert await later.init() == e.NONE  # aborts, and fences
        assert not two.partition(there).transactions.open
        assert await producer.send(there, b"z") == e.INVALID_PRODUCER_EPOCH
        await later.write(there, b"ours")
        assert await later.end(committed=True) == e.NONE
        assert await two.committed(there) == [b"ours"]


@pytest.mark.parametrize("durability", MODES)
async def test_markers_reach_a_broker_that_was_away(autojump_clock: MockClock, durability: Durability) -> None:
    ours = machines(2)
    async with two_brokers(durability, ours) as two:
        producer = await two.producer(NEW)
        here, there = two.places()
        await producer.write(here, b"x")
        await producer.write(there, b"x")
        two.brokers[2].kill()
        await two.brokers[2].ended.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: producer.end(committed=True))
            await trio.sleep(1.0)
            async with ours[1].run(durability, **SETTINGS) as b:
                two.brokers[2] = b
                await until(lambda: there in led_by(b.broker) or there in led_by(two.brokers[1].broker))
                await until(lambda: not two.partition(there).transactions.open)
                assert await two.committed(there) == [b"x"]


@pytest.mark.parametrize("durability", MODES)
async def test_a_decision_is_carried_out_by_the_next_coordinator(
    autojump_clock: MockClock, durability: Durability
) -> None:
    ours = machines(2)
    async with two_brokers(durability, ours) as two:
        producer = await two.producer(NEW)
        _, there = two.places()
        await producer.write(there, b"x")
        ours[0].network.cut(1, 2, one_way=True)
        with trio.move_on_after(1.0):
            await producer.end(committed=True)
        assert two.partition(there).transactions.open
        two.brokers[1].kill()
        await two.brokers[1].ended.wait()
        ours[0].network.heal()
        async with ours[0].run(durability, **SETTINGS) as a:
            two.brokers[1] = a
            await until(lambda: not two.partition(there).transactions.open)
            assert await two.committed(there) == [b"x"]


@pytest.mark.parametrize("durability", MODES)
async def test_a_partition_moves_in_the_middle_of_a_transaction(
    autojump_clock: MockClock, durability: Durability
) -> None:
    async with two_brokers(durability) as two:
        producer = await two.producer(NEW)
        here, there = two.places()
        await producer.write(here, b"x")
        await producer.write(there, b"x")
        mover, topic = two.brokers[1].broker.services.mover, two.brokers[1].broker.services.topics.get(TOPIC)
        assert mover is not None
        assert topic is not None
        await mover.move(topic, here, [2])
        await until(lambda: here in led_by(two.brokers[2].broker))
        await producer.write(here, b"y")
        assert await producer.end(committed=True) == e.NONE
        assert await two.committed(here) == [b"x", b"y"]
        assert await two.committed(there) == [b"x"]


@pytest.mark.parametrize("version", PROTOCOLS)
async def test_a_batch_that_arrives_after_the_end_of_its_transaction_opens_none(
    autojump_clock: MockClock, version: int
) -> None:
    """The coordinator's answer is late: by then the transaction was committed, and its marker is here."""
    async with two_brokers(Durability.WAL) as two:
        producer = await two.producer(version)
        here, there = two.places()
        await producer.write(here, b"x")
        if version < NEW:
            assert await producer.add(there) == [e.NONE]
        transactions, codes = two.brokers[2].broker.services.transactions, []
        remote, may_go_on = transactions.remote, trio.Event()

        async def ask_slowly(*asked: object) -> object:
            answer = await remote.ask(*asked)  # type: ignore[arg-type]
            await may_go_on.wait()
            return answer

        transactions.remote = attrs.evolve(remote, ask=ask_slowly)
        late = attrs.evolve(producer, sequences={})

        async def send_late() -> None:
            codes.append(await late.send(there, b"late"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_late)
            await trio.sleep(1.0)
            assert await producer.end(committed=True) == e.NONE
            may_go_on.set()
        assert codes in ([e.NOT_ENOUGH_REPLICAS], [e.INVALID_PRODUCER_EPOCH])
        assert not two.partition(there).transactions.open
