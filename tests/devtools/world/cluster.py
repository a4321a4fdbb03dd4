"""The world of several brokers: two to four machines share a bucket, and some join later than others.

Each broker ends and starts again several times (`machine`), while partitions move by request and for balance, and the
controller dies with the rest. Clients without transactions, members of groups, transactional clients and a topic that
is recreated load them (`cluster_clients`). In some seeds brokers lose the store at the end (`store_losses`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from random import Random

import attrs
import trio

from kafscale.cluster.coordinator.partitions import coordinator_partition
from kafscale.cluster.membership.records import BrokerState
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME
from kafscale.config import CoordinatorSettings, Listener
from kafscale.errors import DeclaredDead, Fenced
from kafscale.formats.manifest import PartitionId
from kafscale.formats.metadata_head import head_key
from kafscale.store.paths import parse_segment_key
from tests.devtools.fakes.memory_broker import memory_settings
from tests.devtools.history.bucket import read_bucket
from tests.devtools.history.head_log import Grant, HeadLog
from tests.devtools.history.held import held_too_much
from tests.devtools.world.cluster_clients import ClusterClients
from tests.devtools.world.determinism import run_seeded
from tests.devtools.world.extent import Clients, Extent
from tests.devtools.world.links import Links
from tests.devtools.world.machine import Machine
from tests.devtools.world.routes import Routes
from tests.devtools.world.simulated_broker import SimulatedBroker
from tests.devtools.world.store_losses import STORE_TIMEOUTS_SECONDS, StoreLosses
from tests.devtools.world.topic_clients import COMPACTED, FORGETFUL
from tests.devtools.world.transactional.clients import TopicKind
from tests.devtools.world.visitor import TemporaryTopic
from tests.devtools.world.weather import Weather
from tests.devtools.world.workload import PART_PROBABILITY, Topic
from tests.devtools.world.world import Part, World, durability_of

KINDS = [
    TopicKind(),
    TopicKind(configs=COMPACTED),
    TopicKind(configs=COMPACTED, keys_count=20),
    TopicKind(configs=FORGETFUL, keys_count=20),
    TopicKind(is_deleted_from=True),
]
LATE_FLUSH_SECONDS = 20.0  # by then there is much to read back, and partitions are flushed early
AGREE_SECONDS = 60.0
NOTICED_SESSIONS = 2
BALANCED_SECONDS = 10.0  # of quiet, by which partitions are balanced, or soon will be
TIDY_SECONDS = 60.0  # of quiet, by which nothing of deleted topics is left
TIDY_MAX_COUNT = 10  # of these
IDLE_SECONDS, IDLE_COMMITS_MAX_COUNT = 8.0, 5  # of quiet: one a second is a loop without an end
LOOKS_COUNT, LOOK_SECONDS = 30, 1.0  # at what a broker holds, as a request has it for 20 s, and between two


@attrs.define(eq=False)
class Cluster(World):
    extent: Extent = attrs.field(init=False)
    weather: Weather = attrs.field(init=False)
    head: HeadLog = attrs.field(init=False)
    machines: list[Machine] = attrs.field(factory=list, init=False)
    _links: Links = attrs.field(init=False)
    _clients: ClusterClients = attrs.field(init=False)
    _temporary: TemporaryTopic = attrs.field(init=False)

    def _build(self) -> None:
        rng = self._random = Random(f"{self.seed} cluster")
        self.extent = Extent.of(self.seed, is_short=self.is_short)
        self.weather = Weather.of(self.seed, is_short=self.is_short)
        late_flushes = Random(f"{self.seed} late flushes")
        session_seconds = Random(f"{self.seed} session").choice(self.extent.member_sessions_seconds)
        self.settings = memory_settings(
            several_brokers=True,
            durability=durability_of(self.seed),
            default_partitions_count=self.extent.partition_count,
            wal_segment_bytes=rng.choice([64 << 10, 256 << 10]),
            segment_bytes=rng.choice([4 << 10, 32 << 10]),
            flush_interval_seconds=max(
                rng.choice([0.02, 0.1, 1.0]), late_flushes.choice([0.0, 0.0, LATE_FLUSH_SECONDS])
            ),
            segment_merge_bytes=rng.choice(self.extent.segment_merges_bytes),
            compaction_check_interval_seconds=rng.choice([2.0, 10.0]),
            cache_bytes=rng.choice([0, 64 << 10, 1 << 20]),
            readahead_bytes=rng.choice([0, 4 << 10, 64 << 10]),
            segment_delete_delay_ms=rng.choice(self.extent.segment_delete_delays_ms),
            retention_check_interval_seconds=rng.choice([5.0, 60.0]),
            orphan_check_interval_seconds=rng.choice([5.0, 60.0]),
            orphan_grace_seconds=30.0,
            shutdown_timeout_seconds=30.0,
            offsets_topic_partitions_count=self.extent.internal_partition_count,
            transaction_state_partitions_count=self.extent.internal_partition_count,
            s3_wal_interval_seconds=rng.choice([0.0, 0.01, 0.25]),
            s3_wal_flush_objects_count=Random(f"{self.seed} early flushes").choice([0, 8, 32]),
            broker_session_timeout_seconds=rng.choice(self.weather.sessions_seconds),
            broker_store_timeout_seconds=Random(f"{self.seed} store timeout").choice(STORE_TIMEOUTS_SECONDS),
            coordinator=CoordinatorSettings(
                group_initial_rebalance_delay_ms=200,
                group_min_session_timeout_ms=1,
                group_consumer_session_timeout_ms=round(1000 * session_seconds),
                group_consumer_min_session_timeout_ms=1,
                group_consumer_heartbeat_interval_ms=100,
                group_consumer_min_heartbeat_interval_ms=100,
            ),
        )
        self.head = HeadLog(key=head_key(self.settings.namespace), has_released=self._has_released, note=self.log.note)
        self._links = Links(
            running=self._running, seconds=Random(f"{self.seed} latency").choice(self.weather.links_seconds)
        )
        for broker_id in range(1, rng.choice(self.extent.machine_counts) + 1):
            self.machines.append(
                Machine(
                    settings=attrs.evolve(
                        self.settings, broker_id=broker_id, advertised_listeners=(_address(broker_id),)
                    ),
                    bucket=self._bucket,
                    log=self.log,
                    random=Random(f"{self.seed} machine {broker_id}"),
                    spawn=self._spawn,
                    on_put=self.head.put,
                    on_delete=self._check_deleted,
                    connect=self._links.connect_from(broker_id),
                    verdict=self._verdict,
                    weather=self.weather,
                )
            )
        self._clients = ClusterClients(
            routes=Routes(
                lives=lambda: [machine.connectable() for machine in self.machines], random=Random(f"{self.seed} routes")
            ),
            history=self.history,
            broker_ids=self._broker_ids,
            leads=self._leads,
            coordinates=self._coordinates,
            extent=self.extent,
            stopping=self._stopping,
        )
        self._transactional = self._clients.transactional(Random(f"{self.seed} transactions"), KINDS)
        self._temporary = self._clients.temporary(Random(f"{self.seed} topics"))
        chosen = self._random.choice(self.extent.clients)
        groups = self._clients.members(Random(f"{self.seed} members"), session_seconds=session_seconds)
        plain = self._clients.plain(Random(f"{self.seed} clients"), groups if Clients.MEMBERS in chosen else ())
        parts: dict[Clients, Part] = {
            Clients.PLAIN: plain,
            Clients.TRANSACTIONAL: self._transactional,
            Clients.TEMPORARY: self._temporary,
        }
        self._parts = [part for kind, part in parts.items() if kind in chosen]

    @property
    def _broker_ids(self) -> list[int]:
        return [machine.settings.broker_id for machine in self.machines]

    @property
    def problems(self) -> list[str]:
        return [*super().problems, *self.head.faults]

    async def _start(self) -> None:
        first_count = self._random.randint(1, len(self.machines))
        await self._all(machine.start(calm=True) for machine in self.machines[:first_count])

    async def _load(self, writers: trio.Nursery, keepers: trio.Nursery) -> None:
        if self._random.random() < PART_PROBABILITY:
            offsets_topic = Topic(CONSUMER_OFFSETS_NAME, bytes(16), self.extent.internal_partition_count)
            topics = [*self._topics(), offsets_topic]  # whose moves move coordinators
            writers.start_soon(self._clients.mover(topics, Random(f"{self.seed} mover")).run)
        await trio.sleep(self._random.uniform(0, self.extent.calm_max_seconds))
        await self._trouble()
        for machine in self.machines:
            keepers.start_soon(machine.keep_up)
        if self.extent.loses_store(self.seed):
            await self._store_losses().run()
        await trio.sleep(self._random.uniform(0, self.extent.calm_max_seconds))

    async def _trouble(self) -> None:
        turns_count = self._random.choice(self.weather.turns_counts)
        turns = Counter(self._random.randrange(len(self.machines)) for _ in range(turns_count))

        async def trouble(place: int, machine: Machine) -> None:
            if not machine.lives:
                await trio.sleep(self._random.uniform(0, self.extent.join_max_seconds))
                await machine.start()
            await machine.run(turns[place])

        async with trio.open_nursery() as links:
            links.start_soon(self._links.trouble, self._broker_ids, Random(f"{self.seed} links"), self.weather)
            await self._all(trouble(place, machine) for place, machine in enumerate(self.machines))
            links.cancel_scope.cancel()

    def _store_losses(self) -> StoreLosses:
        return StoreLosses(
            settings=self.settings,
            machines=self.machines,
            head=self.head,
            random=Random(f"{self.seed} store loss"),
            disagreement=self._disagreement,
            faults=self.faults,
        )

    async def _settle(self) -> None:
        if self.extent.reads_often:
            await self._read_back("before the last restart")
        await self._all(machine.wait_superseded_ended() for machine in self.machines)
        # Until then who was cut off, or suspended, may be declared dead, and hear of that.
        noticed_seconds = NOTICED_SESSIONS * self.settings.broker_session_timeout_seconds
        quiet_seconds = max(noticed_seconds, self._random.choice(self.extent.quiet_seconds))
        await trio.sleep(quiet_seconds)
        if quiet_seconds >= TIDY_SECONDS:
            await self._tidied_up()
        await self._agree(is_balanced=quiet_seconds >= BALANCED_SECONDS)
        await self._nothing_is_left()
        if quiet_seconds >= BALANCED_SECONDS:
            await self._nothing_goes_on()
        if self.extent.reads_often:
            await self._read_back("after everything was tidied up")

    async def _nothing_is_left(self) -> None:
        for machine in self.machines:
            for _ in range(LOOKS_COUNT):
                found = list(held_too_much(machine.newest.broker.services)) if machine.newest.is_ready else []
                if not found:
                    break
                await trio.sleep(LOOK_SECONDS)
            self.faults += (f"{machine.name}: {held}" for held in found)

    async def _nothing_goes_on(self) -> None:
        before = self.head.revision
        await trio.sleep(IDLE_SECONDS)
        if self.head.revision > before + IDLE_COMMITS_MAX_COUNT:
            self.faults.append(f"{self.head.revision - before} commits in {IDLE_SECONDS:g} s in which all was quiet")

    async def _tidied_up(self) -> None:
        for _ in range(TIDY_MAX_COUNT):
            if not self._left_behind():
                return
            await trio.sleep(TIDY_SECONDS)
        self.faults += self._left_behind()

    def _left_behind(self) -> Sequence[str]:
        """Return leftovers of deleted topics, except those that must stay by the deleting broker's clock."""
        deleted, now_ms = self.machines[0].newest.broker.services.topics.deleted, time.time_ns() // 1_000_000
        kept = {topic_id for topic_id, deletion in deleted.items() if deletion.objects_until_ms > now_ms}
        return self._temporary.recreator.left_behind(self._bucket._keys, kept=kept)

    async def _restart(self) -> None:
        await self._all(self._random.choice([machine.stop, machine.stop_and_move])() for machine in self.machines)
        await self._look_at_bucket()
        await self._all(machine.start(calm=True) for machine in self.machines)
        await self._read_back("after the last restart")

    async def _agree(self, *, is_balanced: bool) -> None:
        with trio.move_on_after(AGREE_SECONDS) as waiting:
            while (wrong := self._disagreement() or (self._imbalance() if is_balanced else None)) is not None:
                await trio.sleep(1.0)
        if waiting.cancelled_caught:
            self.faults.append(f"the brokers don't agree: {wrong}")

    def _disagreement(self) -> str | None:
        for (topic_id, index), placement in self.head.placements.items():
            where = f"{topic_id.hex()}-{index}"
            for machine in self.machines:
                if not machine.newest.is_ready or not self._may_act(machine.newest):
                    return f"{machine.name} is not there"
                services = machine.newest.broker.services
                topic = services.topics.by_id(topic_id)
                leader = None if topic is None else services.assignment.leader(topic, index)
                if leader is None or (leader.node_id, leader.epoch) != (placement.leader, placement.epoch):
                    return f"{machine.name} has {leader} for {where}, the head has {placement}"
                partition = services.log.partition(topic_id, index)
                if (partition is not None) != (placement.leader == machine.settings.broker_id):
                    return f"{machine.name} has {partition} open, the head has {placement} for {where}"
        return None

    def _imbalance(self) -> str | None:
        everybody = [machine.newest.broker.services for machine in self.machines]
        plan = next((plan for services in everybody if (plan := services.plan_balance(())) is not None), None)
        if plan is None:
            return "there is no controller"
        if plan.is_waiting:
            return "the controller does not know all loads"
        return f"{plan.moves[0]} is left to be made" if plan.moves else None

    async def _look_at_bucket(self) -> None:
        if not all(machine.newest.has_flushed_all for machine in self.machines):
            self.faults.append("a broker that was stopped in order has not flushed all")
            return
        labels = {topic.topic_id: topic.label for topic in self._topics()}
        found = await read_bucket(self._bucket, self.settings.namespace, labels=labels, begun=self.head.begun)
        for partition, content in found.items():
            self._note_bucket(partition, content, content.reads)
            self.faults += content.faults

    def _leads(self, life: SimulatedBroker, topic: Topic, index: int) -> bool:
        return self._is_leader(life, (topic.topic_id, index))

    def _coordinates(self, life: SimulatedBroker, group: str) -> bool:
        topic = life.broker.services.topics.get(CONSUMER_OFFSETS_NAME) if life.is_ready else None
        partition = coordinator_partition(group, self.extent.internal_partition_count)
        return topic is not None and self._is_leader(life, (topic.topic_id, partition))

    def _is_leader(self, life: SimulatedBroker, partition_id: PartitionId) -> bool:
        incarnation = life.incarnation
        return (
            life.is_ready
            and incarnation is not None
            and self.head.is_leader(life.settings.broker_id, incarnation, partition_id)
        )

    def _may_act(self, life: SimulatedBroker) -> bool:
        incarnation = life.incarnation
        return incarnation is None or self.head.may_act(life.settings.broker_id, incarnation)

    def _verdict(self, life: SimulatedBroker) -> type[Fenced] | None:
        """Return the error by which the head forces a life to end."""
        record = self.head.brokers.get(life.settings.broker_id)
        if record is not None and life.incarnation in (None, record.incarnation):
            if record.state is BrokerState.FENCED:
                return DeclaredDead
            return Fenced if life.is_superseded else None
        return None if record is None and life.incarnation is None else Fenced

    def _running(self, broker_id: int) -> SimulatedBroker | None:
        return self.machines[broker_id - 1].running

    def _has_released(self, grant: Grant) -> bool:
        """Tell whether no life of the former leader can acknowledge or serve any record of the partition."""
        life = self._running(grant.before.leader)
        if life is None or not life.broker.is_ready or life.has_crashed or not self._may_act(life):
            return True
        return life.broker.services.log.partitions.get((grant.topic_id, grant.index)) is None

    def _check_deleted(self, by: str, keys: Sequence[str]) -> None:
        """Check that no broker deletes a segment that the leader of the partition reads."""
        for key in filter(None, map(parse_segment_key, keys)):
            partition_id = key.topic_id, key.partition
            placement = self.head.placements.get(partition_id)
            life = None if placement is None else self._running(placement.leader)
            if life is None or life.name == by or not self._is_leader(life, partition_id):
                continue
            led = life.broker.services.log.partitions.get(partition_id)
            if led and any(
                segment.key == key and segment.last_offset >= led.log_start_offset for segment in led.manifest.segments
            ):
                self.faults.append(f"{by} deletes {key.key}, which {life.name} reads, who leads")


def simulate_cluster(seed: int, *, is_short: bool = False) -> Cluster:
    simulation = Cluster(seed, is_short)
    run_seeded(seed, simulation.run)
    return simulation


def _address(broker_id: int) -> Listener:
    return Listener("PLAINTEXT", f"10.0.0.{broker_id}", 9092)
