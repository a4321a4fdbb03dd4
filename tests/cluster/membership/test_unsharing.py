"""A bucket that several brokers shared is had by one again, which several may share again later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count

import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.node import CLUSTER_ID_KEY
from kafscale.cluster.membership.records import BROKERS, CLUSTER, BrokerState, parse_record_key
from kafscale.cluster.membership.start.claim import claim_key, decode_claim
from kafscale.cluster.membership.start.recovery import preview
from kafscale.cluster.membership.start.unsharing import Unsharing
from kafscale.cluster.metadata.converter import decode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.config import Durability
from kafscale.errors import Fenced, NotFound, StartupError, StoreError
from kafscale.formats.metadata_head import decode_head, head_key
from kafscale.formats.placements import ASSIGNMENTS
from kafscale.store.base import ObjectStore
from kafscale.testing.faulty_store import FaultyStore, On, StoreCall
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from tests.cluster.membership.test_several import (
    MODES,
    Machine,
    create,
    led_by,
    machines,
    produce,
    topic_at,
    until,
    values,
)
from tests.cluster.membership.test_streams import damage_of
from tests.devtools.fakes.broker_network import RunningBroker


def ending(machine: Machine, bucket: ObjectStore | None = None) -> Unsharing:
    """The command, on a machine whose broker has stopped."""
    return Unsharing(store=bucket or machine.bucket, namespace="default", local=machine.metadata)


async def leave(machine: Machine, broker_id: int, durability: Durability) -> None:
    """Have a broker that has stopped forgotten by the one that is left."""
    async with machine.run(durability) as a:
        membership = a.broker.services.membership
        await until(lambda: membership.records[broker_id].state is BrokerState.STOPPED)
        await membership.unregister(broker_id)


async def from_two_to_one(one: Machine, two: Machine, durability: Durability) -> None:
    """Run two brokers, with a record in each of four partitions; then the second is gone, and the first has stopped."""
    async with one.run(durability) as a:
        async with two.run(durability) as b:
            await create(a.broker, 4)
            await until(lambda: len(led_by(a.broker)) == len(led_by(b.broker)) == 2)
            for each in (a, b):
                for index in led_by(each.broker):
                    assert await produce(each, index, b"%d" % index) == error_codes.NONE
        await until(lambda: len(led_by(a.broker)) == 4)
    await leave(one, 2, durability)


@asynccontextmanager
async def alone(machine: Machine, durability: Durability) -> AsyncIterator[RunningBroker]:
    """Run a broker that is told of no others; it has the bucket to itself."""
    async with machine.run(durability, several_brokers=False) as a:
        assert not a.broker.services.membership.records
        yield a


async def check_records(running: RunningBroker, *more: bytes) -> None:
    for index in range(4):
        assert await values(running, index) == [b"%d" % index, *more]


async def objects(bucket: ObjectStore, prefix: str) -> list[str]:
    return [info.key async for page in bucket.list(prefix) for info in page]


@pytest.mark.parametrize("durability", MODES)
async def test_the_last_broker_can_take_the_bucket_alone_and_be_joined_again(
    autojump_clock: MockClock, durability: Durability
) -> None:
    one, two = machines(2)
    await from_two_to_one(one, two, durability)
    cluster_id = await one.metadata.get(CLUSTER_ID_KEY)
    assert cluster_id is not None
    await ending(one).run(1, "directory")
    for _ in range(2):
        async with alone(one, durability) as a:
            assert a.broker.services.node.cluster_id == decode(str, cluster_id.value)
            await topic_at(a.broker)
            await check_records(a)
    assert [entry.key for entry in await one.metadata.list(CLUSTER)] == [CLUSTER_ID_KEY]
    assert not [entry.key for entry in await one.metadata.list(ASSIGNMENTS)]
    assert not [entry.key for entry in await one.metadata.list(BROKERS) if parse_record_key(entry.key) is not None]
    async with alone(one, durability) as a:
        for index in range(4):
            assert await produce(a, index, b"alone") == error_codes.NONE
    async with one.run(durability) as a, two.run(durability) as b:
        await until(lambda: len(led_by(a.broker)) == len(led_by(b.broker)) == 2)
        for each in (a, b):
            for index in led_by(each.broker):
                assert await produce(each, index, b"again") == error_codes.NONE
                assert await values(each, index) == [b"%d" % index, b"alone", b"again"]


@pytest.mark.parametrize("durability", MODES)
async def test_the_bucket_alone_is_enough_from_then_on(autojump_clock: MockClock, durability: Durability) -> None:
    one, two = machines(2)
    await from_two_to_one(one, two, durability)
    await ending(one).run(1, "directory")
    assert await damage_of(one.bucket) == []
    seen = MemoryMetadataStore()
    await preview(one.bucket, "default", seen)
    assert [entry.key for entry in await seen.list(CLUSTER)] == [CLUSTER_ID_KEY]
    assert not await objects(one.bucket, "_kafscale/default/manifests/")
    async with alone(Machine(one.bucket, 1), durability) as a:
        await topic_at(a.broker)
        await check_records(a)
        assert await produce(a, 0, b"alone") == error_codes.NONE
    assert await damage_of(one.bucket) == []


async def kill(killed: trio.CancelScope, writes: Iterator[int], passed_count: int, call: StoreCall) -> None:
    """End who writes to the bucket, but for the first times."""
    if call.operation.startswith(("put", "delete")) and next(writes) >= passed_count:
        killed.cancel()
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("starts", ["alone", "as one of several"])
@pytest.mark.parametrize("on", ["the same directory", "an empty one"])
async def test_an_unsharing_interrupted_at_any_write_is_finished_by_the_next_start(
    autojump_clock: MockClock, starts: str, on: str
) -> None:
    durability, passed_count, has_ended = Durability.S3_WAL, 0, True
    while has_ended:
        one, two = machines(2)
        await from_two_to_one(one, two, durability)
        bucket = FaultyStore(one.bucket)
        killed = trio.CancelScope()
        bucket.rule(On(), partial(kill, killed, count(), passed_count))
        with killed:
            await ending(one, bucket).run(1, "directory")
        has_ended = killed.cancelled_caught
        passed_count += 1
        machine = one if on == "the same directory" else Machine(one.bucket, 1)
        if starts == "as one of several":
            async with machine.run(durability) as a, two.run(durability) as b:
                await until(lambda a=a, b=b: len(led_by(a.broker)) == len(led_by(b.broker)) == 2)
            continue
        async with machine.run(durability, several_brokers=False) as a:
            await topic_at(a.broker)
            await check_records(a)
            assert bool(a.broker.services.membership.records) == (passed_count == 1)
    assert passed_count > 5  # otherwise nothing was tried


async def test_a_repeated_unsharing_changes_nothing(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    with pytest.raises(StartupError, match="is not shared"):
        await ending(one).run(1, "directory")
    await from_two_to_one(one, two, Durability.WAL)
    bucket = FaultyStore(one.bucket)
    bucket.lose_reply(On("put_if_match", head_key("default"), times=1))
    with suppress(StoreError):
        await ending(one, bucket).run(1, "directory")
    await ending(one).run(1, "directory")
    async with alone(one, Durability.WAL) as a:
        await topic_at(a.broker)
    before = await objects(one.bucket, "")
    await ending(one).run(1, "directory")
    assert await objects(one.bucket, "") == before


async def test_unsharing_is_refused_for_a_broker_that_is_not_last_or_not_cleanly_stopped(
    autojump_clock: MockClock,
) -> None:
    one, two = machines(2)
    async with one.run(Durability.S3_WAL, flush_interval_seconds=3600.0) as a:
        async with two.run(Durability.S3_WAL):
            await create(a.broker, 2)
        with pytest.raises(StartupError, match="broker 2 shares the bucket, too"):
            await Unsharing(store=one.bucket, namespace="default", local=MemoryMetadataStore()).run(1, "directory")
        membership = a.broker.services.membership
        await until(lambda: membership.records[2].state is BrokerState.STOPPED)
        await until(lambda: led_by(a.broker) == [0, 1])
        await membership.unregister(2)
        assert await produce(a, 0, b"x") == error_codes.NONE
        elsewhere = Unsharing(store=one.bucket, namespace="default", local=MemoryMetadataStore())
        for broker_id, refusal in ((1, "broker 1 runs"), (2, "broker 1 shares the bucket, too")):
            with pytest.raises(StartupError, match=refusal):
                await elsewhere.run(broker_id, "directory")
        a.kill()
    with pytest.raises(StartupError, match="has not stopped in order"):
        await ending(one).run(1, "directory")
    async with one.run(Durability.S3_WAL) as a:
        await until(lambda: not a.broker.services.assignment.state.recovering)  # type: ignore[attr-defined]
    bucket = FaultyStore(one.bucket)
    machine = Machine(bucket, 1, one.disk, one.metadata, network=one.network)
    async with machine.run(Durability.S3_WAL, shutdown_timeout_seconds=2.0) as a:
        bucket.fail(On("put*", "*.kfs"))
        assert await produce(a, 0, b"y") == error_codes.NONE
    with pytest.raises(StartupError, match="had not brought everything"):
        await ending(one).run(1, "directory")
    async with one.run(Durability.S3_WAL) as a:
        await until(lambda: not a.broker.services.assignment.state.recovering)  # type: ignore[attr-defined]
    await ending(one).run(1, "directory")
    async with alone(one, Durability.S3_WAL) as a:
        await topic_at(a.broker)
        assert await values(a, 0) == [b"x", b"y"]


async def test_unsharing_is_refused_when_a_broker_joins_meanwhile(autojump_clock: MockClock) -> None:
    """Its commit comes between the look and the end of the head."""
    one, two = machines(2)
    await from_two_to_one(one, two, Durability.WAL)
    bucket = FaultyStore(one.bucket)
    gate = bucket.hold(On("put_if_match", head_key("default")))
    refusals: list[str] = []

    async def end() -> None:
        with pytest.raises(StartupError) as refused:
            await ending(one, bucket).run(1, "directory")
        refusals.append(str(refused.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        await gate.wait_arrived()
        async with two.run(Durability.WAL):
            gate.open()
            await until(lambda: refusals)
    assert "try again" in refusals[0]
    head = decode_head("", (await one.bucket.get(head_key("default"))).data)
    assert head.claim is None


async def test_a_late_broker_is_fenced_after_unsharing_and_cannot_commit(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    await from_two_to_one(one, two, Durability.WAL)
    late = await SharedMetadataStore.join(MemoryMetadataStore(), one.bucket, "default")
    await ending(one).run(1, "directory")
    with pytest.raises(Fenced):
        await late.refresh()
    with pytest.raises(NotFound):
        await SharedMetadataStore.join(MemoryMetadataStore(), one.bucket, "default")
    async with one.run(Durability.WAL):  # of several again: another head
        with pytest.raises(Fenced):
            await late.refresh()


async def test_epochs_go_on_growing(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    epochs: list[int] = []

    def note(running: RunningBroker) -> None:
        epochs.append(running.broker.services.node.broker_epoch)

    for _ in range(3):
        async with one.run(several_brokers=False) as a:
            note(a)
        async with one.run() as a:
            note(a)
            async with two.run() as b:
                note(b)
        await leave(one, 2, Durability.WAL)
        await ending(one).run(1, "directory")
        claim = decode_claim("", (await one.bucket.get(claim_key("default"))).data)
        epochs.append(claim.epoch)
    assert epochs == sorted(set(epochs))
