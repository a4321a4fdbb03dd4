"""A broker, its clients, and crashes, in one process on an autojump clock: everything follows from the seed.

Disk, store and metadata are in memory. At a crash the disk keeps what was synced and, of the write under way, any
sectors; clients' connections break at the same instant; the store keeps what had arrived, and what was on its way
arrives later, or too late. Meanwhile the store fails and loses replies now and then, and is slow. Then a new broker
starts on what is left.

`simulate` runs a seed, twice in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random

import attrs
import trio

from kafscale.broker import Broker, StorageParts
from kafscale.client.connection import Connection
from kafscale.config import Address, Durability, Settings
from kafscale.errors import BrokerUnavailable, PreconditionFailed
from kafscale.store.base import Buffer
from kafscale.store.memory import MemoryStore
from kafscale.store.metered import StoreMetrics
from kafscale.store.paths import parse_segment_key
from kafscale.store.retrying import RetryingStore, RetryPolicy
from kafscale.testing.bucket import read_bucket
from kafscale.testing.determinism import run_seeded
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.event_log import EventLog, LoggedStore
from kafscale.testing.faulty_store import FaultyStore
from kafscale.testing.history import History
from kafscale.testing.memory_broker import MemoryBroker, memory_settings
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.testing.workload import Committer, IdempotentProducer, Reader, Topic, create_topic

CRASH_COUNT = 4
PRODUCER_COUNT = 3
PARTITION_COUNT = 3
LIFE_MAX_SECONDS = 0.6
SETTLE_SECONDS = 300.0  # simulated: by then all producers must have their answers
ADDRESS = Address("192.0.2.2", 9092)


@attrs.define(eq=False)
class _Life:
    """One broker from its start to its crash."""

    broker: Broker
    disk: MemoryDisk
    nursery: trio.Nursery
    ended: trio.Event = attrs.field(factory=trio.Event)
    streams: list[_CutStream] = attrs.field(factory=list)


@attrs.define(eq=False)
class _CutStream(trio.abc.Stream):
    """A client's end of a connection. Once it is cut nothing goes in or comes out, not even what is under way."""

    inner: trio.abc.Stream
    is_cut: bool = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._check()
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        self._check()
        data = await self.inner.receive_some(max_bytes)
        self._check()
        return data

    async def aclose(self) -> None:
        await self.inner.aclose()

    def _check(self) -> None:
        if self.is_cut:
            raise trio.BrokenResourceError("the broker has crashed")


@attrs.define(eq=False)
class _NotingStore(MemoryStore):
    """A bucket, before it the network: a PUT can have its effect after the process that sent it has died."""

    under_way: dict[str, bytes] = attrs.field(factory=dict, init=False)
    network_seconds: float = attrs.field(default=0.0, init=False)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        self.under_way[key] = b"".join(parts)
        await trio.sleep(self.network_seconds)  # a cancellation here leaves it under way
        del self.under_way[key]
        return await super().put_if_absent(key, parts)

    async def deliver_late(self, delay_seconds: float) -> None:
        """After a crash: what was under way arrives now."""
        late, self.under_way = self.under_way, {}
        await trio.sleep(delay_seconds)
        for key, data in late.items():
            with suppress(PreconditionFailed):
                await super().put_if_absent(key, [data])


