"""A simulated machine does what the rest of a simulation relies on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import trio
from trio.testing import MockClock

from kafscale.cluster.membership.peers.peer_connections import PeerConnection
from kafscale.cluster.membership.records import BrokerRecord
from kafscale.store.memory import MemoryStore
from tests.devtools.fakes.memory_broker import memory_settings
from tests.devtools.world.event_log import EventLog
from tests.devtools.world.machine import Machine


async def _connect_to_nobody(broker_id: int, record: BrokerRecord) -> PeerConnection:
    await trio.sleep_forever()
    raise AssertionError


def _spawn_nothing(run: Callable[[], Awaitable[None]]) -> None:
    raise AssertionError("nothing runs here")


def machine_of(bucket: MemoryStore) -> Machine:
    return Machine(
        settings=memory_settings(several_brokers=True, broker_id=1),
        bucket=bucket,
        log=EventLog(),
        random=Random(1),
        spawn=_spawn_nothing,
        on_put=lambda key, data: None,
        on_delete=lambda name, keys: None,
        connect=_connect_to_nobody,
        verdict=lambda life: None,
    )


async def test_a_broker_that_was_to_die_at_a_point_stops_in_order_in_the_end() -> None:
    machine = machine_of(MemoryStore())
    life = machine._next_life(calm=True)
    life.will_die_at("kfs-put-before", 0)
    await machine.run(0)
    assert life._point is not None
    assert not life._point.is_due("kfs-put-before")


async def test_a_broker_that_has_just_crashed_is_not_suspended(autojump_clock: MockClock) -> None:
    """Seed 78435: shielded work of the broker waited for ever."""
    machine = machine_of(MemoryStore())
    life = machine._next_life(calm=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.run)
        await life.ready_or_ended.wait()
        life.crash()
        assert not life.ended.is_set()
        await machine._suspend_for_a_while(life)
        was_suspended = life.process.is_suspended
        life.process.resume()
    assert life.ended.is_set()
    assert not was_suspended
