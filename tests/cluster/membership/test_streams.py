"""Several whole brokers in `s3-wal`: what one has acknowledged is in its stream, and found by who leads next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.broker import Broker
from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.records import BrokerState, Placement, record_key
from kafscale.cluster.membership.start.own_objects import OwnObjects
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.config import Durability, Settings
from kafscale.errors import DeclaredDead, Fenced, KafScaleError, StartupError, StorageFailed
from kafscale.formats import wal_index
from kafscale.formats.wal_objects import HEADER_BYTES
from kafscale.formats.wal_runs import list_log
from kafscale.log.check.verification import Verifier
from kafscale.store.base import ObjectStore
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from tests.cluster.membership.test_several import (
    TOPIC,
    Machine,
    create,
    keys_of,
    led_by,
    machines,
    produce,
    until,
    values,
)
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_settings

NEVER_SECONDS = 3600.0  # no flush before that
STREAM_PUT = On("put_if_absent", "*.wal")


@asynccontextmanager
async def crashing(
    machine: Machine, *, flush_seconds: float = NEVER_SECONDS, **changes: object
) -> AsyncIterator[MemoryBroker]:
    """Run a broker in `s3-wal` for the block; at its end it is gone from one moment to the other."""
    settings = memory_settings(
        several_brokers=True,
        broker_id=machine.broker_id,
        durability=Durability.S3_WAL,
        flush_interval_seconds=flush_seconds,
        **changes,
    )
    async with trio.open_nursery() as nursery:
        yield await run_beside(nursery, machine, settings)
        nursery.cancel_scope.cancel()


async def run_beside(nursery: trio.Nursery, machine: Machine, settings: Settings) -> MemoryBroker:
    """Run a broker, and its connections, until it is superseded."""

    async def run(*, task_status: trio.TaskStatus[MemoryBroker]) -> None:
        broker = Broker(settings)
        try:
            async with trio.open_nursery() as clients:
                await clients.start(lambda task_status: broker.run_on(machine.parts(), task_status=task_status))
                task_status.started(MemoryBroker(broker, clients))
        except* (Fenced, StorageFailed):
            pass

    running = await nursery.start(run)
    assert isinstance(running, MemoryBroker)
    return running


def placements(running: MemoryBroker) -> list[Placement]:
    assignment = running.broker.services.assignment
    (row,) = [
        row
        for topic_id, row in assignment.state.placements.items()
        if running.broker.services.topics.by_id(topic_id).name == TOPIC  # type: ignore[union-attr]
    ]
    return row


async def streams(bucket: ObjectStore) -> dict[int, list[int]]:
    """The numbers of the objects of each stream, without fences."""
    return {
        epoch: [number for number, size_bytes in sorted(listed.items()) if size_bytes > HEADER_BYTES]
        for epoch, listed in (await list_log(bucket, "default")).items()
    }


async def produce_all(running: MemoryBroker, index: int, wanted: list[bytes]) -> None:
    for each in wanted:
        assert await produce(running, index, each) == error_codes.NONE


async def test_records_of_a_killed_broker_are_recovered_into_an_empty_directory(autojump_clock: MockClock) -> None:
    one, two, three = machines(3)
    async with one.run(Durability.S3_WAL) as a, three.run(Durability.S3_WAL) as c:
        await create(a.broker, 6)
        expected: dict[int, list[bytes | None]] = {}
        async with crashing(two) as b:
            await until(lambda: [len(led_by(each.broker)) for each in (a, b, c)] == [2, 2, 2])
            for running in (a, b, c):
                for index in led_by(running.broker):
                    wanted = [b"%d-%d" % (index, number) for number in range(5)]
                    await produce_all(running, index, wanted)
                    expected[index] = list(wanted)
            mine = led_by(b.broker)
        async with Machine(one.bucket, 2).run(Durability.S3_WAL) as b:
            assert led_by(b.broker) == mine
            for running in (a, b, c):
                for index in led_by(running.broker):
                    assert await values(running, index) == expected[index]
            await produce_all(b, mine[0], [b"more"])
            assert await values(b, mine[0]) == [*expected[mine[0]], b"more"]


async def test_starts_one_after_the_other_without_a_flush_keep_the_order(autojump_clock: MockClock) -> None:
    (one,) = machines(1)
    async with one.run(Durability.S3_WAL) as a:
        expected: list[bytes | None] = []
        for start in range(4):
            async with crashing(Machine(one.bucket, 2)) as b:
                if not start:
                    await create(a.broker, 2)
                    await until(lambda: len(led_by(b.broker)) == 1)
                (index,) = led_by(b.broker)
                assert await values(b, index) == expected
                if start == 2:
                    continue  # one that acknowledges nothing
                wanted = [b"%d-%d" % (start, number) for number in range(3)]
                await produce_all(b, index, wanted)
                expected += wanted
                assert len(placements(a)[index].recover) <= start
        async with Machine(one.bucket, 2).run(Durability.S3_WAL, flush_interval_seconds=0.5) as b:
            assert await values(b, index) == expected
            await until(lambda: not placements(a)[index].recover)
            assert await values(b, index) == expected


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_broker_that_was_suspended_acknowledges_nothing_that_vanishes(
    autojump_clock: MockClock, after_effect: bool
) -> None:
    bucket = MemoryStore()
    zombie_store = FaultyStore(bucket)
    settings = memory_settings(several_brokers=True, broker_id=1, durability=Durability.S3_WAL)
    acknowledged: list[bytes] = []

    async def produce_late(zombie: MemoryBroker, value: bytes) -> None:
        with suppress(KafScaleError):
            if await produce(zombie, 0, value) == error_codes.NONE:
                acknowledged.append(value)

    async with trio.open_nursery() as nursery:
        first = await run_beside(nursery, Machine(zombie_store, 1), settings)
        await create(first.broker, 1)
        await produce_all(first, 0, [b"early"])
        gate = zombie_store.hold(STREAM_PUT, after_effect=after_effect)
        looks = zombie_store.hold(On("*", "*/head"))  # nothing else tells it that it was replaced
        first.nursery.start_soon(produce_late, first, b"late")
        await gate.wait_arrived()
        async with Machine(bucket, 1).run(Durability.S3_WAL) as second:
            found = await values(second, 0)
            assert found == ([b"early", b"late"] if after_effect else [b"early"])
            gate.open()
            await trio.sleep(0.1)
            if after_effect:
                first.nursery.start_soon(produce_late, first, b"later")
            await trio.sleep(5.0)
            assert acknowledged == ([b"late"] if after_effect else [])
            await produce_all(second, 0, [b"new"])
            assert await values(second, 0) == [*found, b"new"]
            looks.open()


async def test_a_superseded_incarnation_creates_nothing(autojump_clock: MockClock) -> None:
    """It finds in the metadata that it has to apply before its own commit that another incarnation is meant."""
    bucket = MemoryStore()
    settings = memory_settings(several_brokers=True, broker_id=1, durability=Durability.S3_WAL)
    async with trio.open_nursery() as nursery:
        first = await run_beside(nursery, Machine(bucket, 1), settings)
        await create(first.broker, 1)
        store = FaultyStore(bucket)
        start = store.hold(On("list", "*/wal/*"))  # it is registered then
        nursery.start_soon(run_beside, nursery, Machine(store, 1), settings)
        await start.wait_arrived()
        with pytest.raises(StorageFailed), trio.fail_after(5.0):
            await create(first.broker, 1, "new")
        nursery.cancel_scope.cancel()


async def test_a_superseded_incarnation_opens_no_new_partition(autojump_clock: MockClock) -> None:
    """It knows by the same metadata which placed the partition there that another incarnation is meant."""
    bucket = MemoryStore()
    settings = memory_settings(several_brokers=True, broker_id=1, durability=Durability.S3_WAL)
    zombie_store, start_store = FaultyStore(bucket), FaultyStore(bucket)
    opened: list[object] = []
    async with Machine(bucket, 2).run(Durability.S3_WAL) as other, trio.open_nursery() as nursery:
        zombie = await run_beside(nursery, Machine(zombie_store, 1), settings)
        await create(other.broker, 2)
        await until(lambda: len(led_by(zombie.broker)) == 1)
        zombie.broker.services.log.on_opened.append(opened.append)
        look = zombie_store.hold(On("head", "*/head"))
        await look.wait_arrived()
        start = start_store.hold(On("list", "*/wal/*"))
        nursery.start_soon(run_beside, nursery, Machine(start_store, 1), settings)
        await start.wait_arrived()  # it is registered
        await create(other.broker, 4, "new")
        look.open()
        await until(lambda: zombie.broker.services.topics.get("new") is not None)
        assert not opened
        nursery.cancel_scope.cancel()


async def test_a_flushed_stream_becomes_unneeded_and_is_deleted(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run(Durability.S3_WAL) as a:
        async with crashing(two) as b:
            await create(a.broker, 4)
            await until(lambda: len(led_by(b.broker)) == 2)
            mine = led_by(b.broker)
            for index in mine:
                await produce_all(b, index, [b"x", b"y"])
            (dead,) = [epoch for epoch, numbers in (await streams(one.bucket)).items() if numbers]
        async with crashing(two) as b:  # this one flushes nothing
            assert placements(b)[mine[0]].recover == (dead,)
            await trio.sleep(60.0)
            assert (await streams(one.bucket))[dead]
        async with crashing(two, flush_seconds=0.5) as b:
            await until(lambda: not any(each.recover for each in placements(a)))
            await trio.sleep(10.0)
            found = await list_log(one.bucket, "default")
            assert list(found[dead].values()) == [HEADER_BYTES]
            for index in mine:
                assert await values(b, index) == [b"x", b"y"]


async def test_a_broker_deletes_flushed_objects_of_its_stream(autojump_clock: MockClock) -> None:
    (one,) = machines(1)
    async with one.run(Durability.S3_WAL, flush_interval_seconds=0.5) as a:
        await create(a.broker, 1)
        for number in range(20):
            await produce_all(a, 0, [b"%d" % number])
        await trio.sleep(30.0)
        (left,) = [numbers for numbers in (await streams(one.bucket)).values() if numbers]
        assert left == [20]
    async with one.run(Durability.S3_WAL) as a:
        assert len(await values(a, 0)) == 20


async def test_records_in_the_local_log_of_a_lone_broker_survive_the_switch_to_several(
    autojump_clock: MockClock,
) -> None:
    one, two = machines(2)
    settings = memory_settings(durability=Durability.S3_WAL, broker_id=1, flush_interval_seconds=NEVER_SECONDS)
    async with trio.open_nursery() as nursery:
        alone = await run_beside(nursery, one, settings)
        await create(alone.broker, 4)
        for index in range(4):
            await produce_all(alone, index, [b"a", b"b"])
        nursery.cancel_scope.cancel()
    first = Machine(one.bucket, 1)
    for durability in (Durability.WAL, Durability.SEGMENT):
        with pytest.RaisesGroup(
            pytest.RaisesExc(StartupError, match="start once with --durability s3-wal"), flatten_subgroups=True
        ):
            async with Machine(one.bucket, 1).run(durability):
                pass
    async with crashing(first) as a:
        for index in range(4):
            await produce_all(a, index, [b"c"])
            assert await values(a, index) == [b"a", b"b", b"c"]
    async with Machine(one.bucket, 1).run(Durability.S3_WAL) as a, two.run(Durability.S3_WAL) as b:
        await until(lambda: len(led_by(b.broker)) == 2)
        for running in (a, b):
            for index in led_by(running.broker):
                assert await values(running, index) == [b"a", b"b", b"c"]
        await until(lambda: not any(each.recover for each in placements(a)))
        await trio.sleep(10.0)
        assert sum(map(bool, (await streams(one.bucket)).values())) <= 1  # what the log of the broker alone had is gone


async def starts(machine: Machine, settings: Settings, step: int) -> bool:
    """Start a broker, kill it at an operation on the store, and tell whether it had started by then."""
    assert isinstance(machine.bucket, FaultyStore)
    gate = machine.bucket.hold(On(skip=step), after_effect=bool(step % 2))
    with trio.move_on_after(60.0):
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await gate.wait_arrived()
                nursery.cancel_scope.cancel()

            nursery.start_soon(stop)
            await run_beside(nursery, machine, settings)
            nursery.cancel_scope.cancel()
            return True
    return False


async def test_a_start_that_is_killed_at_any_step_is_done_again(autojump_clock: MockClock) -> None:
    """Each operation of the second start on the store is the last one of a start."""
    one, two = machines(2)
    async with one.run(Durability.S3_WAL) as a:
        async with crashing(two) as b:
            await create(a.broker, 4)
            await until(lambda: len(led_by(b.broker)) == 2)
            mine = led_by(b.broker)
            for index in mine:
                await produce_all(b, index, [b"x", b"y", b"z"])
        settings = memory_settings(
            several_brokers=True, broker_id=2, durability=Durability.S3_WAL, flush_interval_seconds=NEVER_SECONDS
        )
        step = 0
        while not await starts(Machine(FaultyStore(one.bucket), 2), settings, step):
            step += 1
        assert step > 10
        async with Machine(one.bucket, 2).run(Durability.S3_WAL) as b:
            for index in mine:
                assert await values(b, index) == [b"x", b"y", b"z"]


async def test_recovered_records_survive_a_hand_over(autojump_clock: MockClock) -> None:
    one, two, three = machines(3)
    async with one.run(Durability.S3_WAL) as a:
        async with crashing(two) as b:
            await create(a.broker, 6)
            await until(lambda: len(led_by(b.broker)) == 3)
            mine = led_by(b.broker)
            for index in mine:
                await produce_all(b, index, [b"x"])
        async with crashing(two) as b, three.run(Durability.S3_WAL) as c:
            await until(lambda: [len(led_by(each.broker)) for each in (a, b, c)] == [2, 2, 2])
            (moved,) = set(mine) & set(led_by(c.broker))
            assert not placements(a)[moved].recover
            assert await values(c, moved) == [b"x"]
            await produce_all(c, moved, [b"y"])
            assert await values(c, moved) == [b"x", b"y"]


async def test_an_idle_broker_writes_nothing(autojump_clock: MockClock) -> None:
    bucket = FaultyStore(MemoryStore())
    async with Machine(bucket, 1).run(Durability.S3_WAL) as a, Machine(bucket, 2).run(Durability.S3_WAL):
        await create(a.broker, 2)
        await trio.sleep(30.0)
        before = bucket.count("put*"), bucket.count("list")
        await trio.sleep(60.0)
        assert (bucket.count("put*"), bucket.count("list")) == before


def state_of(running: MemoryBroker) -> ClusterState:
    assignment = running.broker.services.assignment
    return assignment.state


async def declare(by: MemoryBroker, broker_id: int, declared: BrokerState) -> None:
    """Commit a broker's state."""
    state = state_of(by)
    record = state.brokers[broker_id]

    async def change(revision: int) -> Transaction:
        key = record_key(broker_id)
        puts = {key: encode(attrs.evolve(record, state=declared))}
        return Transaction(puts=puts, planned_from=PlannedFrom(revision=revision, keys=[key]))

    await state.follower.commit_planned(change)


