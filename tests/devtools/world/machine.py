"""A machine of a simulated world: its disk, the lives of the broker on it, and how each life ends (`_endings`).

In a succession (`weather`) it is suspended at a point, again and again, and ends when it has been declared dead.
Meanwhile its store, network, disk and clock fail (`troubles`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random

import attrs
import trio

from kafscale.cluster.membership.peers.peer_connections import Connect
from kafscale.config import Durability, Settings
from kafscale.errors import Fenced, SlowDown, StoreUnavailable
from kafscale.log.wal.disk import Disk
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import On
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.processes.crash_points import POINTS
from tests.devtools.world.event_log import EventLog
from tests.devtools.world.links import BucketLine, Spawn
from tests.devtools.world.simulated_broker import SimulatedBroker, superseded
from tests.devtools.world.simulated_process import Process
from tests.devtools.world.troubles import (
    Damage,
    damage_log,
    trouble_disk,
    trouble_metadata,
    trouble_network,
    trouble_store,
)
from tests.devtools.world.weather import FAIR, Weather

SETTLE_SECONDS = 300.0
CLIENT_TIMEOUT_SECONDS = 3.0
CLOCK_SKEW_MAX_NS = 3_000 * 10**9  # less than an hour, by which a record may be ahead of the broker's clock


@attrs.define(eq=False, kw_only=True)
class Machine:
    """`run` ends and restarts its broker several times; at the end one runs, and no more faults occur."""

    settings: Settings
    bucket: MemoryStore
    log: EventLog
    random: Random
    spawn: Spawn
    on_put: Callable[[str, bytes], None]
    on_delete: Callable[[str, Sequence[str]], None] = lambda life_name, keys: None
    connect: Connect | None = None  # to other brokers
    verdict: Callable[[SimulatedBroker], type[Fenced] | None] = superseded
    on_crash: Callable[[SimulatedBroker], None] = lambda life: None  # while it can still be looked at
    watched: Callable[[Disk], Disk] = lambda disk: disk
    page_max_counts: Sequence[int] = (50, 1000)  # of listings
    weather: Weather = FAIR
    lives: list[SimulatedBroker] = attrs.field(factory=list, init=False)
    _lines: dict[SimulatedBroker, BucketLine] = attrs.field(factory=dict, init=False)
    _disk: MemoryDisk = attrs.field(init=False)
    _metadata: MemoryMetadataStore = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._lose_disk()

    @property
    def name(self) -> str:
        return f"broker{self.settings.broker_id}"

    @property
    def newest(self) -> SimulatedBroker:
        return self.lives[-1]

    def connectable(self) -> list[SimulatedBroker]:
        """Return the lives that clients can connect to, the newest last; none unless that is ready."""
        return [life for life in self.lives if life.is_ready] if self.lives and self.newest.is_ready else []

    @property
    def running(self) -> SimulatedBroker | None:
        """The newest life, unless that has ended."""
        return self.newest if self.lives and not self.newest.ended.is_set() else None

    async def run(self, turn_count: int) -> None:
        """Trouble the broker, turn after turn; then heal it."""
        if self.weather.suspended_at:
            self.newest.wait_behind(self._passes())
        for _ in range(turn_count):
            await self._turn()
        self._heal(self.newest)
        self.newest.spare()

    async def keep_up(self) -> None:
        """Restart a broker that ends by itself, as one that the others have declared dead does."""
        while True:
            await self.newest.ended.wait()
            self._take_disk(self.newest)
            await self.start(calm=True)
            self._heal(self.newest)

    async def stop(self) -> None:
        life = self.newest
        self._heal(life)
        life.broker.stop()
        with trio.fail_after(SETTLE_SECONDS):
            await life.ended.wait()
        self._take_disk(life)

    async def stop_and_move(self) -> None:
        await self.stop()
        if self.settings.durability is not Durability.WAL or self.newest.has_flushed_all:
            self._lose_disk()

    async def wait_superseded_ended(self) -> None:
        for life in self.lives[:-1]:
            with trio.fail_after(SETTLE_SECONDS):
                await life.ended.wait()

    async def _turn(self) -> None:
        await self._live()
        if not self.newest.ended.is_set() and not self.newest.is_superseded:
            return  # it goes on
        await trio.sleep(self.random.uniform(0, self.weather.down_max_seconds) * self.random.choice([0, 1]))
        await self.start()

    async def _live(self) -> None:
        life = self.newest
        with trio.move_on_after(self.random.uniform(0, self.weather.life_max_seconds)):
            async with trio.open_nursery() as troubles:
                if self.weather.is_store_troubled:
                    troubles.start_soon(trouble_store, life.store, self.random)
                troubles.start_soon(trouble_network, life.network, self.random)
                troubles.start_soon(trouble_metadata, life.metadata, self.random)
                if self.weather.is_clock_troubled:
                    troubles.start_soon(self._trouble_clock, life.process)
                trouble_disk(life.disk, self.random, self.settings.wal_segment_bytes)
                self._lines[life].straggler_probability = self.random.choice(self.weather.straggler_probabilities)
                await life.ended.wait()
                troubles.cancel_scope.cancel()
        if life.ended.is_set():
            self._take_disk(life)
        else:
            await self.random.choice(self._endings())()

    def _endings(self) -> list[Callable[[], Awaitable[None]]]:
        if self.weather.suspended_at:
            return [trio.lowlevel.checkpoint]  # it ends when it is declared dead
        endings: list[Callable[[], Awaitable[None]]] = [self._crash, self._crash, self.stop, self.stop_and_move]
        endings += [self._suspend] * self.weather.suspensions_count + [self._cut_off]
        if self.settings.durability is not Durability.WAL:
            endings += [self._crash_and_lose_disk, self._leave_alive, self._leave_suspended]
        return endings

    async def _trouble_clock(self, process: Process) -> None:
        while True:
            await trio.sleep(self.random.expovariate(1.0))
            process.clock_skew_ns = self.random.choice([0, self.random.randint(-CLOCK_SKEW_MAX_NS, CLOCK_SKEW_MAX_NS)])

    async def _crash(self) -> None:
        """Crash; PUTs under way arrive later, or too late."""
        life = self.newest
        life.crash()
        await life.ended.wait()
        self._take_disk(life)

    async def _crash_and_lose_disk(self) -> None:
        await self._crash()
        self._lose_disk()

    async def _suspend(self) -> None:
        """Suspend the broker; it goes on later, or is killed before."""
        life = self.newest
        await self._suspend_for_a_while(life)
        if self.random.random() < 0.3:
            await self._crash()

    async def _suspend_for_a_while(self, life: SimulatedBroker) -> None:
        if life.has_crashed:  # at a point, a moment ago: its remaining work could never go on
            await trio.lowlevel.checkpoint()
            return
        self.log.note(f"{life.name} is suspended")
        life.process.suspend()
        self._lines[life].abandon()
        await trio.sleep(self.random.uniform(0, self.weather.suspended_max_seconds) * self.random.choice([0.1, 1.0]))
        if not life.has_crashed:
            life.process.resume()
            self.log.note(f"{life.name} goes on")

    def _passes(self) -> int:
        return self.random.randrange(self.weather.point_passes_max_count)

    async def _suspend_here(self, life: SimulatedBroker) -> None:
        """Suspend it at the current step of one of its tasks, which calls this."""
        life.wait_behind(self._passes())
        life.process.suspend()
        self.spawn(partial(self._suspend_for_a_while, life))
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _cut_off(self) -> None:
        await self._cut_off_for_a_while(self.newest)

    async def _cut_off_for_a_while(self, life: SimulatedBroker) -> None:
        end = self.lose_store(life)
        await trio.sleep(self.random.uniform(0, self.weather.cut_off_max_seconds))
        life.store.heal()
        end()

    def lose_store(self, life: SimulatedBroker) -> Callable[[], None]:
        """Cut a life off from the store, in one of several ways; return a function that ends that."""
        error = self.random.choice([StoreUnavailable, SlowDown, None])
        how = "nothing comes back" if error is None else error.__name__
        self.log.note(f"{life.name} has lost the store: {how}")
        if error is None:
            gate = life.store.hold(On(), after_effect=self.random.random() < 0.5)
            rule = life.store.rules[-1]
        else:
            rule = life.store.fail(On(), error)

        def end() -> None:
            self.log.note(f"{life.name} has the store back")
            life.store.end(rule)
            if error is None:
                gate.open()

        return end

    async def _leave_alive(self) -> None:
        """Let the life go on next to its successor, perhaps cut off from the bucket for a while."""
        life = self.newest
        self._lose_disk()
        life.is_superseded = True
        self._heal(life)
        if self.random.random() < 0.5:
            self.spawn(lambda: self._cut_off_for_a_while(life))
        await trio.lowlevel.checkpoint()

    async def _leave_suspended(self) -> None:
        life = self.newest
        self._lose_disk()
        life.is_superseded = True
        self._heal(life)
        self.spawn(lambda: self._suspend_for_a_while(life))
        await trio.lowlevel.checkpoint()

    def _take_disk(self, life: SimulatedBroker) -> None:
        self._disk, self._metadata = life.disk, life.metadata

    def _lose_disk(self) -> None:
        self._disk, self._metadata = MemoryDisk(note=self.log.note), MemoryMetadataStore()

    def _heal(self, life: SimulatedBroker) -> None:
        life.store.heal()
        life.network.heal()
        life.disk.heal()
        life.metadata.full = False
        life.process.clock_skew_ns = 0
        self._lines[life].straggler_probability = 0.0
        self._lines[life].upload_max_seconds = self._lines[life].read_max_seconds = 0.0

    async def start(self, *, calm: bool = False) -> None:
        """Start brokers until one is ready: a start may crash, or fail by a fault, unless it is to be `calm`."""
        while True:
            life = self._next_life(calm=calm)
            self.spawn(life.run)
            await trio.lowlevel.checkpoint()
            if not calm and self.random.random() < 0.15:
                with trio.move_on_after(self.random.uniform(0, self.weather.start_max_seconds)):
                    await life.ready_or_ended.wait()
                if not life.is_ready:
                    life.crash()
            with trio.fail_after(SETTLE_SECONDS):
                await life.ready_or_ended.wait()
            if life.is_ready:
                return
            self._take_disk(life)

    def _next_life(self, *, calm: bool) -> SimulatedBroker:
        rng = self.random
        for earlier in self.lives:
            earlier.is_superseded = True
        name = f"{self.name}.{len(self.lives)}"
        line = BucketLine(
            store=self.bucket,
            spawn=self.spawn,
            random=Random(rng.random()),
            on_put=self.on_put,
            on_delete=partial(self.on_delete, name),
            network_seconds=rng.choice([0.0, 0.0, 0.05]),
            upload_max_seconds=rng.choice(self.weather.uploads_max_seconds),
            read_max_seconds=rng.choice(self.weather.reads_max_seconds),
            late_max_seconds=rng.choice(self.weather.late_max_seconds),
        )
        life = SimulatedBroker(
            name=name,
            settings=self.settings,
            random=Random(rng.random()),
            log=self.log,
            bucket=line,
            disk=self._disk,
            metadata=self._metadata,
            on_crash=self.on_crash,
            watched=self.watched,
            page_max_counts=self.page_max_counts,
            connect=self.connect,
            verdict=self.verdict,
            client_timeout_seconds=CLIENT_TIMEOUT_SECONDS,
            process=Process(name),
        )
        life.metadata.full = False
        life.metadata.reserved_count = 1_000_000
        self._lines[life] = line
        if self.weather.suspended_at:
            life.may_wait_at(self.weather.suspended_at, partial(self._suspend_here, life))
            if not calm:
                life.wait_behind(self._passes())
        elif not calm and rng.random() < 0.3:
            life.will_die_at(rng.choice(POINTS), self._passes())
        if not calm and self.weather.is_store_troubled and rng.random() < 0.3:
            life.store.unreliable(rng.choice([0.05, 0.3]), delay_seconds=rng.choice([0.0, 0.02]))
        self.lives.append(life)
        return life


@attrs.define(eq=False, kw_only=True)
class OneMachine(Machine):
    """The machine of a lone broker: its lives follow each other, turn after turn, with two more endings in `wal`.

    It calls back at each end of a life, each start, and each life that goes on after its successor has begun.
    """

    is_taken_over: bool
    on_end: Callable[[], Awaitable[None]]
    on_start: Callable[[SimulatedBroker], None]
    on_leave: Callable[[SimulatedBroker], None]
    must_have_ended: list[SimulatedBroker] = attrs.field(factory=list, init=False)  # before the next one is ready
    start_seconds: float = attrs.field(default=0.0, init=False)  # when the newest life began to start
    has_disk_of_predecessor: bool = attrs.field(default=False, init=False)  # the newest life
    _has_served_from_disk: bool = attrs.field(default=False, init=False)  # a life, from the disk that is there now
    _damage: Damage | None = attrs.field(default=None, init=False)

    async def run(self, turn_count: int) -> None:
        for left_count in reversed(range(turn_count)):
            await self._live()
            await self.on_end()
            await self.start(calm=left_count == 0)

    async def start(self, *, calm: bool = False) -> None:
        await Machine.start(self, calm=calm)
        self._damage = None
        self._has_served_from_disk = True
        self.on_start(self.newest)

    def _next_life(self, *, calm: bool) -> SimulatedBroker:
        life = Machine._next_life(self, calm=calm)
        life.is_damaged = self._damage is not None
        self.has_disk_of_predecessor, self.start_seconds = self._has_served_from_disk, trio.current_time()
        return life

    def _endings(self) -> list[Callable[[], Awaitable[None]]]:
        endings: list[Callable[[], Awaitable[None]]] = [self._crash, self._crash, self.stop, self.stop_and_move]
        if self.settings.durability is not Durability.WAL:
            return [*endings, self._crash_and_lose_disk, self._leave_alive, self._leave_alive]
        return [*endings, self._crash_and_damage, *[self._leave_alive_in_wal] * (3 if self.is_taken_over else 0)]

    async def _crash_and_damage(self) -> None:
        """Flip a bit of the log while the broker is down: it must not start until that is repaired."""
        await self._crash()
        self._damage = damage_log(self._disk, self.random)

    async def _leave_alive_in_wal(self) -> None:
        """Let a life go on with its own clients; unless it is cut off, it must end before the next one is ready."""
        life = self.newest
        life.is_superseded = True
        self._lose_disk()
        self._heal(life)
        self.on_leave(life)
        if self.random.random() < 0.7:
            self.spawn(lambda: self._cut_off_for_a_while(life))
        else:
            self.must_have_ended.append(life)
        await trio.lowlevel.checkpoint()

    def _take_disk(self, life: SimulatedBroker) -> None:
        Machine._take_disk(self, life)
        if self._damage is not None and life.failure is not None:
            self._damage.undo(self._disk)
            self._damage = None

    def _lose_disk(self) -> None:
        Machine._lose_disk(self)
        self._has_served_from_disk = False
