"""A broker process under load from several clients, while somebody makes it crash; and what must be true afterwards."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random, SystemRandom

import attrs
import trio

from kafscale.client.connection import DEFAULT_TIMEOUT_SECONDS, Connection, connect_to
from kafscale.config import Address, Settings
from kafscale.store.base import ObjectStore
from kafscale.store.file.store import FileStore
from tests.devtools.history.bucket import read_bucket
from tests.devtools.history.history import History
from tests.devtools.processes.process import BrokerProcess
from tests.devtools.world.group_offsets import Committer
from tests.devtools.world.producers import IdempotentProducer
from tests.devtools.world.topic_clients import create_topic
from tests.devtools.world.workload import Reader, Topic

OPTIONS = (
    *("--default-partitions", "3"),
    *("--flush-interval", "20ms"),
    *("--flush-objects-per-minute", "1000000"),
    *("--segment-bytes", "16KiB"),
    *("--wal-segment-bytes", "64KiB"),
    *("--segment-merge-bytes", "64KiB"),
    *("--segment-delete-delay", "100ms"),
)
"""With these a broker under load flushes, rotates, merges and deletes all the time."""

PRODUCERS_COUNT = 3
SETTLE_SECONDS = 60.0  # within this all producers get their answers, once the broker stays up


def chosen_seed() -> int:
    """The variable FAULTS_SEED, or any; printed, which pytest shows with a failure."""
    seed = int(os.environ.get("FAULTS_SEED", SystemRandom().randrange(1 << 32)))
    print(f"FAULTS_SEED={seed}")
    return seed


@attrs.define(eq=False)
class Ordeal:
    """One topic, its clients and one broker, from an empty data directory to the last look at the bucket.

    broker: another one may be put here, when it has taken over.
    open_bucket: gives the broker's store; without it, that is the default one, a directory.
    address: where clients go, if not to the broker itself.
    timeout_seconds: how long clients wait for an answer while there is trouble.
    """

    broker: BrokerProcess
    seed: int
    open_bucket: Callable[[], AbstractAsyncContextManager[ObjectStore]] | None = None
    address: Address | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    history: History = attrs.field(factory=History, init=False)
    faults: list[str] = attrs.field(factory=list, init=False)
    random: Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.random = Random(self.seed)

    async def run(
        self, crash: Callable[[], Awaitable[None]], *, more_clients: Sequence[Callable[..., Awaitable[None]]] = ()
    ) -> None:
        """Load the running broker while `crash` runs; it must leave a broker that runs.

        Each of `more_clients` is called with the topic, the history and an event: no more sends when it is set.
        """
        topic = await create_topic(self.connect, "orders")
        stopping = trio.Event()
        committer = self._committer(topic, stopping)
        async with trio.open_nursery() as readers:
            readers.start_soon(self._reader("follower", topic).run)
            async with trio.open_nursery() as writers:
                for number in range(PRODUCERS_COUNT):
                    writers.start_soon(self._producer(f"p{number}", topic, stopping).run)
                for run in more_clients:
                    writers.start_soon(run, topic, self.history, stopping)
                writers.start_soon(committer.run)
                await crash()
                stopping.set()
                writers.cancel_scope.deadline = trio.current_time() + SETTLE_SECONDS
            if writers.cancel_scope.cancelled_caught:
                self.faults.append(f"some sends had no answer in {SETTLE_SECONDS:g} s: {self.broker.log[-2000:]}")
            readers.cancel_scope.cancel()
        self.timeout_seconds = DEFAULT_TIMEOUT_SECONDS  # from here on an answer that takes long is no reason to go on
        await self._reader("after the last crash", topic).read_to_end()
        await committer.check()
        await trio.to_thread.run_sync(self.broker.stop)
        await self.look_at_bucket(after_crash=False)
        await trio.to_thread.run_sync(self.broker.start)
        await self._reader("after the last start", topic).read_to_end()
        await committer.check()

    async def connect(self) -> Connection:
        """Raises BrokerUnavailable while the broker is down."""
        return await connect_to(self.address or self.broker.kafka, "ordeal", self.timeout_seconds)

    async def look_at_bucket(self, *, after_crash: bool = True) -> None:
        """Read, while the broker is down, what its bucket holds as one more consumer.

        After a crash a `.kfs` may have the `.index` of an earlier attempt until the next start.
        """
        async with (self.open_bucket or self._open_directory)() as store:
            partitions = await read_bucket(store, Settings().namespace)
        for partition, found in partitions.items():
            self.history.sought("bucket", partition)
            self.history.polled("bucket", partition, found.reads)
            self.faults += [] if after_crash else found.faults

    @asynccontextmanager
    async def _open_directory(self) -> AsyncIterator[ObjectStore]:
        yield await FileStore.open(self.broker.data_dir / "bucket")

    def problems(self) -> list[str]:
        """Return what must not be; empty if all is well."""
        return [*map(str, self.history.anomalies()), *self.faults]

    def _producer(self, name: str, topic: Topic, stopping: trio.Event) -> IdempotentProducer:
        return IdempotentProducer(
            name=name,
            topic=topic,
            connect=self.connect,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
        )

    def _reader(self, name: str, topic: Topic) -> Reader:
        return Reader(name=name, topic=topic, connect=self.connect, history=self.history)

    def _committer(self, topic: Topic, stopping: trio.Event) -> Committer:
        return Committer(
            group="billing",
            topic=topic,
            connect=self.connect,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
        )