async def fail_over(by: MemoryBroker, dead: int, *heirs: int) -> None:
    """Have others lead what a broker led that is gone, in turn."""
    state = state_of(by)
    record = state.brokers[dead]
    writer = PlacementWriter(state)
    await declare(by, dead, BrokerState.STOPPED)
    async with trio.open_nursery() as nursery:
        for heir, (topic_id, index, placement) in zip(cycle(heirs), list(state.led_by(dead)), strict=False):

            def elsewhere(current: Placement, number: int, heir: int = heir) -> Placement:
                recover = current.recover_from(record)
                return attrs.evolve(current, leader=heir, epoch=number, target=None, recover=recover)

            nursery.start_soon(writer.change, topic_id, index, placement.epoch, elsewhere)


async def test_partitions_of_a_failed_broker_fail_over_with_all_acknowledged_records(
    autojump_clock: MockClock,
) -> None:
    one, two, three = machines(3)
    async with crashing(one) as a, crashing(three) as c:
        expected: dict[int, list[bytes | None]] = {}
        await create(a.broker, 30)
        async with crashing(two) as b:
            await until(lambda: [len(led_by(each.broker)) for each in (a, b, c)] == [10, 10, 10])
            mine = led_by(b.broker)
            for index in mine:
                expected[index] = [b"%d" % number for number in range(3)]
                await produce_all(b, index, [b"%d" % number for number in range(3)])
        before = trio.current_time()
        await fail_over(a, 2, 1, 3)
        await until(lambda: {*mine} <= {*led_by(a.broker), *led_by(c.broker)})
        assert trio.current_time() - before < 2.0
        for running in (a, c):
            for index in {*mine} & {*led_by(running.broker)}:
                await produce_all(running, index, [b"more"])
                assert await values(running, index) == [*expected[index], b"more"]


