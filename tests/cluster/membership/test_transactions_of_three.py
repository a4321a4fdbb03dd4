"""Transactions over three whole brokers on one bucket, by a client that finds leaders as real ones do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.coordinator.partitions import coordinator_partition
from kafscale.cluster.registries.topic_names import TRANSACTION_STATE_NAME
from kafscale.config import Durability
from kafscale.wire import error_codes as e
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tests.cluster.membership.test_several import TOPIC, create, led_by, machines, topic_at, until
from tests.devtools.fakes.broker_network import RunningBroker
from tests.devtools.fakes.transactional_producer import NEW, OLD, Producer, committed_values

MODES = list(Durability)
AGAIN = (e.NOT_ENOUGH_REPLICAS, e.NOT_LEADER_OR_FOLLOWER, e.CONCURRENT_TRANSACTIONS, e.COORDINATOR_NOT_AVAILABLE)
AGAIN_AT_COORDINATOR = (*AGAIN, e.NOT_COORDINATOR, e.COORDINATOR_LOAD_IN_PROGRESS)
FEW = {"transaction_state_partitions_count": 4}


@attrs.define(eq=False)
class Clients:
    """A producer that knows who coordinates its id and who leads each partition, as real ones find out."""

    running: dict[int, RunningBroker]
    transactional_id: str
    version: int = NEW
    producer: Producer = attrs.field(init=False)

    async def coordinator(self) -> RunningBroker:
        await until(lambda: self._leader(TRANSACTION_STATE_NAME, self._index()) is not None)
        found = self._leader(TRANSACTION_STATE_NAME, self._index())
        assert found is not None
        return found

    def _index(self) -> int:
        return coordinator_partition(self.transactional_id, 4)

    def _leader(self, name: str, index: int) -> RunningBroker | None:
        for each in self.running.values():
            if not each.ended.is_set() and each.broker.services.log.partition_named(name, index) is not None:
                return each
        return None

    async def leader(self, index: int, name: str = TOPIC) -> RunningBroker:
        await until(lambda: self._leader(name, index) is not None)
        found = self._leader(name, index)
        assert found is not None
        return found

    async def begin(self) -> None:
        first = next(each for each in self.running.values() if not each.ended.is_set())
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
        await (await first.connect()).request(find, FindCoordinatorResponse)
        self.producer = Producer(await first.connect(), self.transactional_id, produce_version=self.version)
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=60_000)
        with trio.fail_after(60.0):
            while True:
                self.producer.client = await (await self.coordinator()).connect()
                answer = await self.producer.call(request, InitProducerIdResponse, 4)
                if answer.error_code not in AGAIN_AT_COORDINATOR:
                    break
                await trio.sleep(0.1)
        assert answer.error_code == e.NONE
        self.producer.producer_id, self.producer.epoch = answer.producer_id, answer.producer_epoch
        self.producer.sequences.clear()

    async def write(self, index: int, value: bytes) -> None:
        if self.version < NEW:
            await self._retry(lambda: self._add(index))
        await self._retry(lambda: self._send(index, value))

    async def _add(self, index: int) -> int:
        self.producer.client = await (await self.coordinator()).connect()
        (code,) = await self.producer.add(index)
        return code

    async def _send(self, index: int, value: bytes) -> int:
        self.producer.client = await (await self.leader(index)).connect()
        return await self.producer.send(index, value)

    async def end(self, *, committed: bool) -> None:
        async def end() -> int:
            self.producer.client = await (await self.coordinator()).connect()
            return await self.producer.end(committed=committed)

        await self._retry(end)

    async def _retry(self, ask: Any) -> None:
        with trio.fail_after(60.0):
            while (code := await ask()) in AGAIN_AT_COORDINATOR:
                await trio.sleep(0.1)
        assert code == e.NONE, e.name(code)

    async def committed(self, index: int) -> list[bytes | None]:
        return await committed_values(await (await self.leader(index)).connect(), index)

    async def settled(self, index: int) -> None:
        """Wait until nothing is open in a partition."""

        def is_settled() -> bool:
            found = self._leader(TOPIC, index)
            partition = None if found is None else found.broker.services.log.partition_named(TOPIC, index)
            return partition is not None and not partition.transactions.open

        await until(is_settled)


@asynccontextmanager
async def three(durability: Durability) -> AsyncIterator[dict[int, RunningBroker]]:
    one, two, last = machines(3)
    async with (
        one.run(durability, **FEW) as a,
        two.run(durability, **FEW) as b,
        last.run(durability, **FEW) as c,
    ):
        running = {1: a, 2: b, 3: c}
        await create(a.broker, 6)
        for each in running.values():
            await topic_at(each.broker)
        await until(lambda: [len(led_by(each.broker)) for each in running.values()] == [2, 2, 2])
        yield running


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("durability", MODES)
async def test_transactions_commit_and_abort_over_all_brokers(
    autojump_clock: MockClock, durability: Durability, version: int
) -> None:
    async with three(durability) as running:
        clients = Clients(running, "t", version)
        await clients.begin()
        for number in range(4):
            for index in range(6):
                await clients.write(index, b"%d" % number)
            await clients.end(committed=number % 2 == 0)
        for index in range(6):
            await clients.settled(index)
            assert await clients.committed(index) == [b"0", b"2"]


async def test_a_producer_is_fenced_by_an_init_at_another_broker(autojump_clock: MockClock) -> None:
    async with three(Durability.WAL) as running:
        first, second = Clients(running, "t"), Clients(running, "t")
        await first.begin()
        for index in range(6):
            await first.write(index, b"x")
        await second.begin()
        for index in range(6):
            code = await first._send(index, b"y")
            assert code == e.INVALID_PRODUCER_EPOCH
            await second.write(index, b"z")
        await second.end(committed=True)
        for index in range(6):
            await second.settled(index)
            assert await second.committed(index) == [b"z"]
