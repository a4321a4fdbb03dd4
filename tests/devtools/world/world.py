"""The simulated world: machines with brokers, a bucket, clients and faults, driven by a seed.

A world runs in one process on an autojump clock. Disk, store, metadata and network are in memory. Brokers live among
faults on machines (`machine`) while parts of clients (`Part`) load them; then all is healed, every send must be
answered, every transaction must have ended, and everything is read back, from the brokers and from the bucket.
`one_broker` is the world of one broker, `cluster` that of several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context, copy_context
from random import Random
from typing import Protocol

import attrs
import trio

from kafscale.config import Durability, Settings
from kafscale.store.memory import MemoryStore
from tests.devtools.history.bucket import BucketPartition
from tests.devtools.history.history import History, Read
from tests.devtools.world.event_log import EventLog
from tests.devtools.world.machine import SETTLE_SECONDS
from tests.devtools.world.transactional.clients import TransactionalClients
from tests.devtools.world.workload import Run, Topic, marker_offsets

DURABILITIES = tuple(Durability)


def durability_of(seed: int) -> Durability:
    """Return the durability of a seed: that of its remainder by the number of modes."""
    return DURABILITIES[seed % len(DURABILITIES)]


class Part(Protocol):
    """Clients that belong together, with topics of their own; a seed may omit them."""

    @property
    def all_topics(self) -> Sequence[Topic]:
        """Return their topics, once these are created."""

    async def create_topics(self) -> None:
        """Create the topics, before anything else. Raises BrokerUnavailable, KafkaError."""

    def start_readers(self, nursery: trio.Nursery) -> None:
        """Read until cancelled."""

    def start_writers(self, nursery: trio.Nursery, stopping: trio.Event) -> None:
        """Load until `stopping`, and end when all is answered."""

    async def wait_settled(self, name: str) -> None:
        """Wait, while the readers go on, until all unfinished work has ended."""

    async def read_back(self, name: str) -> None:
        """Read everything, while nothing fails any more. Raises KafkaError, BrokerUnavailable."""

    def problems(self) -> Sequence[str]:
        """Return violations that the history does not show."""


@attrs.define(eq=False)
class World(ABC):
    """One seed's run. `history` is that of the clients, `faults` are other violations, `log` has all events."""

    seed: int
    is_short: bool = False
    log: EventLog = attrs.field(factory=EventLog, init=False)
    history: History = attrs.field(init=False)
    faults: list[str] = attrs.field(factory=list, init=False)
    settings: Settings = attrs.field(init=False)
    _random: Random = attrs.field(init=False)
    _bucket: MemoryStore = attrs.field(factory=MemoryStore, init=False)
    _parts: Sequence[Part] = attrs.field(init=False)
    _transactional: TransactionalClients = attrs.field(init=False)
    _stopping: trio.Event = attrs.field(factory=trio.Event, init=False)  # the load ends
    _world: trio.Nursery = attrs.field(init=False)
    _context: Context = attrs.field(init=False)  # that of no broker

    def __attrs_post_init__(self) -> None:
        self.history = History(self.log.note)
        self._build()

    @property
    def problems(self) -> list[str]:
        found = [*map(str, self.history.anomalies()), *(found for part in self._parts for found in part.problems())]
        return [*found, *self.faults]

    @property
    def committed_count(self) -> int:
        """Count the transactions that their producers know to be committed."""
        return self._transactional.seen.committed_count

    async def run(self) -> None:
        self._context = copy_context()
        async with trio.open_nursery() as self._world:
            await self._start()
            for part in self._parts:
                await part.create_topics()
            async with trio.open_nursery() as keepers:
                async with trio.open_nursery() as readers:
                    for part in self._parts:
                        part.start_readers(readers)
                    for run in self._watchers():
                        readers.start_soon(run)
                    with trio.fail_after(2 * SETTLE_SECONDS):
                        async with trio.open_nursery() as writers:
                            for part in self._parts:
                                part.start_writers(writers, self._stopping)
                            await self._load(writers, keepers)
                            self._stopping.set()
                    await self._all(part.wait_settled("after the load") for part in self._parts)
                    readers.cancel_scope.cancel()
                await self._settle()
                keepers.cancel_scope.cancel()
            await self._restart()
            self._world.cancel_scope.cancel()

    # ---- steps of a run -----------------------------------------------------------------------------------------

    @abstractmethod
    def _build(self) -> None:
        """Make settings, machines and parts from the seed."""

    @abstractmethod
    async def _start(self) -> None:
        """Start the machines that are there from the beginning."""

    def _watchers(self) -> Iterable[Run]:
        """Return further readers, which are cancelled with those of the parts."""
        return ()

    @abstractmethod
    async def _load(self, writers: trio.Nursery, keepers: trio.Nursery) -> None:
        """Trouble the brokers under load. Tasks of `keepers` go on until all has settled."""

    @abstractmethod
    async def _settle(self) -> None:
        """Check, while nothing fails any more, that all becomes quiet."""

    @abstractmethod
    async def _restart(self) -> None:
        """Stop everything, check the bucket, start again, and read everything back."""

    # ---- what the steps share -----------------------------------------------------------------------------------

    def _topics(self) -> Sequence[Topic]:
        return [topic for part in self._parts for topic in part.all_topics]

    async def _read_back(self, name: str) -> None:
        with trio.fail_after(SETTLE_SECONDS):
            for part in self._parts:
                await part.read_back(name)

    def _note_bucket(self, partition: str, found: BucketPartition, reads: Sequence[Read]) -> None:
        self.history.sought("bucket", partition)
        self.history.marked(partition, marker_offsets(found.batches))
        self.history.polled("bucket", partition, reads)

    def _spawn(self, async_fn: Callable[[], Awaitable[None]]) -> None:
        self._context.run(self._world.start_soon, async_fn)

    async def _all(self, runs: Iterable[Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(_await, run)


async def _await(run: Awaitable[None]) -> None:
    await run