async def test_a_start_overtaken_by_a_fail_over_ends_as_declared_dead(autojump_clock: MockClock) -> None:
    """Of seed 35647: it failed for an object of its stream that an heir had recovered, and deleted."""
    one, two = machines(2)
    async with crashing(one, flush_seconds=0.5) as a:
        async with crashing(two) as b:
            await create(a.broker, 2)
            await until(lambda: len(led_by(b.broker)) == 1)
            (index,) = led_by(b.broker)
            await produce_all(b, index, [b"x"])
        slow = FaultyStore(one.bucket)
        gate = slow.hold(On("get", "*.wal"))
        failures: list[BaseException] = []

        async def start() -> None:
            settings = memory_settings(several_brokers=True, broker_id=2, durability=Durability.S3_WAL)
            try:
                await Broker(settings).run_on(Machine(slow, 2).parts())
            except* KafScaleError as failed:
                failures.extend(failed.exceptions)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            await gate.wait_arrived()
            await until(lambda: len(placements(a)[index].recover) == 1)
            (stream,) = placements(a)[index].recover
            await declare(a, 2, BrokerState.FENCED)  # the controller has the other one lead
            while (await streams(one.bucket))[stream]:
                await trio.sleep(0.1)
            gate.open()
        (failure,) = failures
        assert isinstance(failure, DeclaredDead)


