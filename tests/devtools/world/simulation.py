"""A broker, its clients, and everything that can go wrong, in one process on an autojump clock, all of it by a seed.

Disk, store, metadata and network are in memory. In each turn the broker lives for a while among faults, and then

    crashes             at a random moment, or at a named point (`crash_points`): the disk keeps what was synced, and
                        any sectors of the write under way; PUTs that were on their way arrive later, or too late
    loses its disk      `s3-wal` and `segment`: the next one starts from the bucket alone
    is taken over from  the next one starts, with an empty disk, while this one lives on; in `wal` only in seeds of
                        their own, as what the older one has not flushed may be lost then
    breaks              its disk refuses a write or a sync, and it ends by itself
    finds damage        `wal`: a bit of its log flips while it is down; it must not start, until the bit is put right
    stops               in order; in `wal` too the next one may then have an empty disk

Meanwhile the store fails before and after the effect, loses replies, is busy or away for a while, hangs, is slow, or
cuts a body short; the disk is slow or full, for the log or the metadata; connections are reset, slow, narrow, or half
open. In the end all is healed, every send must be answered, every transaction must have ended, small segments are
merged and compacted and what is not needed is deleted, and everything is read back, from the broker and from the
bucket. In `s3-wal` a reader of the bucket alone reads all that is acknowledged while this goes on (`log_watcher`). What
has become durable is held against the rules of transactions, in that order (`transactional.in_log`). The topic is
compacted, or loses its oldest records by DeleteRecords, or by its size, or keeps all; it may get more partitions.
Another one is deleted and created anew. Further ones are written to in transactions (`transactional`). Members of a
consumer group share its partitions (`workload_members`). Which clients take part is up to the seed, too.

A takeover in `wal`: the older broker, which may be cut off from the store for longer than the newer one waits, has
clients of its own that go on, and flushes what it took when it reaches the store again. What it acknowledged and had
not in the bucket when the newer one began is forgiven; what the newer one acknowledges must be what everybody reads
from then on, however late the older one's segments come. A broker may say that it was taken over from only if it was.

A short seed has one or two turns of transactional clients, seldom with the others, and is read back less often: it
costs a tenth of a long one, so that many can be run.

`simulate` runs a seed, twice in the same way. The seed's remainder by 3 is the durability.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.config import CoordinatorSettings, Durability, Settings
from kafscale.formats.resolution import epoch_at
from kafscale.log.partition.partition import Partition
from kafscale.store.paths import parse_segment_key
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import On
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.fakes.memory_broker import memory_settings
from tests.devtools.fakes.memory_network import MemoryConnection
from tests.devtools.history.bucket import BucketPartition, read_bucket
from tests.devtools.history.durable import DurableLog
from tests.devtools.history.history import History, Read, Unbelieved
from tests.devtools.history.in_bucket import transaction_faults
from tests.devtools.history.log_watcher import LogWatcher
from tests.devtools.processes.crash_points import POINTS
from tests.devtools.world.consumer_members import GroupMembers
from tests.devtools.world.determinism import run_seeded
from tests.devtools.world.event_log import EventLog
from tests.devtools.world.simulated_broker import RemoteBucket, SimulatedBroker
from tests.devtools.world.simulated_clients import GROWTH_MAX_COUNT, PlainClients
from tests.devtools.world.topic_clients import Recreator, create_topic
from tests.devtools.world.transactional.clients import TIMEOUTS_MS, TopicKind, TransactionalClients
from tests.devtools.world.troubles import (
    Damage,
    damage_log,
    trouble_disk,
    trouble_metadata,
    trouble_network,
    trouble_store,
)
from tests.devtools.world.workload import Committer, Topic, marker_offsets

TURN_COUNT = 5
SHORT_TURN_COUNTS = (1, 1, 1, 2)
PARTITION_COUNT = 3
PARTITION_COUNT_SHORT = 2
INTERNAL_PARTITION_COUNT = 2
LIFE_MAX_SECONDS = 1.0
LIFE_MAX_SECONDS_WAL = 0.4  # where nothing waits for the bucket, clients get much more done
LIFE_MAX_SECONDS_SHORT = 0.3
READERS_PAUSE_SECONDS_SHORT = 0.05  # half of what a seed costs would be reads of what has been read
TIMEOUTS_MS_SHORT = (100, 400, 2_000)  # so that some are over while the load goes on
PLAIN_PROBABILITY_SHORT = 0.05  # of clients that have no transactions
WATCHED_PROBABILITY_SHORT = 0.1
SETTLE_SECONDS = 300.0  # simulated: by then all producers must have their answers
QUIET_SECONDS = 100.0  # simulated: what is not needed is deleted, but for what is looked for page by page
QUIET_SECONDS_SHORT = (0.0, 3.0, 70.0)
RETENTION_CHECKS_MAX_COUNT = 10  # of that time
QUIET_MAX_COUNT = 20  # of these, until that is too
POINT_PASSES_MAX_COUNT = 20
STALE_PROBABILITY = 0.3  # that a producer still asks a broker that has been taken over from

CHECKPOINT_SECONDS = 12.0  # simulated: a checkpoint of the metadata is in the bucket
TAKEOVER_PROBABILITY = 0.4  # of a seed of `wal`
CUT_OFF_MAX_SECONDS = 12.0  # longer than a takeover waits

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
    "min.compaction.lag.ms": "0",
}
FORGETFUL = {**COMPACTED, "delete.retention.ms": "1000"}
SMALL = {"retention.bytes": "20000"}
NOTHING = {"retention.bytes": "0"}  # but what is in no segment, or of a transaction that is open
BRIEF = {"retention.ms": "100"}  # likewise


@attrs.define(eq=False)
class Simulation:
    """One seed's run. `history` is what the clients saw, `faults` what was wrong besides, `log` all that happened."""

    seed: int
    is_short: bool = False
    log: EventLog = attrs.field(factory=EventLog, init=False)
    history: History = attrs.field(init=False)
    faults: list[str] = attrs.field(factory=list, init=False)
    settings: Settings = attrs.field(init=False)
    watcher: LogWatcher = attrs.field(init=False)  # of what `s3-wal` acknowledges
    durable: DurableLog = attrs.field(init=False)
    _random: Random = attrs.field(init=False)
    _is_taken_over: bool = attrs.field(init=False)  # a seed of `wal` with takeovers
    _turn_count: int = attrs.field(default=TURN_COUNT, init=False)
    _has_plain_clients: bool = attrs.field(default=True, init=False)
    _is_watched: bool = attrs.field(init=False)  # by a reader of segments and log
    _topics: list[Topic] = attrs.field(factory=list, init=False)
    _has_served_from_disk: bool = attrs.field(default=False, init=False)  # a broker, from the one that is there now
    _must_have_ended: list[SimulatedBroker] = attrs.field(factory=list, init=False)  # before the next one is ready
    _bucket: RemoteBucket = attrs.field(factory=RemoteBucket, init=False)
    _disk: MemoryDisk = attrs.field(init=False)
    _metadata: MemoryMetadataStore = attrs.field(factory=MemoryMetadataStore, init=False)
    _clients: PlainClients = attrs.field(init=False)
    _transactional: TransactionalClients = attrs.field(init=False)
    members: GroupMembers = attrs.field(init=False)
    _world: trio.Nursery = attrs.field(init=False)
    _lives: list[SimulatedBroker] = attrs.field(factory=list, init=False)
    _newest: SimulatedBroker | None = attrs.field(default=None, init=False)
    _followed: SimulatedBroker | None = attrs.field(default=None, init=False)  # the last one that was the newest
    _is_up: trio.Event = attrs.field(factory=trio.Event, init=False)
    _damage: Damage | None = attrs.field(default=None, init=False)
    _following: list[MemoryConnection] = attrs.field(factory=list, init=False)  # of clients that need the newest

    def __attrs_post_init__(self) -> None:
        rng = self._random = Random(self.seed)
        self.history = History(self.log.note)
        self.members = GroupMembers.of(
            self._connect_newest, self.history, Random(f"{self.seed} members"), self.log.note
        )
        self._disk = MemoryDisk(note=self.log.note)
        self.settings = memory_settings(
            durability=list(Durability)[self.seed % len(Durability)],
            default_partitions_count=PARTITION_COUNT_SHORT if self.is_short else PARTITION_COUNT,
            wal_segment_bytes=rng.choice([64 << 10, 256 << 10]),
            segment_bytes=rng.choice([4 << 10, 32 << 10]),
            flush_interval_seconds=rng.choice([0.01, 0.02, 0.1, 1.0]),
            s3_wal_interval_seconds=rng.choice([0.0, 0.01, 0.25]),
            s3_wal_flush_objects_count=Random(f"{self.seed} early flushes").choice([0, 8, 32]),
            segment_merge_bytes=rng.choice([0, 32 << 10, 256 << 10]),
            compaction_check_interval_seconds=rng.choice([0.5, 10.0]),
            cache_bytes=rng.choice([0, 64 << 10, 1 << 20]),
            readahead_bytes=rng.choice([0, 4 << 10, 64 << 10]),
            segment_delete_delay_ms=rng.choice([0, 100, 60_000]),
            retention_check_interval_seconds=rng.choice([0.1, 0.1, 2.0, 60.0]),
            orphan_check_interval_seconds=rng.choice([5.0, 60.0]),
            orphan_grace_seconds=30.0,
            shutdown_timeout_seconds=30.0,
            offsets_topic_partitions_count=INTERNAL_PARTITION_COUNT,
            transaction_state_partitions_count=INTERNAL_PARTITION_COUNT,
            transaction_cleanup_interval_ms=rng.choice([50, 200, 10_000]),
            coordinator=CoordinatorSettings(
                group_consumer_session_timeout_ms=round(1000 * self.members.seen.session_seconds),
                group_consumer_min_session_timeout_ms=1,
                group_consumer_heartbeat_interval_ms=100,
                group_consumer_min_heartbeat_interval_ms=100,
            ),
        )
        self.durable = DurableLog(durability=self.settings.durability, history=self.history)
        self._bucket.on_put = self.durable.put
        self._is_taken_over = self._is_wal and rng.random() < TAKEOVER_PROBABILITY
        self._is_watched = self.settings.durability is Durability.S3_WAL
        if self.is_short:
            extent = Random(f"{self.seed} short")
            self._turn_count = extent.choice(SHORT_TURN_COUNTS)
            self._has_plain_clients = extent.random() < PLAIN_PROBABILITY_SHORT
            self._is_watched = self._is_watched and extent.random() < WATCHED_PROBABILITY_SHORT
        self._clients = PlainClients(
            connect_newest=self._connect_newest,
            connect_any=self._connect_any,
            history=self.history,
            random=rng,
            swarm=Random(f"{self.seed} swarm"),
            is_taken_over=self._is_taken_over,
        )
        self._transactional = self._transactional_clients(Random(f"{self.seed} transactions"))
        self.watcher = LogWatcher(
            bucket=self._bucket,
            topics=lambda: [topic for topic in self._topics if topic.label == topic.name],
            history=self.history,
            seen=self._transactional.seen,
            random=Random(f"{self.seed} bucket"),
        )

    @property
    def problems(self) -> list[str]:
        """Return what must not be; empty if all is well."""
        found = [*self._transactional.problems(), *self.faults, *self.watcher.faults, *self.members.seen.problems]
        return [*map(str, self.history.anomalies()), *found]

    @property
    def committed_count(self) -> int:
        """Count the transactions that their producers know to be committed."""
        return self._transactional.seen.committed_count

    @property
    def _is_wal(self) -> bool:
        return self.settings.durability is Durability.WAL

    async def run(self) -> None:
        """Load and trouble, turn after turn; then let all be answered, and read everything back."""
        async with trio.open_nursery() as world:
            self._world = world
            await self._start(calm=True)
            topic, configs = await self._create_topic()
            stopping = trio.Event()
            committer = self._clients.committer(topic, stopping)
            recreator = self._clients.recreator(stopping)
            async with trio.open_nursery() as readers:
                self._transactional.start_readers(readers)
                if self._has_plain_clients:
                    self._clients.start_readers(readers, topic)
                    self.members.start(readers, topic, stopping)
                if self._is_watched:
                    readers.start_soon(self.watcher.run)
                with trio.fail_after(SETTLE_SECONDS):
                    async with trio.open_nursery() as writers:
                        if self._has_plain_clients:
                            is_kept = not configs and not self._is_taken_over
                            others = [committer.run, recreator.run]
                            for run in self._clients.writers(topic, stopping, is_kept=is_kept, others=others):
                                writers.start_soon(run)
                        self._transactional.start_writers(writers, stopping)
                        for number in range(1, self._turn_count + 1):
                            await self._turn(is_last=number == self._turn_count)
                        stopping.set()
                await self.members.wait_agreed()
                readers.cancel_scope.cancel()
            await self._finish(topic, committer, recreator)
            world.cancel_scope.cancel()

    async def _create_topic(self) -> tuple[Topic, Mapping[str, str]]:
        """The topic that stays; returns its settings too."""
        kinds = [({}, None), ({}, None), (COMPACTED, None), (COMPACTED, 20), (FORGETFUL, 20)]
        if not self._is_taken_over:
            kinds.append((SMALL, None))
        configs, self._clients.keys_count = self._random.choice(kinds)
        self.history.tombstones_may_go = configs is FORGETFUL
        topic = await create_topic(self._connect_newest, "orders", configs)
        if configs is SMALL:
            for index in range(topic.partition_count + GROWTH_MAX_COUNT):
                self.history.deleting(topic.partition_name(index), math.inf)
        await self._transactional.create_topics()
        if self._is_taken_over:
            await trio.sleep(CHECKPOINT_SECONDS)
        self._topics += [topic, *self._transactional.all_topics]
        return topic, configs

    async def _finish(self, topic: Topic, committer: Committer, recreator: Recreator) -> None:
        """Finish the run: nothing fails any more."""
        if not self.is_short:
            await self._read_back("before the last restart", topic, committer, recreator)
        await self._superseded_have_ended()
        if self.is_short and not recreator.topics:
            await self._transactional.wait_settled("before the last restart")
            checks_max_seconds = RETENTION_CHECKS_MAX_COUNT * self.settings.retention_check_interval_seconds
            await trio.sleep(min(self._random.choice(QUIET_SECONDS_SHORT), checks_max_seconds))
        else:
            await self._tidied_up(recreator)
            await self._read_back("after everything was tidied up", topic, committer, recreator)
        await self._random.choice([self._stop, self._stop_and_move])()
        self._topics += recreator.topics[-1:]
        await self._look_at_bucket(complete=True)
        if self._is_watched:
            self.watcher.look_at_end(self._end_offset)
        self.faults += recreator.left_behind(self._bucket._keys)
        self.faults += recreator.faults
        self.faults += self._found_hanging()
        await self._start(calm=True)
        await self._read_back("after the last restart", topic, committer, recreator)
        if not self._is_taken_over:
            self.faults += self.durable.faults(self._lives[-1].broker.services.log)

    async def _tidied_up(self, recreator: Recreator) -> None:
        """Wait until what is not needed has been deleted."""
        for _ in range(QUIET_MAX_COUNT):
            await trio.sleep(QUIET_SECONDS)
            if not recreator.left_behind(self._bucket._keys):
                return

    # ---- turns ------------------------------------------------------------------------------------------------

    async def _turn(self, *, is_last: bool) -> None:
        """Trouble for the broker that lives, its end in one of several ways, and the next one's start."""
        life = self._newest
        assert life is not None
        life_max_seconds = LIFE_MAX_SECONDS_WAL if self._is_wal else LIFE_MAX_SECONDS
        if self.is_short:
            life_max_seconds = LIFE_MAX_SECONDS_SHORT
        with trio.move_on_after(self._random.uniform(0, life_max_seconds)):
            async with trio.open_nursery() as troubles:
                troubles.start_soon(trouble_store, life.store, self._random)
                troubles.start_soon(trouble_network, life.network, self._random)
                troubles.start_soon(trouble_metadata, life.metadata, Random(f"{self.seed} {life.name}"))
                trouble_disk(life.disk, self._random, self.settings.wal_segment_bytes)
                await life.ended.wait()
                troubles.cancel_scope.cancel()
        if life.ended.is_set():
            self._disk, self._metadata = life.disk, life.metadata
        else:
            await self._random.choice(self._endings())()
        await self._look_at_bucket(complete=False)
        self._world.start_soon(self._bucket.deliver_late, self._random.choice([0.0, 0.01, 0.3]))
        await self._start(calm=is_last)

    def _endings(self) -> list[Callable[[], Awaitable[None]]]:
        endings: list[Callable[[], Awaitable[None]]] = [self._crash, self._crash, self._stop, self._stop_and_move]
        if self._is_wal:
            endings += [self._crash_and_damage]
        if self._is_taken_over:
            endings += [self._leave_alive_in_wal] * 3
        if not self._is_wal:
            endings += [self._crash_and_lose_disk, self._leave_alive, self._leave_alive]
        return endings

    async def _crash(self) -> None:
        life = self._newest
        assert life is not None
        self._check_nothing_unacknowledged_is_visible(life)
        life.crash()
        self._newest = None
        await life.ended.wait()
        self._disk, self._metadata = life.disk, life.metadata

    async def _crash_and_lose_disk(self) -> None:
        await self._crash()
        self._lose_disk()

    async def _crash_and_damage(self) -> None:
        await self._crash()
        self._damage = damage_log(self._disk, self._random)

    async def _stop(self) -> None:
        life = self._newest
        assert life is not None
        self._heal(life)
        self._newest = None
        life.broker.stop()
        with trio.fail_after(SETTLE_SECONDS):
            await life.ended.wait()
        self._disk, self._metadata = life.disk, life.metadata

    async def _stop_and_move(self) -> None:
        await self._stop()
        if not self._is_wal or self._lives[-1].has_flushed_all:
            self._lose_disk()

    async def _leave_alive(self) -> None:
        """It does not know that the next one takes over, and may not reach the store for a while."""
        life = self._newest
        assert life is not None
        self._lose_disk()
        if self._random.random() < 0.5:
            self._heal(life)
        if self._random.random() < 0.5:
            self._world.start_soon(self._cut_off, life, self._random.uniform(0, 3))
        await trio.lowlevel.checkpoint()

    async def _leave_alive_in_wal(self) -> None:
        """Its own clients go on. Unless it can't reach the store it must end before the next one is ready."""
        life = self._newest
        assert life is not None
        self._newest = None
        self._cut_following()
        self._heal(life)
        self._lose_disk()
        self._world.start_soon(self._load_superseded, life)
        if self._random.random() < 0.7:
            self._world.start_soon(self._cut_off, life, self._random.uniform(0, CUT_OFF_MAX_SECONDS))
        else:
            self._must_have_ended.append(life)
        await trio.lowlevel.checkpoint()

    async def _load_superseded(self, life: SimulatedBroker) -> None:
        """Go on with a broker that was superseded.

        What it acknowledges from now on is not believed, but it must not be taken for somebody else's either.
        """
        topic = attrs.evolve(self._topics[0])
        producer = self._clients.producer(f"stale-{life.name}", topic, trio.Event(), connect=life.connect_client)
        producer.history = Unbelieved(believed=self.history)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.run)
            await life.ended.wait()
            nursery.cancel_scope.cancel()

    async def _cut_off(self, life: SimulatedBroker, seconds: float) -> None:
        gate = life.store.hold(On())
        await trio.sleep(seconds)
        life.store.heal()
        gate.open()

    def _lose_disk(self) -> None:
        self._disk, self._metadata = MemoryDisk(note=self.log.note), MemoryMetadataStore()
        self._has_served_from_disk = False

    def _heal(self, life: SimulatedBroker) -> None:
        life.store.heal()
        life.network.heal()
        life.disk.heal()

    # ---- the broker's lives -----------------------------------------------------------------------------------

    async def _start(self, *, calm: bool = False) -> None:
        """Start brokers until one is ready: a start may crash, or fail by a fault, unless it is to be `calm`."""
        while True:
            began = trio.current_time()
            life = self._next_life(calm=calm)
            self._world.start_soon(life.run)
            if not calm and self._random.random() < 0.1:
                with trio.move_on_after(self._random.uniform(0, 5.0 if self._is_taken_over else 0.3)):
                    await life.ready_or_ended.wait()
                if not life.is_ready:
                    life.crash()
            with trio.fail_after(SETTLE_SECONDS):
                await life.ready_or_ended.wait()
            if life.is_ready:
                break
            self._disk, self._metadata = life.disk, life.metadata
            if self._damage is not None and life.failure is not None:
                self._damage.undo(self._disk)
                self._damage = None
        self._damage = None
        if self._is_taken_over:
            self._forgive(life)
        self.members.seen.began_anew(began)
        self._has_served_from_disk = True
        self._follow(life)

    def _forgive(self, life: SimulatedBroker) -> None:
        """Forgive losses: what an older broker has acknowledged and not flushed is not in this one, unless it has that
        one's disk.
        """
        for each in self._must_have_ended:
            if not each.ended.is_set() and not each.has_crashed:
                self.faults.append(f"{each.name}, which reaches the store, goes on beside {life.name}")
        self._must_have_ended.clear()
        if life.has_disk_of_predecessor:
            return
        self.history.forgive_commits()
        self.members.seen.forgive()
        for topic in self._topics:
            for index in range(topic.partition_count):
                end_offset = _common_end(self._followed, life, topic, index)
                self.history.forgive(topic.partition_name(index), end_offset)
                for reader in (*self._clients.readers, *self._transactional.readers):
                    if reader.topic is topic:
                        reader.positions[index] = min(reader.positions.get(index, 0), end_offset)

    def _next_life(self, *, calm: bool) -> SimulatedBroker:
        rng = self._random
        for each in self._lives:
            each.is_superseded = True
        life = SimulatedBroker(
            name=f"broker{len(self._lives)}",
            settings=self.settings,
            random=Random(rng.random()),
            log=self.log,
            bucket=self._bucket,
            disk=self._disk,
            metadata=self._metadata,
            is_damaged=self._damage is not None,
            has_disk_of_predecessor=self._has_served_from_disk,
            on_crash=self._crashing,
            watched=self.durable.watched,
        )
        self._bucket.network_seconds = rng.choice([0.0, 0.05])
        if not calm and rng.random() < 0.3:
            life.will_die_at(rng.choice(POINTS), rng.randrange(POINT_PASSES_MAX_COUNT))
        if not calm and rng.random() < 0.3:
            life.store.unreliable(rng.choice([0.05, 0.3]), delay_seconds=rng.choice([0.0, 0.02]))
        self._lives.append(life)
        return life

    def _follow(self, life: SimulatedBroker) -> None:
        """Have clients that need the newest broker go to this one from now on."""
        self._cut_following()
        self._newest = self._followed = life
        self._is_up.set()
        self._is_up = trio.Event()

    def _cut_following(self) -> None:
        for stream in self._following:
            stream.cut()
        self._following.clear()

    async def _superseded_have_ended(self) -> None:
        for life in self._lives:
            if life is not self._newest:
                with trio.fail_after(SETTLE_SECONDS):
                    await life.ended.wait()

    async def _connect_newest(self) -> Connection:
        life = await self._wait_up()
        stream, connection = await life.open_connection()
        self._following.append(stream)
        if life is not self._newest:
            stream.cut()
        return connection

    async def _connect_any(self) -> Connection:
        newest = await self._wait_up()
        stale = [each for each in self._lives if each.is_ready and each is not newest]
        life = self._random.choice(stale) if stale and self._random.random() < STALE_PROBABILITY else newest
        return (await life.open_connection())[1]

    async def _wait_up(self) -> SimulatedBroker:
        while self._newest is None or not self._newest.is_ready:
            await self._is_up.wait()
        return self._newest

    # ---- clients ----------------------------------------------------------------------------------------------

    def _transactional_clients(self, rng: Random) -> TransactionalClients:
        kinds = [
            TopicKind(),
            TopicKind(configs=COMPACTED),
            TopicKind(configs=COMPACTED, keys_count=20),
            TopicKind(configs=FORGETFUL, keys_count=20),
        ]
        if not self._is_taken_over:
            kinds += [TopicKind(configs=each) for each in (SMALL, NOTHING, BRIEF, BRIEF)]
            kinds.append(TopicKind(is_deleted_from=True))
        return TransactionalClients(
            connect=self._connect_newest if self._is_taken_over else self._connect_any,
            connect_newest=self._connect_newest,
            history=self.history,
            random=rng,
            kinds=kinds,
            has_lost=self._is_taken_over,
            readers_pause_seconds=READERS_PAUSE_SECONDS_SHORT if self.is_short else 0.0,
            timeouts_ms=TIMEOUTS_MS_SHORT if self.is_short else TIMEOUTS_MS,
        )

    # ---- what must hold ---------------------------------------------------------------------------------------

    async def _read_back(self, name: str, topic: Topic, committer: Committer, recreator: Recreator) -> None:
        if self._has_plain_clients:
            await self._clients.reader(name, topic).read_to_end()
            for index in range(topic.partition_count):
                self.history.has_read_all(name, topic.partition_name(index))
            await committer.check()
            await self.members.check_offsets()
        await self._transactional.read_back(name)
        if recreator.topics:
            await recreator.read_to_end(name)

    async def _look_at_bucket(self, *, complete: bool) -> None:
        """Compare the bucket alone with what consumers were served; `complete` when all must be in it.

        A broker that was taken over from in `wal` may have flushed behind the newer one's start, which has not flushed
        what it acknowledged there yet. Before all has arrived, what came late behind all that the newest broker knew is
        not held against anybody: its own segment may be on its way to the same offsets.
        """
        if any(not each.ended.is_set() for each in self._lives) or (self._is_taken_over and not complete):
            return
        labels = {topic.topic_id: topic.label for topic in self._topics}
        for partition, found in (await read_bucket(self._bucket, self.settings.namespace, labels=labels)).items():
            self.history.sought("bucket", partition)
            self.history.marked(partition, marker_offsets(found.batches))
            self.history.polled("bucket", partition, found.reads if complete else self._settled(partition, found))
            if complete:
                self.faults += found.faults
                # What a broker has flushed behind its successor's start may be open: the next start ends it.
                faults = transaction_faults(
                    found.segments,
                    log_start_offset=self._log_start_offset(partition),
                    may_be_open=self._is_taken_over,
                )
                self.faults += [f"{partition}: {each}" for each in faults]

    def _settled(self, partition_name: str, found: BucketPartition) -> Sequence[Read]:
        """Return what any reader of the bucket finds there from now on, or something behind it."""
        known = self._known_to(self._followed, partition_name)
        if known is None:
            return found.reads
        return found.settled(high_watermark=known.high_watermark, leader_epoch=known.leader_epoch)

    def _log_start_offset(self, partition_name: str) -> int:
        """Return where a partition's log began for the broker that has just stopped."""
        known = self._known_to(self._lives[-1], partition_name)
        return 0 if known is None else known.log_start_offset

    def _end_offset(self, partition_name: str) -> int:
        """Return where a partition ended for the broker that has just stopped."""
        known = self._known_to(self._lives[-1], partition_name)
        return 0 if known is None else known.high_watermark

    def _known_to(self, life: SimulatedBroker | None, partition_name: str) -> Partition | None:
        if life is None:
            return None
        for topic in self._topics:
            for index in range(topic.partition_count):
                if topic.partition_name(index) == partition_name:
                    return life.broker.services.log.partition(topic.topic_id, index)
        return None

    def _crashing(self, life: SimulatedBroker) -> None:
        self._look_at_stable_offsets(life)
        self.durable.crashed()

    def _look_at_stable_offsets(self, life: SimulatedBroker) -> None:
        """See, at the last moment, what any reader could have seen: none of it may be taken back by the crash."""
        if life is not self._newest or not life.is_ready:
            return
        for topic in self._transactional.all_topics:
            for index in range(topic.partition_count):
                partition = life.broker.services.log.partition(topic.topic_id, index)
                if partition is not None:
                    where, began = topic.partition_name(index), self.history.now()
                    self.history.saw_stable_offset(where, began=began, last_stable_offset=partition.last_stable_offset)

    def _found_hanging(self) -> list[str]:
        """A transaction that no coordinator knows of can come of a lost disk only."""
        if self._is_taken_over:
            return []
        counts = {each.name: each.hanging_count for each in self._lives}
        return [f"{name} found {count} hanging transactions" for name, count in counts.items() if count]

    def _check_nothing_unacknowledged_is_visible(self, life: SimulatedBroker) -> None:
        """Under `wal`, no segment may begin where consumers can't read yet."""
        if not self._is_wal or self._is_taken_over:
            return
        for key in filter(None, map(parse_segment_key, self._bucket._keys)):
            partition = life.broker.services.log.partition(key.topic_id, key.partition)
            if partition is None and key.topic_id not in {topic.topic_id for topic in self._topics}:
                continue  # it is being deleted
            if key.kind == "kfs" and (partition is None or key.base_offset >= partition.high_watermark):
                self.faults.append(f"{key.key} holds what is not acknowledged")


def _common_end(older: SimulatedBroker | None, newer: SimulatedBroker, topic: Topic, index: int) -> int:
    """Up to where a broker that has begun without the disk of the one before has the same log.

    It may have found what one before that one flushed late, in place of what that one had not flushed.
    """
    found = newer.broker.services.log.partition(topic.topic_id, index)
    assert found is not None, "the checkpoint has the topic"
    served = None if older is None else older.broker.services.log.partition(topic.topic_id, index)
    starts = sorted({each.start_offset for each in (*found.epochs, *([] if served is None else served.epochs))})
    for start in starts:
        if served is not None and epoch_at(served.epochs, start) != epoch_at(found.epochs, start):
            return min(start, found.high_watermark)
    return found.high_watermark


def simulate(seed: int, *, is_short: bool = False) -> Simulation:
    """Run a seed to its end."""
    simulation = Simulation(seed, is_short=is_short)
    run_seeded(seed, simulation.run)
    return simulation
