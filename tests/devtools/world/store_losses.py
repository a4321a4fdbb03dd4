"""Loss of the store by one broker of a simulated cluster, or by all, after the other troubles of a seed, under load.

    one     within seconds others lead its partitions, and one of them is the controller. A broker with a log of its own
            stays, and leads on
    all     none is declared dead, neither meanwhile nor when the store is back, sooner for some than for others

The store refuses, says that it is busy, or hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import attrs
import trio

from kafscale.config import Durability, Settings
from tests.devtools.history.head_log import HeadLog
from tests.devtools.world.machine import SETTLE_SECONDS, Machine
from tests.devtools.world.simulated_broker import SimulatedBroker

STORE_TIMEOUTS_SECONDS = (2.0, 4.0)
MOVED_SECONDS = 10.0  # behind the timeout; a broker that has nothing to do may notice its loss after five seconds
LOST_MAX_SECONDS = 5.0  # by all, behind the timeout
BACK_MAX_SECONDS = 0.5  # from the first that has the store back to the last
LOOK_SECONDS = 0.25


@attrs.frozen(kw_only=True, eq=False)
class StoreLosses:
    """`disagreement` tells whether the brokers are not quiet yet; violations go to `faults`."""

    settings: Settings
    machines: Sequence[Machine]
    head: HeadLog
    random: Random
    disagreement: Callable[[], str | None]
    faults: list[str]

    async def run(self) -> None:
        with trio.fail_after(SETTLE_SECONDS):
            while self.disagreement() is not None:
                await trio.sleep(LOOK_SECONDS)
        await trio.sleep(2 * self.settings.broker_session_timeout_seconds)
        lives = {machine: machine.newest for machine in self.machines}
        if self.disagreement() is not None or not all(map(self._may_act, lives.values())):
            return  # what came before has a late effect
        if len(lives) > 1 and self.random.random() < 0.7:
            await self._lose_one(lives)
        else:
            await self._lose_all(lives)

    async def _lose_one(self, lives: Mapping[Machine, SimulatedBroker]) -> None:
        machine = self.random.choice(self.machines)
        other = next(other for other in self.machines if other is not machine)
        life, broker_id = lives[machine], machine.settings.broker_id
        is_local = self.settings.durability is Durability.WAL
        end = machine.lose_store(life)
        seconds = self.settings.broker_store_timeout_seconds + MOVED_SECONDS
        with trio.move_on_after(seconds):
            while self._controls(broker_id, other) or (self._may_act(life) and not is_local):
                await trio.sleep(LOOK_SECONDS)
        if self._controls(broker_id, other):
            self.faults.append(f"{life.name} is the controller {seconds:g} s after it alone has lost the store")
        if self._may_act(life) is not is_local:
            what = "leads what it led" if not is_local else "was declared dead"
            self.faults.append(f"{life.name} {what} {seconds:g} s after it alone has lost the store")
        end()

    async def _lose_all(self, lives: Mapping[Machine, SimulatedBroker]) -> None:
        ends = [machine.lose_store(life) for machine, life in lives.items()]
        await trio.sleep(self.settings.broker_store_timeout_seconds + self.random.uniform(-1.0, LOST_MAX_SECONDS))
        for end in ends:
            end()
            await trio.sleep(self.random.uniform(0, BACK_MAX_SECONDS / len(ends)))
        await trio.sleep(self.settings.broker_store_timeout_seconds + MOVED_SECONDS / 2)
        self.faults.extend(
            f"{lost.name} was declared dead after all had lost the store"
            for lost in lives.values()
            if not self._may_act(lost)
        )

    def _may_act(self, life: SimulatedBroker) -> bool:
        incarnation = life.incarnation
        return incarnation is not None and self.head.may_act(life.settings.broker_id, incarnation)

    def _controls(self, broker_id: int, seen_from: Machine) -> bool:
        life = seen_from.newest
        return life.is_ready and life.broker.services.assignment.controller_id == broker_id
