"""A broker of several whose disk is full: others lead what it leads, with all that it acknowledged."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.placement import leaving
from kafscale.cluster.membership.placement.leaving import DISK_LOOK_SECONDS, FULL_SECONDS, ROOM_SECONDS
from kafscale.config import Durability, Listener
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from tests.cluster.membership.test_fail_over import Cluster, cluster, topic_of
from tests.cluster.membership.test_several import Machine, create, led_by, produce, until, values

LARGE = b"v" * 60_000
FREE_BYTES = 1 << 20
TAKEN_BYTES = -1 << 40  # somebody else takes whatever gets free
SOON_SECONDS = FULL_SECONDS + 5 * DISK_LOOK_SECONDS


def host_of(broker_id: int) -> dict[str, object]:
    return {"advertised_listeners": (Listener("PLAINTEXT", f"10.0.0.{broker_id}", 9092),)}


@asynccontextmanager
async def machines_of(count: int, durability: Durability) -> AsyncIterator[Cluster]:
    """Brokers on machines of their own."""
    async with cluster(0) as running:
        for broker_id in range(1, count + 1):
            await running.start(broker_id, durability, **host_of(broker_id))
        await until(lambda: running.controller() > 0)
        yield running


async def produce_until_full(running: Cluster, broker_id: int, index: int) -> list[bytes]:
    """Return what was acknowledged."""
    acknowledged: list[bytes] = []
    while await produce(running.brokers[broker_id], index, LARGE + b"%d" % len(acknowledged)) == error_codes.NONE:
        acknowledged.append(LARGE + b"%d" % len(acknowledged))
    return acknowledged


def is_full(running: Cluster, broker_id: int) -> bool:
    return running.state(broker_id).brokers[broker_id].has_no_room


async def test_partitions_of_a_broker_with_a_full_disk_move_until_space_returns(
    autojump_clock: MockClock,
) -> None:
    """It led them for as long as the disk was full, with others beside that had room."""
    async with machines_of(2, Durability.WAL) as running:
        await topic_of(running, 4)
        mine = led_by(running.brokers[2].broker)
        machine = running.machines[2]
        machine.disk.free_bytes = TAKEN_BYTES
        machine.metadata.full, machine.metadata.reserved_count = True, 1000
        acknowledged: list[bytes] = []
        while mine[0] in led_by(running.brokers[2].broker):
            value = LARGE + b"%d" % len(acknowledged)
            if await produce(running.brokers[2], mine[0], value) == error_codes.NONE:
                acknowledged.append(value)
            await trio.sleep(0.1)
        assert sum(map(len, acknowledged)) > 10 * sum(map(len, machine.disk.files.values())), (
            "it goes on in the files that it has"
        )
        await until(lambda: running.all_led(4, [1]))
        assert is_full(running, 2)
        for index in mine:
            wanted = [b"before", *(acknowledged if index == mine[0] else ())]
            assert await values(running.brokers[1], index) == wanted
            assert await produce(running.brokers[1], index, b"after") == error_codes.NONE
        assert not running.brokers[2].ended.is_set()
        machine.disk.free_bytes, machine.metadata.full = None, False
        await trio.sleep(ROOM_SECONDS / 2)
        assert running.all_led(4, [1])
        await trio.sleep(ROOM_SECONDS)
        await until(lambda: len(led_by(running.brokers[2].broker)) == 2)
        assert not is_full(running, 2)
        for index in led_by(running.brokers[2].broker):
            assert await produce(running.brokers[2], index, b"again") == error_codes.NONE
            assert (await values(running.brokers[2], index))[-1] == b"again"


async def test_partitions_stuck_on_a_full_disk_stay_readable(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was withdrawn for ten seconds, again and again, to be handed over."""

    async def refuse(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise OSError(errno.ENOSPC, "no space")

    async with machines_of(2, Durability.WAL) as running:
        await topic_of(running, 4)
        stuck, other = led_by(running.brokers[2].broker)
        machine = running.machines[2]
        machine.disk.free_bytes = TAKEN_BYTES
        monkeypatch.setattr(MemoryDisk, "_reuse", refuse)  # as where a file system copies on write
        acknowledged = await produce_until_full(running, 2, stuck)
        await until(lambda: other in led_by(running.brokers[1].broker))
        assert is_full(running, 2)
        for _ in range(100):
            assert await values(running.brokers[2], stuck) == [b"before", *acknowledged]
            await trio.sleep(1.0)
        machine.disk.free_bytes = None
        await until(lambda: running.all_led(4, [1]))
        assert (await values(running.brokers[1], stuck))[: 1 + len(acknowledged)] == [b"before", *acknowledged]


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("is_controller", [False, True])
async def test_a_broker_unable_to_write_metadata_coordinates_and_controls_nothing(
    autojump_clock: MockClock, durability: Durability, is_controller: bool
) -> None:
    """Who coordinated a transactional id there was told to try again for as long as the disk was full."""
    async with machines_of(3, durability) as running:
        await topic_of(running, 6)
        controller = running.controller()
        full = controller if is_controller else running.others(controller)[0]
        left = running.others(full)
        metadata = running.machines[full].metadata
        metadata.full, metadata.reserved_count = True, 1000
        await trio.sleep(SOON_SECONDS)
        await until(lambda: running.all_led(6, left))
        assert is_full(running, full)
        assert running.controller() in left
        dead = left[0]
        running.brokers[dead].kill()
        if durability is not Durability.WAL:  # where what is dead waits for its log
            await until(lambda: running.all_led(6, [left[1]]))
        metadata.full = False
        await trio.sleep(ROOM_SECONDS)
        await until(lambda: not is_full(running, full))


async def test_only_one_of_three_brokers_with_full_disks_gives_up_its_partitions(autojump_clock: MockClock) -> None:
    async with machines_of(3, Durability.S3_WAL) as running:
        await topic_of(running, 6)
        for each in running.machines.values():
            each.metadata.full, each.metadata.reserved_count = True, 1000
        await trio.sleep(5 * SOON_SECONDS)
        assert [is_full(running, each) for each in (1, 2, 3)].count(True) == 1
        assert running.all_led(6, [each for each in (1, 2, 3) if not is_full(running, each)])


async def test_brokers_of_one_machine_do_not_hand_all_to_the_last_that_notices(autojump_clock: MockClock) -> None:
    async with cluster(3, Durability.S3_WAL) as running:
        await topic_of(running, 6)
        running.machines[2].metadata.full, running.machines[2].metadata.reserved_count = True, 1000
        await trio.sleep(5 * SOON_SECONDS)
        assert not is_full(running, 2)
        assert len(led_by(running.brokers[2].broker)) == 2


async def test_a_log_that_is_full_as_the_bucket_is_away_moves_nothing(autojump_clock: MockClock) -> None:
    """When it is back, each flushes, and has room: all of them handed theirs to the last one otherwise."""
    bucket = FaultyStore(MemoryStore())
    one, two = Machine(bucket, 1), Machine(bucket, 2)
    async with one.run(**host_of(1)) as a, two.run(**host_of(2)) as b:
        await create(a.broker, 2)
        await until(lambda: len(led_by(b.broker)) == 1)
        (index,) = led_by(b.broker)
        two.disk.free_bytes = FREE_BYTES
        bucket.fail(On("*"))
        while await produce(b, index, LARGE) == error_codes.NONE:
            pass
        await trio.sleep(2 * SOON_SECONDS)
        bucket.heal()
        await trio.sleep(2 * SOON_SECONDS)
        assert led_by(b.broker) == [index]
        assert await produce(b, index, b"after") == error_codes.NONE


async def test_an_operator_can_drain_a_broker_with_a_full_disk(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "FULL_SECONDS", 1e9)
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
        await membership.set_draining(2, True)
        await until(lambda: led_by(a.broker) == [0, 1])
        found = await values(a, index)
        assert found[:acknowledged_count] == [LARGE] * acknowledged_count
        assert await produce(a, index, b"after") == error_codes.NONE
        assert not b.ended.is_set()
