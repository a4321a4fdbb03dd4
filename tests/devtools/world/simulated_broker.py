"""A broker in memory that can die at any instant."""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import Context, copy_context
from functools import partial
from random import Random
from typing import TypeVar

import attrs
import trio

from kafscale.broker import Broker
from kafscale.broker_storage import StorageParts
from kafscale.client.connection import DEFAULT_TIMEOUT_SECONDS, Connection
from kafscale.cluster.membership.peers.peer_connections import Connect
from kafscale.config import Address, Settings
from kafscale.errors import (
    BrokerUnavailable,
    DamagedObject,
    DeclaredDead,
    Fenced,
    KafScaleError,
    StartupError,
    StorageFailed,
)
from kafscale.log.wal.disk import Disk
from kafscale.store.base import ObjectStore
from kafscale.store.opening.views import StoreViews
from kafscale.store.paths import system_key
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.reach import Reach
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.fakes.memory_broker import MemoryBroker
from tests.devtools.fakes.memory_network import MemoryConnection, MemoryNetwork, MemoryStream
from tests.devtools.processes.crash_points import CrashPoint, crashing_parts
from tests.devtools.world.event_log import EventLog, LoggedStore
from tests.devtools.world.simulated_process import PROCESS, Process

C = TypeVar("C", bound=Connection)

ADDRESS = Address("192.0.2.2", 9092)
RETRIES = RetryPolicy(deadline_seconds=10.0)
PROBED_KEY = system_key("probe", "reach")
DURING_MAX_SECONDS = 0.1  # how long after the beginning of an operation a crash "during" it comes


def superseded(life: SimulatedBroker) -> type[Fenced] | None:
    """Expect a life to be fenced once another one has begun to start."""
    return Fenced if life.is_superseded else None


@attrs.frozen
class _Ready:
    then: Callable[[], None]

    def started(self, value: object = None) -> None:
        self.then()


