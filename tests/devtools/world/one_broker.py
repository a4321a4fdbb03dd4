"""The world of one broker, whose lives follow each other on one machine, among failures of store, disk and network.

A takeover in `wal`: the older broker keeps clients of its own, and flushes their records when it reaches the store
again. Its acknowledged records that were not in the bucket when the newer one began are forgiven; from then on all
readers must get the newer one's records. A broker may report a takeover only if there was one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.config import CoordinatorSettings, Durability
from kafscale.formats.resolution import epoch_at
from kafscale.log.partition.partition import Partition
from kafscale.store.paths import parse_segment_key
from tests.devtools.fakes.memory_broker import memory_settings
from tests.devtools.fakes.memory_network import MemoryConnection
from tests.devtools.history.bucket import BucketPartition, read_bucket, transaction_faults
from tests.devtools.history.durable import DurableLog
from tests.devtools.history.history import History, Read
from tests.devtools.history.log_watcher import LogWatcher
from tests.devtools.world.consumer_members import GroupMembers
from tests.devtools.world.determinism import run_seeded
from tests.devtools.world.machine import OneMachine
from tests.devtools.world.one_broker_clients import SMALL, OneBrokerClients
from tests.devtools.world.simulated_broker import SimulatedBroker
from tests.devtools.world.topic_clients import COMPACTED, FORGETFUL
from tests.devtools.world.transactional.clients import TIMEOUTS_MS, TopicKind, TransactionalClients
from tests.devtools.world.weather import Weather
from tests.devtools.world.workload import Run, Topic
from tests.devtools.world.world import World, durability_of

TURN_COUNT = 5
SHORT_TURN_COUNTS = (1, 1, 1, 2)
PARTITION_COUNT = 3
PARTITION_COUNT_SHORT = 2
INTERNAL_PARTITION_COUNT = 2
LIFE_MAX_SECONDS = 1.0
LIFE_MAX_SECONDS_WAL = 0.4  # where nothing waits for the bucket, clients get much more done
LIFE_MAX_SECONDS_SHORT = 0.4
READERS_PAUSE_SECONDS_SHORT = 0.05  # else repeated reads would be half of a seed's cost
TIMEOUTS_MS_SHORT = (100, 400, 2_000)  # so that some are over while the load goes on
PLAIN_PROBABILITY_SHORT = 0.05  # of clients that have no transactions
WATCHED_PROBABILITY_SHORT = 0.1
QUIET_SECONDS = 100.0  # simulated: unneeded objects are deleted, except those that listings find page by page
QUIET_SECONDS_SHORT = (0.0, 3.0, 70.0)
RETENTION_CHECKS_MAX_COUNT = 10  # of that time
QUIET_MAX_COUNT = 20  # of these, until those are deleted too
STALE_PROBABILITY = 0.3  # that a producer still asks a broker that has been superseded

TAKEOVER_PROBABILITY = 0.4  # of a seed of `wal`

WEATHER = Weather(
    suspensions_count=0,
    cut_off_max_seconds=3.0,
    late_max_seconds=(0.0, 0.01, 0.3),
    straggler_probabilities=(0.0,),
    start_max_seconds=0.3,
    is_clock_troubled=False,
)
TAKEOVER_WEATHER = attrs.evolve(WEATHER, cut_off_max_seconds=12.0, start_max_seconds=5.0)  # longer than a start waits

NOTHING = {"retention.bytes": "0"}  # but what is in no segment, or of a transaction that is open
BRIEF = {"retention.ms": "100"}  # likewise


@attrs.define(eq=False)
class Unbelieved(History):
    """History of clients of a superseded broker: its values may be there or not."""

    believed: History = attrs.field(kw_only=True)

    def sent(self, producer: str, partition: str, value: str, **more: Any) -> None:
        super().sent(producer, partition, value, **more)
        self.believed.sent(producer, partition, value, **more)

    def sent_anew(self, partition: str, values: Iterable[str]) -> None:
        self.believed.sent_anew(partition, values)


@attrs.define(eq=False)
class OneBroker(World):
    watcher: LogWatcher = attrs.field(init=False)  # of what `s3-wal` acknowledges
    durable: DurableLog = attrs.field(init=False)
    members: GroupMembers = attrs.field(init=False)
    machine: OneMachine = attrs.field(init=False)
    _is_taken_over: bool = attrs.field(init=False)  # a seed of `wal` with takeovers
    _is_watched: bool = attrs.field(init=False)  # by a reader of segments and log
    _turn_count: int = attrs.field(default=TURN_COUNT, init=False)
    _clients: OneBrokerClients = attrs.field(init=False)
    _newest: SimulatedBroker | None = attrs.field(default=None, init=False)
    _followed: SimulatedBroker | None = attrs.field(default=None, init=False)  # the last one that was the newest
    _is_up: trio.Event = attrs.field(factory=trio.Event, init=False)
    _following: list[MemoryConnection] = attrs.field(factory=list, init=False)  # of clients that need the newest

    def _build(self) -> None:
        rng = self._random = Random(self.seed)
        self.members = GroupMembers.of(
            self._connect_newest, self.history, Random(f"{self.seed} members"), self.log.note
        )
        self._make_settings(rng)
        self.durable = DurableLog(durability=self.settings.durability, history=self.history)
        self._is_taken_over = self._is_wal and rng.random() < TAKEOVER_PROBABILITY
        self._is_watched, has_plain_clients = self.settings.durability is Durability.S3_WAL, True
        if self.is_short:
            extent = Random(f"{self.seed} short")
            self._turn_count = extent.choice(SHORT_TURN_COUNTS)
            has_plain_clients = extent.random() < PLAIN_PROBABILITY_SHORT
            self._is_watched = self._is_watched and extent.random() < WATCHED_PROBABILITY_SHORT
        self._clients = OneBrokerClients(
            connect_newest=self._connect_newest,
            connect_any=self._connect_any,
            history=self.history,
            random=rng,
            swarm=Random(f"{self.seed} swarm"),
            members=self.members,
            stopping=self._stopping,
            is_taken_over=self._is_taken_over,
            is_there=has_plain_clients,
        )
        self._transactional = self._transactional_clients(Random(f"{self.seed} transactions"))
        self._parts = [self._transactional, self._clients]
        self.machine = self._make_machine()
        self.watcher = LogWatcher(
            bucket=self._bucket,
            topics=self._topics,
            history=self.history,
            seen=self._transactional.seen,
            random=Random(f"{self.seed} bucket"),
        )

    def _make_settings(self, rng: Random) -> None:
        self.settings = memory_settings(
            durability=durability_of(self.seed),
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

    def _make_machine(self) -> OneMachine:
        life_max_seconds = LIFE_MAX_SECONDS_WAL if self._is_wal else LIFE_MAX_SECONDS
        return OneMachine(
            settings=self.settings,
            bucket=self._bucket,
            log=self.log,
            random=Random(f"{self.seed} machine"),
            spawn=self._spawn,
            on_put=self.durable.put,
            on_crash=self._crashing,
            watched=self.durable.watched,
            page_max_counts=(2, 1000),
            weather=attrs.evolve(
                TAKEOVER_WEATHER if self._is_taken_over else WEATHER,
                life_max_seconds=LIFE_MAX_SECONDS_SHORT if self.is_short else life_max_seconds,
            ),
            is_taken_over=self._is_taken_over,
            on_end=lambda: self._look_at_bucket(complete=False),
            on_start=self._started,
            on_leave=self._left_alive,
        )

    @property
    def problems(self) -> list[str]:
        return [*super().problems, *self.watcher.faults]

    @property
    def _is_wal(self) -> bool:
        return self.settings.durability is Durability.WAL

    async def _start(self) -> None:
        await self.machine.start(calm=True)

    def _watchers(self) -> Iterable[Run]:
        return [self.watcher.run] if self._is_watched else []

    async def _load(self, writers: trio.Nursery, keepers: trio.Nursery) -> None:
        await self.machine.run(self._turn_count)

    async def _settle(self) -> None:
        if not self.is_short:
            await self._read_back("before the last restart")
        await self.machine.wait_superseded_ended()
        recreator = self._clients.recreator
        if self.is_short and not recreator.topics:
            await self._transactional.wait_settled("before the last restart")
            checks_max_seconds = RETENTION_CHECKS_MAX_COUNT * self.settings.retention_check_interval_seconds
            await trio.sleep(min(self._random.choice(QUIET_SECONDS_SHORT), checks_max_seconds))
            return
        for _ in range(QUIET_MAX_COUNT):  # until unneeded objects are deleted
            await trio.sleep(QUIET_SECONDS)
            if not recreator.left_behind(self._bucket._keys):
                break
        await self._read_back("after everything was tidied up")

    async def _restart(self) -> None:
        await self._random.choice([self.machine.stop, self.machine.stop_and_move])()
        await self._look_at_bucket(complete=True)
        if self._is_watched:
            self.watcher.look_at_end(self._end_offset)
        self.faults += self._clients.recreator.left_behind(self._bucket._keys)
        self.faults += self._found_hanging()
        await self.machine.start(calm=True)
        await self._read_back("after the last restart")
        if not self._is_taken_over:
            self.faults += self.durable.faults(self.machine.newest.broker.services.log)

    def _started(self, life: SimulatedBroker) -> None:
        if self._is_taken_over:
            self._forgive(life)
        self.members.seen.began_anew(self.machine.start_seconds)
        self._cut_following()
        self._newest = self._followed = life
        self._is_up.set()
        self._is_up = trio.Event()

    def _forgive(self, life: SimulatedBroker) -> None:
        """Forgive the loss of unflushed records of an older broker, unless the new one has its disk."""
        for older in self.machine.must_have_ended:
            if not older.ended.is_set() and not older.has_crashed:
                self.faults.append(f"{older.name}, which reaches the store, goes on although {life.name} is ready")
        self.machine.must_have_ended.clear()
        if self.machine.has_disk_of_predecessor or self._followed is None:
            return
        self.history.forgive_commits()
        self.members.seen.forgive()
        for topic in self._topics():
            for index in range(topic.partition_count):
                end_offset = _common_end(self._followed, life, topic, index)
                self.history.forgive(topic.partition_name(index), end_offset)
                for reader in (*self._clients.readers, *self._transactional.readers):
                    if reader.topic is topic:
                        reader.positions[index] = min(reader.positions.get(index, 0), end_offset)

    def _left_alive(self, life: SimulatedBroker) -> None:
        self._newest = None
        self._cut_following()
        self._spawn(lambda: self._load_superseded(life))

    async def _load_superseded(self, life: SimulatedBroker) -> None:
        """Keep clients on a superseded broker.

        Its acknowledgements are not believed from now on, but its records must not be taken for those of others either.
        """
        producer = self._clients.producer(f"stale-{life.name}", trio.Event(), connect=life.connect_client)
        producer.topic = attrs.evolve(producer.topic)
        producer.history = Unbelieved(believed=self.history)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.run)
            await life.ended.wait()
            nursery.cancel_scope.cancel()

    def _cut_following(self) -> None:
        for stream in self._following:
            stream.cut()
        self._following.clear()

    async def _connect_newest(self) -> Connection:
        life = await self._wait_up()
        stream, connection = await life.open_connection()
        self._following.append(stream)
        if life is not self._newest:
            stream.cut()
        return connection

    async def _connect_any(self) -> Connection:
        newest = await self._wait_up()
        stale = [life for life in self.machine.lives if life.is_ready and life is not newest]
        life = self._random.choice(stale) if stale and self._random.random() < STALE_PROBABILITY else newest
        return (await life.open_connection())[1]

    async def _wait_up(self) -> SimulatedBroker:
        while self._newest is None or not self._newest.is_ready or self._newest.broker.is_stopping:
            await self._is_up.wait()
        return self._newest

    def _transactional_clients(self, rng: Random) -> TransactionalClients:
        kinds = [
            TopicKind(),
            TopicKind(configs=COMPACTED),
            TopicKind(configs=COMPACTED, keys_count=20),
            TopicKind(configs=FORGETFUL, keys_count=20),
        ]
        if not self._is_taken_over:
            kinds += [TopicKind(configs=configs) for configs in (SMALL, NOTHING, BRIEF, BRIEF)]
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

    async def _look_at_bucket(self, *, complete: bool) -> None:
        """Compare the bucket alone with the records served to consumers; `complete` when all must be in it.

        A superseded broker in `wal` may have flushed behind the newer one's start, which has not flushed its records
        there yet. Until it has, late records behind all that the newest broker knew are ignored: its own segment may be
        on its way to the same offsets.
        """
        if any(not life.ended.is_set() for life in self.machine.lives) or (self._is_taken_over and not complete):
            return
        topics = [*self._topics(), *(self._clients.recreator.topics[-1:] if complete else [])]
        labels = {topic.topic_id: topic.label for topic in topics}
        for partition, found in (await read_bucket(self._bucket, self.settings.namespace, labels=labels)).items():
            self._note_bucket(partition, found, found.reads if complete else self._settled(partition, found))
            if complete:
                self.faults += found.faults
                # What a broker has flushed behind its successor's start may be open: the next start ends it.
                faults = transaction_faults(
                    found.segments,
                    log_start_offset=self._log_start_offset(partition),
                    may_be_open=self._is_taken_over,
                )
                self.faults += [f"{partition}: {fault}" for fault in faults]

    def _settled(self, partition_name: str, found: BucketPartition) -> Sequence[Read]:
        """Return the records that every later reader of the bucket finds."""
        known = self._known_to(self._followed, partition_name)
        if known is None:
            return found.reads
        return found.settled(high_watermark=known.high_watermark, leader_epoch=known.leader_epoch)

    def _log_start_offset(self, partition_name: str) -> int:
        known = self._known_to(self.machine.newest, partition_name)
        return 0 if known is None else known.log_start_offset

    def _end_offset(self, partition_name: str) -> int:
        known = self._known_to(self.machine.newest, partition_name)
        return 0 if known is None else known.high_watermark

    def _known_to(self, life: SimulatedBroker | None, partition_name: str) -> Partition | None:
        if life is None:
            return None
        for topic in [*self._topics(), *self._clients.recreator.topics[-1:]]:
            for index in range(topic.partition_count):
                if topic.partition_name(index) == partition_name:
                    return life.broker.services.log.partition(topic.topic_id, index)
        return None

    def _crashing(self, life: SimulatedBroker) -> None:
        if life is self._newest and life.is_ready:
            self._check_nothing_unacknowledged_is_visible(life)
            self._look_at_stable_offsets(life)
        self.durable.crashed()

    def _look_at_stable_offsets(self, life: SimulatedBroker) -> None:
        """Record the last stable offsets at the last moment before the crash, which must not take them back."""
        for topic in self._transactional.all_topics:
            for index in range(topic.partition_count):
                partition = life.broker.services.log.partition(topic.topic_id, index)
                if partition is not None:
                    where, began = topic.partition_name(index), self.history.now()
                    self.history.saw_stable_offset(where, began=began, last_stable_offset=partition.last_stable_offset)

    def _found_hanging(self) -> list[str]:
        if self._is_taken_over:
            return []
        counts = {life.name: life.hanging_count for life in self.machine.lives}
        return [f"{name} found {count} hanging transactions" for name, count in counts.items() if count]

    def _check_nothing_unacknowledged_is_visible(self, life: SimulatedBroker) -> None:
        """Check that under `wal` no segment begins where consumers can't read yet."""
        if not self._is_wal or self._is_taken_over:
            return
        known = {topic.topic_id for topic in self._topics()}
        for key in filter(None, map(parse_segment_key, self._bucket._keys)):
            partition = life.broker.services.log.partition(key.topic_id, key.partition)
            if partition is None and key.topic_id not in known:
                continue  # it is being deleted
            if key.kind == "kfs" and (partition is None or key.base_offset >= partition.high_watermark):
                self.faults.append(f"{key.key} holds what is not acknowledged")


def _common_end(older: SimulatedBroker, newer: SimulatedBroker, topic: Topic, index: int) -> int:
    """Return the end of the common log of a broker and its successor without its disk.

    The successor may have found late segments of an earlier broker in place of the unflushed records.
    """
    found = newer.broker.services.log.partition(topic.topic_id, index)
    assert found is not None, "the checkpoint has the topic"
    served = older.broker.services.log.partition(topic.topic_id, index)
    starts = sorted({epoch.start_offset for epoch in (*found.epochs, *([] if served is None else served.epochs))})
    for start in starts:
        if served is not None and epoch_at(served.epochs, start) != epoch_at(found.epochs, start):
            return min(start, found.high_watermark)
    return found.high_watermark


def simulate(seed: int, *, is_short: bool = False) -> OneBroker:
    world = OneBroker(seed, is_short)
    run_seeded(seed, world.run)
    return world
