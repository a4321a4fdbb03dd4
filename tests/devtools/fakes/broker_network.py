"""A network between brokers in memory: each reaches the others by id, and links between them can be cut.

A stopped broker refuses connections; a starting one accepts them and answers later. A broker that the network never ran
always answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakKeyDictionary

import attrs
import trio

from kafscale.broker import Broker
from kafscale.broker_storage import StorageParts
from kafscale.client.connection import Connection
from kafscale.cluster.membership.peers.peer_connections import Connect, PeerConnection
from kafscale.cluster.membership.records import BrokerRecord
from kafscale.config import Address, Settings
from kafscale.errors import BrokerUnavailable, Fenced
from kafscale.store.base import ObjectStore
from kafscale.testing.faulty_store import FaultyStore
from kafscale.wire.messages.brokers import BrokerHeartbeatResponse
from tests.devtools.fakes.memory_broker import MemoryBroker
from tests.devtools.fakes.memory_network import CutStream

R = TypeVar("R")


@attrs.define(eq=False)
class RunningBroker(MemoryBroker):
    """A broker that can be killed. `failure` is the error by which it ended itself."""

    everything: trio.CancelScope
    failure: ExceptionGroup[Fenced] | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)

    def kill(self) -> None:
        """End it as SIGKILL does: what it holds in memory is gone, and its clients see the end."""
        self.everything.cancel()


@attrs.define(eq=False)
class _Life:
    """One start of a broker. `broker` is None until it serves."""

    broker: RunningBroker | None = None


@attrs.frozen(eq=False)
class _Stranger:
    async def request(self, message: object, response_class: type[R]) -> R:
        await trio.lowlevel.checkpoint()
        answer = response_class()
        if isinstance(answer, BrokerHeartbeatResponse):
            answer.is_fenced = False
        return answer

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class BrokerNetwork:
    """Brokers by id. `cuts` are links (from, to) that carry nothing; `refusals` are links that can't be opened."""

    cuts: set[tuple[int, int]] = attrs.field(factory=set)
    refusals: set[tuple[int, int]] = attrs.field(factory=set)
    _brokers: defaultdict[int, list[_Life]] = attrs.field(factory=lambda: defaultdict(list))
    _streams: list[CutStream] = attrs.field(factory=list)

    def cut(self, *broker_ids: int, one_way: bool = False) -> None:
        """Cut the first broker off from the others, in both directions unless `one_way`."""
        first, *others = broker_ids
        for other in others:
            self.cuts.add((first, other))
            if not one_way:
                self.cuts.add((other, first))

    def refuse(self, ours: int, theirs: int) -> None:
        """Refuse connections of one broker to another from now on, in this direction only."""
        self.refusals.add((ours, theirs))
        for stream in self._streams:
            if (stream.ours, stream.theirs) == (ours, theirs):
                stream.stream.close()

    def heal(self) -> None:
        self.cuts.clear()
        self.refusals.clear()

    def connect_from(self, ours: int) -> Connect:
        async def connect(theirs: int, _record: BrokerRecord) -> PeerConnection:
            while True:
                if {(ours, theirs), (theirs, ours)} & self.cuts:
                    await trio.sleep_forever()
                if theirs not in self._brokers:
                    return _Stranger()
                if not self._brokers[theirs] or (ours, theirs) in self.refusals:
                    raise BrokerUnavailable(f"can't connect to broker {theirs}") from ConnectionRefusedError()
                found = self._brokers[theirs][-1].broker
                if found is not None:
                    break
                await trio.sleep(0.05)  # it is starting
            stream = CutStream(found.open_stream(), self.cuts, ours, theirs)
            self._streams.append(stream)
            return await Connection.over(stream, Address("192.0.2.2", 9092))

        return connect

    @asynccontextmanager
    async def broker(self, parts: StorageParts, settings: Settings) -> AsyncIterator[RunningBroker]:
        """Run a broker for the block; at its end it is stopped in order, unless it has ended."""
        broker = Broker(settings, connect=self.connect_from(settings.broker_id))
        async with trio.open_nursery() as nursery:
            running: RunningBroker = await nursery.start(self._run, broker, parts)
            yield running
            broker.stop()

    async def _run(self, broker: Broker, parts: StorageParts, *, task_status: trio.TaskStatus[RunningBroker]) -> None:
        lives = self._brokers[broker.settings.broker_id]
        life = _Life()
        lives.append(life)
        try:
            with trio.CancelScope() as everything:
                async with trio.open_nursery() as clients:
                    running = RunningBroker(broker, clients, everything)
                    clients.start_soon(self._serve, running, parts, life, task_status)
        finally:
            lives.remove(life)
            if life.broker is not None:
                life.broker.ended.set()

    async def _serve(
        self, running: RunningBroker, parts: StorageParts, life: _Life, task_status: trio.TaskStatus[RunningBroker]
    ) -> None:
        class Started(trio.TaskStatus[Broker]):
            def started(self, value: Broker | None = None) -> None:
                life.broker = running
                task_status.started(running)

        try:
            await running.broker.run_on(parts, task_status=Started())
        except* Fenced as group:
            running.failure = group
        running.nursery.cancel_scope.cancel()


_networks: WeakKeyDictionary[ObjectStore, BrokerNetwork] = WeakKeyDictionary()


def network_of(bucket: ObjectStore) -> BrokerNetwork:
    """Return the network of the brokers that share this bucket, seen through any `FaultyStore` around it."""
    while isinstance(bucket, FaultyStore):
        bucket = bucket.store
    return _networks.setdefault(bucket, BrokerNetwork())