async def damage_of(bucket: ObjectStore) -> list[str]:
    """What `kafscale verify` finds."""
    own_objects = OwnObjects(store=bucket, namespace="default")
    verifier = Verifier(store=bucket, namespace="default")
    log = await list_log(bucket, "default")
    kept_until = await own_objects.read()
    await verifier.read_log(log, kept_until, lambda _: None, is_shared=own_objects.has_head)
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    await own_objects.check_claim(verifier.last_epoch)
    return [each.message for each in (*verifier.report.findings, *own_objects.findings) if each.damage]


async def test_verify_finds_streams_whole_that_are_written_trimmed_and_taken_over(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with crashing(one, flush_seconds=1.0) as a:
        async with crashing(two, flush_seconds=1.0) as b:
            await create(a.broker, 4)
            await until(lambda: len(led_by(b.broker)) == 2)
            for number in range(10):
                for running in (a, b):
                    for index in led_by(running.broker):
                        await produce_all(running, index, [b"%d" % number])
                assert await damage_of(one.bucket) == []
                await trio.sleep(0.7)
        await fail_over(a, 2, 1)
        await until(lambda: len(led_by(a.broker)) == 4)
        for index in range(4):
            await produce_all(a, index, [b"more"])
            assert await damage_of(one.bucket) == []
        assert any(min(listed) > 1 for listed in (await list_log(one.bucket, "default")).values())
        await trio.sleep(30.0)
        assert await damage_of(one.bucket) == []


async def test_a_broker_that_fails_during_recovery_hands_on_its_unflushed_streams(
    autojump_clock: MockClock,
) -> None:
    """The stream of an older incarnation comes behind that of a younger one: order is that of leading."""
    one, two, three = machines(3)
    async with crashing(three) as c:
        await create(c.broker, 3)
        async with crashing(one) as a:
            async with crashing(two) as b:
                await until(lambda: [len(led_by(each.broker)) for each in (a, b, c)] == [1, 1, 1])
                (index,) = led_by(b.broker)
                await produce_all(b, index, [b"1", b"2"])
            async with crashing(two) as b:
                await produce_all(b, index, [b"3"])
            await until(lambda: len(placements(a)[index].recover) == 1)
            await fail_over(a, 2, 1)
            await until(lambda: index in led_by(a.broker))
            await produce_all(a, index, [b"4", b"5"])
        await fail_over(c, 1, 3)
        await until(lambda: index in led_by(c.broker))
        recover = placements(c)[index].recover
        assert len(recover) == 3
        assert list(recover) != sorted(recover)
        await produce_all(c, index, [b"6"])
        assert await values(c, index) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("step", range(0, 20, 3))
async def test_a_take_over_that_is_killed_at_any_step_is_done_again_by_another_broker(
    autojump_clock: MockClock, step: int
) -> None:
    one, two, three = machines(3)
    killed = FaultyStore(one.bucket)
    async with crashing(three) as c:
        async with trio.open_nursery() as life:
            settings = memory_settings(several_brokers=True, broker_id=1, durability=Durability.S3_WAL)
            a = await run_beside(life, Machine(killed, 1), settings)
            async with crashing(two) as b:
                await create(c.broker, 6)
                await until(lambda: [len(led_by(each.broker)) for each in (a, b, c)] == [2, 2, 2])
                mine = led_by(b.broker)
                for index in mine:
                    await produce_all(b, index, [b"1", b"2"])
            gate = killed.hold(On("[!h]*", skip=step), after_effect=bool(step % 2))  # not a look at the head
            await fail_over(c, 2, 1)
            with trio.move_on_after(5.0):
                await gate.wait_arrived()
            life.cancel_scope.cancel()
        await fail_over(c, 1, 3)
        await until(lambda: len(led_by(c.broker)) == 6)
        for index in mine:
            assert await values(c, index) == [b"1", b"2"]


async def test_a_stream_is_read_few_times_however_many_partitions_come(autojump_clock: MockClock) -> None:
    bucket = MemoryStore()
    seen = FaultyStore(bucket)
    seen.delay(On("list"), 0.05)
    seen.delay(On("get"), 0.05)
    async with crashing(Machine(seen, 1)) as a:
        async with crashing(Machine(bucket, 2)) as b:
            await create(a.broker, 200)
            await until(lambda: len(led_by(b.broker)) == 100)
            mine = led_by(b.broker)
            for index in mine:
                await produce_all(b, index, [b"%d" % index])
        seen.calls.clear()
        before = trio.current_time()
        await fail_over(a, 2, 1)
        await until(lambda: len(led_by(a.broker)) == 200)
        assert trio.current_time() - before < 5.0
        assert seen.count("get", "*.wal") <= 2 * len(mine)
        for index in mine:
            assert await values(a, index) == [b"%d" % index]


async def test_a_partition_that_is_damaged_keeps_no_other_one_from_being_led(autojump_clock: MockClock) -> None:
    bucket = MemoryStore()
    seen = FaultyStore(bucket)
    async with crashing(Machine(seen, 1)) as a:
        async with crashing(Machine(bucket, 2), flush_seconds=0.5) as b:
            await create(a.broker, 40)
            await until(lambda: len(led_by(b.broker)) == 20)
            *whole, damaged = led_by(b.broker)
            await produce_all(b, damaged, [b"x"])
            partition = b.broker.services.log.partition_named(TOPIC, damaged)
            assert partition is not None
            await until(lambda: partition.flushed_offset == 1)
            b.broker.services.log.flusher.interval_seconds = NEVER_SECONDS
            for index in (*whole, damaged):
                await produce_all(b, index, [b"y"])
        await bucket.delete([key for key in await keys_of(bucket) if key.startswith(partition.objects_prefix)])
        seen.delay(On("list"), 0.05)  # all come together
        await fail_over(a, 2, 1)
        await trio.sleep(5.0)
        assert {*led_by(a.broker)} == {*range(40)} - {damaged}
        for index in whole:
            assert await values(a, index) == [b"y"]


async def test_a_late_upload_of_a_failed_broker_agrees_with_the_next_leader(autojump_clock: MockClock) -> None:
    bucket = MemoryStore()
    late = FaultyStore(bucket)
    settings = memory_settings(
        several_brokers=True, broker_id=2, durability=Durability.S3_WAL, flush_interval_seconds=1.0
    )
    async with crashing(Machine(bucket, 1)) as a, trio.open_nursery() as nursery:
        await create(a.broker, 2)
        b = await run_beside(nursery, Machine(late, 2), settings)
        await until(lambda: len(led_by(b.broker)) == 1)
        (index,) = led_by(b.broker)
        upload = late.hold(On("put*", "*.kfs"))
        late.hold(On("*", "*/head"))
        await produce_all(b, index, [b"1", b"2"])
        await upload.wait_arrived()
        await produce_all(b, index, [b"3"])
        await fail_over(a, 2, 1)
        await until(lambda: index in led_by(a.broker))
        await produce_all(a, index, [b"4"])
        upload.open()
        await trio.sleep(5.0)
        assert await keys_of(bucket)
        expected = [b"1", b"2", b"3", b"4"]
        assert await values(a, index) == expected
        nursery.cancel_scope.cancel()
        async with Machine(bucket, 1).run(Durability.S3_WAL, flush_interval_seconds=0.5) as again:
            assert await values(again, index) == expected
            await trio.sleep(30.0)
            assert await values(again, index) == expected
        async with Machine(bucket, 1).run(Durability.S3_WAL) as again:
            assert await values(again, index) == expected


async def test_a_takeover_of_some_partitions_reads_only_their_part_of_the_stream(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_index, "GAP_MAX_BYTES", 0)
    bucket = MemoryStore()
    seen = {broker_id: FaultyStore(bucket) for broker_id in (1, 3)}
    record = b"v" * 400_000
    slow = FaultyStore(bucket)
    slow.delay(On("put_if_absent", "*.wal"), 0.05)  # so that what comes during the first PUT shares an object
    async with crashing(Machine(seen[1], 1)) as a, crashing(Machine(seen[3], 3)) as c:
        async with crashing(Machine(slow, 2)) as b:
            await create(a.broker, 12)
            await until(lambda: len(led_by(b.broker)) == 4)
            mine = led_by(b.broker)
            async with trio.open_nursery() as nursery:  # the first goes at once, the others share an object
                for index in mine:
                    nursery.start_soon(produce_all, b, index, [b"small"])
                    nursery.start_soon(produce_all, b, index, [record])
        async for page in bucket.list("_kafscale/default/wal/"):
            sizes = {info.key: info.size_bytes for info in page}
        large = max(sizes, key=sizes.__getitem__)
        assert sizes[large] > 3 * len(record)
        for each in seen.values():
            each.calls.clear()
        await fail_over(a, 2, 1, 3)
        await until(lambda: len(led_by(a.broker)) + len(led_by(c.broker)) == 12)
        for broker_id, running in ((1, a), (3, c)):
            assert len(led_by(running.broker)) == 6
            assert seen[broker_id].count("get", large) == 0
            assert 2 <= seen[broker_id].count("get_range", large) <= 4  # its head, and partitions that may lie together
            for index in mine:
                if index in led_by(running.broker):
                    assert {*await values(running, index)} == {b"small", record}
