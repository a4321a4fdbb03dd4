"""The machine of a lone broker: its lives follow each other, turn after turn.

Besides the endings of `machine`:

    finds damage        `wal`: a bit of its log flips while it is down; it must not start until the bit is repaired
    is taken over from  `wal`, in seeds of their own: the next life starts with an empty disk while this one lives on
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from kafscale.config import Durability
from tests.devtools.world.machine import Machine
from tests.devtools.world.simulated_broker import SimulatedBroker
from tests.devtools.world.troubles import Damage, damage_log


@attrs.define(eq=False, kw_only=True)
class OneMachine(Machine):
    """Calls back at each end of a life, each start, and each life that goes on after its successor has begun."""

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
