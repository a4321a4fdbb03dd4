"""Ways of a simulated machine to the bucket and to other brokers: PUTs and messages may arrive late, or never."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from random import Random
from typing import TypeVar

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.client.connection import Connection
from kafscale.cluster.membership.peers.peer_connections import Connect, PeerConnection
from kafscale.cluster.membership.records import BrokerRecord
from kafscale.errors import BrokerUnavailable, StoreError, StoreUnavailable
from kafscale.store.base import ForwardingStore, ObjectInfo, ObjectPart
from tests.devtools.fakes.memory_network import CutStream, Late
from tests.devtools.world.simulated_broker import ADDRESS, SimulatedBroker
from tests.devtools.world.simulated_process import PROCESS
from tests.devtools.world.weather import Weather

STRAGGLER_MAX_SECONDS = 20.0
SEGMENT = ".kfs"

T = TypeVar("T")

Take = Callable[[], Awaitable[str]]
Spawn = Callable[[Callable[[], Awaitable[None]]], None]  # starts a task of the world, which no broker's end ends


@attrs.define(eq=False)
class _Put:
    key: str
    data: bytes
    take: Take
    was_taken: bool = False
    outcome: str | StoreError | None = None
    done: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False, kw_only=True)
class BucketLine(ForwardingStore):
    """The bucket over a slow network: a PUT may take effect long after its sender gave up, or died.

    It calls `on_put` at the moment of a PUT's effect, and `on_delete` before each deletion.
    """

    spawn: Spawn
    random: Random
    on_put: Callable[[str, bytes], None] = lambda key, data: None
    on_delete: Callable[[Sequence[str]], None] = lambda keys: None
    network_seconds: float = 0.0  # of a PUT
    upload_max_seconds: float = 0.0  # further time of a segment's PUT
    read_max_seconds: float = 0.0  # of a read or a page of a listing
    straggler_probability: float = 0.0  # of PUTs that fail for their sender and arrive later
    late_max_seconds: float = 0.0  # until a dead process' PUTs arrive
    straggler_count: int = attrs.field(default=0, init=False)
    _under_way: list[_Put] = attrs.field(factory=list, init=False)

    async def get(self, key: str) -> ObjectPart:
        return await self._arrived(await self.store.get(key))

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        return await self._arrived(await self.store.get_range(key, start, length_bytes))

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        return await self._arrived(await self.store.get_tail(key, length_bytes))

    async def head(self, key: str) -> ObjectInfo:
        return await self._arrived(await self.store.head(key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        async with aclosing(self.store.list(prefix, start_after=start_after)) as pages:
            async for page in pages:
                yield await self._arrived(page)

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        data = b"".join(parts)
        return await self._send(key, data, partial(self.store.put, key, [data]))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        data = b"".join(parts)
        return await self._send(key, data, partial(self.store.put_if_absent, key, [data]))

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        data = b"".join(parts)
        return await self._send(key, data, partial(self.store.put_if_match, key, [data], etag))

    async def delete(self, keys: Sequence[str]) -> None:
        self.on_delete(keys)
        await self.store.delete(keys)

    def abandon(self) -> None:
        """Let every PUT under way arrive by itself; a suspended process finds the outcome when it goes on."""
        for put in self._under_way:
            self.spawn(partial(self._arrive_late, put, self.random.uniform(0, self.late_max_seconds)))

    async def _send(self, key: str, data: bytes, take: Take) -> str:
        put = _Put(key, data, take)
        seconds = self.network_seconds
        if self.upload_max_seconds and key.endswith(SEGMENT):
            seconds += self.random.uniform(0, self.upload_max_seconds)
        if self.straggler_probability and self.random.random() < self.straggler_probability:
            self.straggler_count += 1
            self.spawn(partial(self._arrive_late, put, self.random.uniform(0, STRAGGLER_MAX_SECONDS)))
            await trio.sleep(seconds)
            raise StoreUnavailable(f"lost on its way: {key}")
        self._under_way.append(put)
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self.spawn(partial(self._arrive_late, put, self.random.uniform(0, self.late_max_seconds)))
            raise
        finally:
            self._under_way.remove(put)
        if not put.was_taken:
            await self._arrive(put)
        await put.done.wait()
        assert put.outcome is not None
        if isinstance(put.outcome, str):
            return put.outcome
        raise put.outcome

    async def _arrived(self, answer: T) -> T:
        if self.read_max_seconds:
            await trio.sleep(self.random.uniform(0, self.read_max_seconds))
        return answer

    async def _arrive_late(self, put: _Put, seconds: float) -> None:
        await trio.sleep(seconds)
        if not put.was_taken:
            await self._arrive(put)

    async def _arrive(self, put: _Put) -> None:
        put.was_taken = True
        token = PROCESS.set(None)  # the bucket has a clock of its own
        try:
            with trio.CancelScope(shield=True):
                put.outcome = await put.take()
            self.on_put(put.key, put.data)
        except StoreError as exc:
            put.outcome = exc
        finally:
            PROCESS.reset(token)
            put.done.set()


STARTING_POLL_SECONDS = 0.05


@attrs.define(eq=False)
class Links:
    """The network between the brokers of a simulated cluster; `cuts` are the links (from, to) that carry nothing.

    A stopped broker refuses connections; one that starts, or is suspended, accepts them and does not answer. `running`
    returns a broker's newest life unless that has ended. Sent data is on its way for `seconds`.
    """

    running: Callable[[int], SimulatedBroker | None]
    seconds: float = 0.0
    cuts: set[tuple[int, int]] = attrs.field(factory=set)
    late: Late = attrs.field(factory=Late)

    def connect_from(self, ours: int) -> Connect:
        async def connect(theirs: int, _record: BrokerRecord) -> PeerConnection:
            while True:
                if {(ours, theirs), (theirs, ours)} & self.cuts:
                    await trio.sleep_forever()
                life = self.running(theirs)
                if life is None:
                    await trio.lowlevel.checkpoint()
                    raise BrokerUnavailable(f"can't connect to broker {theirs}") from ConnectionRefusedError()
                if life.is_ready:
                    break
                await trio.sleep(STARTING_POLL_SECONDS)
            stream = CutStream(life.open_stream(), self.cuts, ours, theirs, self.late, self.seconds)
            return await Connection.over(stream, ADDRESS)

        return connect

    async def trouble(self, broker_ids: Sequence[int], random: Random, weather: Weather) -> None:
        """Cut a broker off from another one, or from all, in one direction or both, again and again.

        Data sent meanwhile is lost, or late.
        """
        while True:
            await trio.sleep(random.expovariate(1 / weather.links_mean_seconds))
            one = random.choice(broker_ids)
            others = [broker_id for broker_id in broker_ids if broker_id != one]
            if random.random() < 0.5:
                others = [random.choice(others)]
            ways = random.choice([(1, 0), (0, 1), (1, 1)])
            for other in others:
                self.cuts.update([(one, other)] * ways[0] + [(other, one)] * ways[1])
            self.late.is_kept = weather.links_late_probability > 0 and random.random() < weather.links_late_probability
            try:
                await trio.sleep(random.uniform(0, weather.links_cut_max_seconds))
            finally:
                self.cuts.clear()
                self.late.arrive()
