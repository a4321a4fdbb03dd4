"""A simulated machine does what the rest of a simulation relies on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import trio

from kafscale.cluster.brokers.heartbeats import Line
from kafscale.cluster.brokers.records import BrokerRecord
from kafscale.store.memory import MemoryStore
from tests.devtools.cluster.machine import Machine
from tests.devtools.event_log import EventLog
from tests.devtools.memory_broker import memory_settings


async def _connect_to_nobody(broker_id: int, record: BrokerRecord) -> Line:
    await trio.sleep_forever()
    raise AssertionError


def _spawn_nothing(run: Callable[[], Awaitable[None]]) -> None:
    raise AssertionError("nothing runs here")


async def test_a_broker_that_was_to_die_at_a_point_stops_in_order_in_the_end() -> None:
    machine = Machine(
        settings=memory_settings(several_brokers=True, broker_id=1),
        bucket=MemoryStore(),
        log=EventLog(),
        random=Random(1),
        spawn=_spawn_nothing,
        on_put=lambda key, data: None,
        on_delete=lambda name, keys: None,
        connect=_connect_to_nobody,
        may_act=lambda life: True,
    )
    life = machine._next_life(calm=True)
    life.will_die_at("kfs-put-before", 0)
    await machine.run(0)
    assert life._point is not None
    assert not life._point.is_due("kfs-put-before")
