"""A broker of several whose disk is full: what it leads is led by others as soon as somebody says so."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from tests.cluster.brokers.test_several import Machine, create, led_by, produce, until, values

LARGE = b"v" * 60_000
FREE_BYTES = 1 << 20


async def test_what_a_broker_with_a_full_disk_led_is_led_by_others_with_all_that_it_acknowledged(
    autojump_clock: MockClock,
) -> None:
    bucket = MemoryStore()
    store = FaultyStore(bucket)
    one, two = Machine(bucket, 1), Machine(store, 2)
    two.disk.free_bytes = FREE_BYTES
    async with one.run() as a, two.run() as b:
        await create(a.broker, 2)
        await until(lambda: len(led_by(b.broker)) == 1)
        (index,) = led_by(b.broker)
        uploads = store.fail(On("put*", "*.kfs"))  # or there would be room again
        acknowledged_count = 0
        with trio.fail_after(600.0):
            while await produce(b, index, LARGE) == error_codes.NONE:
                acknowledged_count += 1
        assert 0 < acknowledged_count * len(LARGE) <= FREE_BYTES
        assert uploads.met_count
        store.heal()
        membership = a.broker.services.membership
        assert membership is not None
        await membership.set_draining(2, True)
        await until(lambda: led_by(a.broker) == [0, 1])
        found = await values(a, index)
        assert found[:acknowledged_count] == [LARGE] * acknowledged_count
        assert await produce(a, index, b"after") == error_codes.NONE
        assert not b.ended.is_set()