@attrs.define(eq=False)
class Simulation:
    """One seed's run. `history` is what the clients saw, `faults` what was wrong besides."""

    seed: int
    log: EventLog = attrs.field(factory=EventLog, init=False)
    history: History = attrs.field(init=False)
    faults: list[str] = attrs.field(factory=list, init=False)
    settings: Settings = attrs.field(init=False)
    _random: Random = attrs.field(init=False)
    _store: FaultyStore = attrs.field(init=False)
    _bucket: _NotingStore = attrs.field(factory=_NotingStore, init=False)
    _metadata: MemoryMetadataStore = attrs.field(factory=MemoryMetadataStore, init=False)
    _disk: MemoryDisk = attrs.field(init=False)
    _life: _Life | None = attrs.field(default=None, init=False)
    _is_up: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        rng = self._random = Random(self.seed)
        self.history = History(self.log.note)
        self._store = FaultyStore(self._bucket, Random(rng.random()))
        self._disk = MemoryDisk(note=self.log.note)
        self.settings = memory_settings(
            durability=rng.choice([Durability.WAL, Durability.S3_WAL, Durability.SEGMENT]),
            default_partitions_count=PARTITION_COUNT,
            wal_segment_bytes=rng.choice([64 << 10, 256 << 10]),
            segment_bytes=rng.choice([4 << 10, 32 << 10]),
            flush_interval_seconds=rng.choice([0.01, 0.1, 1.0]),
            shutdown_timeout_seconds=30.0,
        )

    async def run(self) -> None:
        """Load, crash, start again, several times; then let all be answered, and read everything back."""
        async with trio.open_nursery() as nursery:
            await self._start(nursery)
            topic = await create_topic(self._connect, "orders")
            stopping = trio.Event()
            committer = self._committer(topic, stopping)
            async with trio.open_nursery() as readers:
                readers.start_soon(self._reader("follower", topic).run)
                with trio.fail_after(CRASH_COUNT * LIFE_MAX_SECONDS + SETTLE_SECONDS):
                    async with trio.open_nursery() as writers:
                        for number in range(PRODUCER_COUNT):
                            writers.start_soon(self._producer(f"p{number}", topic, stopping).run)
                        writers.start_soon(committer.run)
                        await self._crash_and_restart(nursery)
                        stopping.set()
                readers.cancel_scope.cancel()
            await self._read_back("before the last restart", topic, committer)
            await self._stop()
            await self._look_at_bucket(complete=True)
            await self._start(nursery)
            await self._read_back("after the last restart", topic, committer)
            nursery.cancel_scope.cancel()

    async def _crash_and_restart(self, nursery: trio.Nursery) -> None:
        for _ in range(CRASH_COUNT):
            self._make_trouble()
            await trio.sleep(self._random.uniform(0, LIFE_MAX_SECONDS))
            self._crash()
            self._store.heal()
            await self._look_at_bucket(complete=False)
            nursery.start_soon(self._bucket.deliver_late, self._random.choice([0.0, 0.01, 0.3]))
            await self._start(nursery)

    def _make_trouble(self) -> None:
        rng = self._random
        self._disk.sync_seconds = rng.choice([0.0, 0.002, 0.02])
        self._disk.create_seconds = rng.choice([0.0, 0.05])
        self._bucket.network_seconds = rng.choice([0.0, 0.05])
        self._store.unreliable(rng.choice([0.0, 0.05, 0.3]), delay_seconds=rng.choice([0.0, 0.02, 0.2]))

    # ---- the broker's lives -----------------------------------------------------------------------------------

    async def _start(self, nursery: trio.Nursery) -> None:
        broker = Broker(self.settings)
        policy = RetryPolicy(deadline_seconds=10.0)
        logged = LoggedStore(self._store, self.log, "store")
        store = RetryingStore(logged, policy, Random(self._random.random()), StoreMetrics.register(broker.metrics))
        parts = StorageParts(store=store, metadata=self._metadata, disk=self._disk)
        self._life = await nursery.start(self._live, broker, parts)
        self._is_up.set()

    async def _live(
        self, broker: Broker, parts: StorageParts, *, task_status: trio.TaskStatus[_Life] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            life = _Life(broker, self._disk, nursery)
            await nursery.start(partial(broker.run_on, parts))
            task_status.started(life)
        life.ended.set()

    def _crash(self) -> None:
        """From one instant to the next: nothing of this life has any effect any more."""
        life = self._life
        assert life is not None
        for stream in life.streams:
            stream.is_cut = True
        self._check_nothing_unacknowledged_is_visible(life.broker)
        self._disk = life.disk.crash(rng=self._random)
        self.log.note("crash")
        self._end_life()
        life.nursery.cancel_scope.cancel()

    async def _stop(self) -> None:
        life = self._life
        assert life is not None
        self._end_life()
        life.broker.stop()
        with trio.fail_after(SETTLE_SECONDS):
            await life.ended.wait()

    def _end_life(self) -> None:
        self._life = None
        self._is_up = trio.Event()

    async def _connect(self) -> Connection:
        await self._is_up.wait()
        life = self._life
        if life is None:
            raise BrokerUnavailable("it has crashed again")
        stream = _CutStream(MemoryBroker(life.broker, life.nursery).open_stream())
        life.streams.append(stream)
        return await Connection.over(stream, ADDRESS)

    # ---- clients ----------------------------------------------------------------------------------------------

    def _producer(self, name: str, topic: Topic, stopping: trio.Event) -> IdempotentProducer:
        return IdempotentProducer(
            name=name,
            topic=topic,
            connect=self._connect,
            history=self.history,
            random=Random(self._random.random()),
            stopping=stopping,
            pause_max_seconds=self._random.choice([0.02, 0.1]),
        )

    def _reader(self, name: str, topic: Topic) -> Reader:
        return Reader(name=name, topic=topic, connect=self._connect, history=self.history)

    def _committer(self, topic: Topic, stopping: trio.Event) -> Committer:
        return Committer(
            group="billing",
            topic=topic,
            connect=self._connect,
            history=self.history,
            random=Random(self._random.random()),
            stopping=stopping,
        )

    # ---- what must hold ---------------------------------------------------------------------------------------

    async def _read_back(self, name: str, topic: Topic, committer: Committer) -> None:
        await self._reader(name, topic).read_to_end()
        await committer.check()

    async def _look_at_bucket(self, *, complete: bool) -> None:
        """Compare the bucket alone with what consumers were served; `complete` when all must be in it."""
        for partition, found in (await read_bucket(self._bucket, self.settings.namespace)).items():
            self.history.sought("bucket", partition)
            self.history.polled("bucket", partition, found.reads)
            if complete:
                self.faults += found.faults

    def _check_nothing_unacknowledged_is_visible(self, broker: Broker) -> None:
        """Under `wal`, no segment may begin where consumers can't read yet."""
        if self.settings.durability is not Durability.WAL:
            return
        for key in filter(None, map(parse_segment_key, self._bucket._keys)):
            partition = broker.services.log.partition(key.topic_id, key.partition)
            if key.kind == "kfs" and (partition is None or key.base_offset >= partition.high_watermark):
                self.faults.append(f"{key.key} holds what is not acknowledged")


def simulate(seed: int) -> Simulation:
    """Run a seed to its end."""
    simulation = Simulation(seed)
    run_seeded(seed, simulation.run)
    return simulation
