"""A broker alone, and one with another id that is started on its bucket without --several-brokers."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.broker import Broker
from kafscale.broker_storage import StorageParts
from kafscale.cluster.membership.start.claim import Claim, claim_key, decode_claim
from kafscale.config import Durability
from kafscale.errors import StartupError
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from tests.cluster.membership.test_several import create, produce
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings

DURABILITIES = tuple(Durability)


def on(bucket: MemoryStore | FaultyStore) -> StorageParts:
    """Return an empty machine."""
    return attrs.evolve(memory_parts(), store=bucket)


async def claim_of(bucket: MemoryStore) -> Claim:
    key = claim_key("default")
    return decode_claim(key, (await bucket.get(key)).data)


async def refuse(parts: StorageParts, broker_id: int, why: str, durability: Durability = Durability.S3_WAL) -> None:
    """See that a broker does not start."""
    with pytest.raises(StartupError, match=why):
        await Broker(memory_settings(broker_id=broker_id, durability=durability)).run_on(parts)


async def start(parts: StorageParts, broker_id: int, durability: Durability = Durability.S3_WAL) -> None:
    """Start a broker, and stop it in order."""
    async with memory_broker(parts, memory_settings(broker_id=broker_id, durability=durability)):
        pass


async def kill(parts: StorageParts, broker_id: int, durability: Durability = Durability.S3_WAL) -> None:
    """Start a broker, and end it without a stop."""
    settings = memory_settings(broker_id=broker_id, durability=durability)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: Broker(settings).run_on(parts, task_status=task_status))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_broker_with_another_id_is_refused_where_one_lives_and_touches_nothing(
    autojump_clock: MockClock, durability: Durability
) -> None:
    bucket = MemoryStore()
    store = FaultyStore(bucket)
    async with memory_broker(on(bucket), memory_settings(broker_id=1, durability=durability)) as first:
        await trio.sleep(30.0)
        await refuse(on(store), 2, "if both are to run, start both with --several-brokers", durability)
        assert {call.operation for call in store.calls} <= {"get", "head", "list"}
        await trio.sleep(30.0)
        assert first.broker.is_ready


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_broker_with_another_id_can_replace_a_stopped_one(
    autojump_clock: MockClock, durability: Durability
) -> None:
    bucket = MemoryStore()
    await start(on(bucket), 1, durability)
    assert (await claim_of(bucket)).is_released
    await start(on(bucket), 2, durability)
    assert (await claim_of(bucket)).broker_id == 2


async def test_a_broker_that_was_killed_is_followed_by_its_id_or_its_data_directory(autojump_clock: MockClock) -> None:
    bucket, disk = MemoryStore(), memory_parts()
    await kill(attrs.evolve(disk, store=bucket), 1)
    assert not (await claim_of(bucket)).is_released
    await refuse(on(bucket), 2, "start it with --broker-id 1")
    await start(on(bucket), 1)
    await kill(on(bucket), 1)
    await start(attrs.evolve(disk, store=bucket), 1)
    await kill(attrs.evolve(disk, store=bucket), 1)
    await start(attrs.evolve(disk, store=bucket), 2)


async def test_a_claim_of_an_earlier_version_counts_as_unreleased(autojump_clock: MockClock) -> None:
    old = b'{"epoch":4,"broker_id":7,"directory_id":"a","acknowledges_locally":false,"nonce":"n"}'
    bucket = MemoryStore()
    await bucket.put(claim_key("default"), [old])
    await refuse(on(bucket), 0, "start it with --broker-id 7")
    await start(on(bucket), 7)


async def test_in_wal_a_stop_that_has_not_flushed_all_releases_nothing(autojump_clock: MockClock) -> None:
    bucket = MemoryStore()
    store = FaultyStore(bucket)
    store.fail(On("put*", "*.kfs"))
    settings = memory_settings(broker_id=1, durability=Durability.WAL, shutdown_timeout_seconds=3.0)
    async with memory_broker(on(store), settings) as running:
        await create(running.broker, 1)
        assert await produce(running, 0, b"a") == error_codes.NONE
    assert not (await claim_of(bucket)).is_released