@attrs.define(eq=False, kw_only=True)
class SimulatedBroker:
    """One life: from a start on the data of an earlier life to a crash, a stop, or an end of its own.

    `failure` is the error that ended it, None for a crash or a stop. `is_damaged` tells whether its disk or the bucket
    is. `verdict` returns the error by which a life that ends by itself must end: one that was declared dead starts
    anew.
    """

    name: str
    settings: Settings
    random: Random
    log: EventLog
    bucket: ObjectStore
    disk: MemoryDisk
    metadata: MemoryMetadataStore
    is_damaged: bool = False
    on_crash: Callable[[SimulatedBroker], None] = lambda life: None  # while it can still be looked at
    watched: Callable[[Disk], Disk] = lambda disk: disk  # wraps the disk
    connect: Connect | None = None  # to other brokers
    verdict: Callable[[SimulatedBroker], type[Fenced] | None] = superseded
    page_max_counts: Sequence[int] = (2, 1000)  # of listings
    client_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    process: Process = attrs.field(factory=Process)
    is_superseded: bool = attrs.field(default=False, init=False)  # another one has begun to start
    broker: Broker = attrs.field(init=False)
    store: FaultyStore = attrs.field(init=False)  # its own way to the bucket
    network: MemoryNetwork = attrs.field(factory=MemoryNetwork, init=False)
    failure: BaseException | None = attrs.field(default=None, init=False)
    is_ready: bool = attrs.field(default=False, init=False)
    was_ready: bool = attrs.field(default=False, init=False)
    has_crashed: bool = attrs.field(default=False, init=False)
    ready_or_ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _context: Context = attrs.field(init=False)  # that of its tasks
    _point: CrashPoint | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.broker = Broker(self.settings, connect=self.connect)
        self.store = FaultyStore(
            self.bucket, Random(self.random.random()), page_max_count=self.random.choice(self.page_max_counts)
        )

    def will_die_at(self, point: str, passes_count: int) -> None:
        self._point = CrashPoint(point, passes_count, die=self._die, die_soon=self._die_soon)

    def may_wait_at(self, point: str, wait: Callable[[], Awaitable[None]]) -> None:
        """Set the point at which `wait_behind` makes the broker wait; call this before `run`."""

        async def wait_here() -> None:
            self.spare()
            await wait()

        self._point = CrashPoint(point, sys.maxsize, die=wait_here)

    def wait_behind(self, passes_count: int) -> None:
        """Make it wait at its point once it has passed that `passes_count` times."""
        assert self._point is not None
        self._point.passes_left_count = passes_count

    def spare(self) -> None:
        if self._point is not None:
            self._point.passes_left_count = sys.maxsize

    async def run(self) -> None:
        """Run one life to its end. Raises errors that no injected fault explains."""
        self.log.note(f"{self.name} starts")
        PROCESS.set(self.process)
        self._context = copy_context()
        own_disk = self.disk  # a crash leaves a copy to the next life, while this one's last write may fail
        try:
            async with trio.open_nursery() as connections:
                self._nursery = connections
                await self.broker.run_on(self._parts(), task_status=_Ready(self._is_started))
                connections.cancel_scope.cancel()
        except Exception as exc:
            self.failure = exc
            if not all(isinstance(leaf, self._explained(own_disk)) for leaf in _leaves(exc)) or _hides_bug(exc):
                raise
        finally:
            self.log.note(f"{self.name} has ended: {self._reason()}")
            if self.failure is not None:
                self.disk = self.disk.crash(rng=self.random)  # a failed disk may have kept any part of its last write
            self.is_ready = False
            self._cut_all()
            self.ended.set()
            self.ready_or_ended.set()

    @property
    def has_flushed_all(self) -> bool:
        """Tell, after its end, whether it was a stop that left no unflushed records."""
        return not self.has_crashed and self.failure is None and self.broker.services.log.tail_bytes() == 0

    @property
    def incarnation(self) -> int | None:
        services = getattr(self.broker, "services", None)
        return None if services is None else services.node.broker_epoch

    @property
    def hanging_count(self) -> int:
        """Count the open transactions that it found in partitions and that no coordinator knew."""
        return int(self.broker.services.transactions.hanging.value) if self.was_ready else 0

    def crash(self) -> None:
        if self.ended.is_set() or self._nursery.cancel_scope.cancel_called:
            return
        self.log.note(f"{self.name} crashes")
        self.on_crash(self)
        self._cut_all()
        self.disk, self.metadata = self.disk.crash(rng=self.random), self.metadata.crash()
        self.is_ready = False
        self.has_crashed = True
        self._nursery.cancel_scope.cancel()
        if self.process.is_suspended:
            self.process.resume()

    async def open_connection(self) -> tuple[MemoryConnection, Connection]:
        return await self.open_connection_of(Connection)

    async def open_connection_of(self, kind: type[C]) -> tuple[MemoryConnection, C]:
        """Open a connection of this class. Raises BrokerUnavailable."""
        stream = self.network.connect(self.open_stream())
        try:
            return stream, await kind.over(stream, ADDRESS, timeout_seconds=self.client_timeout_seconds)
        except BaseException:
            stream.cut()
            raise

    def open_stream(self) -> MemoryStream:
        """Connect to it past the network of its clients. Raises BrokerUnavailable once it has stopped listening."""
        if self.broker.services.draining.is_set():
            raise BrokerUnavailable("it is shutting down") from ConnectionRefusedError()
        return self._context.run(MemoryBroker(self.broker, self._nursery).open_stream)

    async def connect_client(self) -> Connection:
        """Raises BrokerUnavailable, once it has ended too."""
        if not self.is_ready:
            raise BrokerUnavailable("it has ended")
        return (await self.open_connection())[1]

    def _is_started(self) -> None:
        self.is_ready = self.was_ready = True
        self.log.note(f"{self.name} is ready")
        self.ready_or_ended.set()

    def _parts(self) -> StorageParts:
        logged = LoggedStore(self.store, self.log, self.name)
        parts = StorageParts(store=logged, metadata=self.metadata, disk=self.disk)
        if self._point is not None:
            parts = crashing_parts(parts, self._point)
        metrics = StoreMetrics.register(self.broker.metrics)
        reach = Reach(probe=partial(parts.store.head, PROBED_KEY))
        retrying = RetryingStore(parts.store, RETRIES, Random(self.random.random()), metrics, reach)
        views = StoreViews.alike(retrying, reach)
        return attrs.evolve(parts, store=retrying, disk=self.watched(parts.disk), views=views)

    async def _die(self) -> None:
        self.crash()
        if trio.current_effective_deadline() == -math.inf:
            await (
                trio.sleep_forever()
            )  # until it is cancelled; what is shielded goes on, on a disk that is not used any more

    def _die_soon(self) -> None:
        async def die() -> None:
            await trio.sleep(self.random.uniform(0, DURING_MAX_SECONDS))
            self.crash()

        self._nursery.start_soon(die)

    def _cut_all(self) -> None:
        for stream in tuple(self.network.streams):
            stream.cut()

    def _explained(self, disk: MemoryDisk) -> tuple[type[BaseException], ...]:
        """Return the errors by which it may end now, with this disk."""
        verdict = self.verdict(self)
        if verdict is DeclaredDead and self.broker.is_stopping:
            verdict = Fenced  # it need not know why
        explained: list[type[BaseException]] = [] if verdict is None else [verdict]
        if disk.has_failed:
            explained.append(StorageFailed)
        if not self.is_ready:
            explained += [StartupError, *([DamagedObject] if self.is_damaged else [])]
        return tuple(explained)

    def _reason(self) -> str:
        return "no failure" if self.failure is None else "; ".join(map(repr, _leaves(self.failure)))


def _hides_bug(exc: BaseException) -> bool:
    """Tell whether the error of a fenced broker has a bug as its cause."""
    causes = [leaf.__cause__ for leaf in _leaves(exc) if isinstance(leaf, Fenced) and leaf.__cause__ is not None]
    met = [leaf for cause in causes for leaf in _leaves(cause)]
    return not all(isinstance(error, KafScaleError | trio.Cancelled) for error in met)


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if not isinstance(exc, BaseExceptionGroup):
        yield exc
        return
    for exception in exc.exceptions:
        yield from _leaves(exception)
