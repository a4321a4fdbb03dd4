"""What nothing refers to is deleted by who leads the partition, and by nobody else."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.faulty_store import FaultyStore
from kafscale.wire import error_codes
from tests.cluster.membership.test_several import TOPIC, Machine, create, led_by, move, produce, until, values

OLD_MS = 1_700_000_000_000
SETTINGS = {
    "orphan_check_interval_seconds": 10.0,
    "orphan_grace_seconds": 30.0,
    "segment_delete_delay_ms": 0,
    "flush_interval_seconds": 0.5,
}


def leftover(topic_id: bytes, index: int) -> str:
    """The second half of an object whose deletion was cut short."""
    key = SegmentKey(topic=TOPIC, topic_id=topic_id, partition=index, base_offset=0, epoch=1, generation=9)
    return key.of_kind("index").key


def deleted_by(store: FaultyStore, keys: set[str]) -> set[str]:
    return {key for call in store.calls if call.operation == "delete" for key in call.keys} & keys


async def test_orphans_of_a_partition_are_deleted_only_by_its_leader(autojump_clock: MockClock) -> None:
    bucket = MemoryStore(clock_ms=lambda: OLD_MS)
    stores = {broker_id: FaultyStore(bucket) for broker_id in (1, 2)}
    one, two = (Machine(store, broker_id) for broker_id, store in stores.items())
    async with one.run(**SETTINGS) as a, two.run(**SETTINGS) as b:
        running = {1: a, 2: b}
        topic = await create(a.broker, 4)
        await until(lambda: len(led_by(a.broker)) == len(led_by(b.broker)) == 2)
        for each in running.values():
            for index in led_by(each.broker):
                assert await produce(each, index, b"x") == error_codes.NONE
        await trio.sleep(5.0)
        left = {index: leftover(topic.topic_id, index) for index in range(4)}
        for key in left.values():
            await bucket.put(key, [b""])
        moved = led_by(a.broker)[0]
        await move(a, [moved], 2)
        await until(lambda: moved in led_by(b.broker))
        await trio.sleep(120.0)
        for broker_id, each in running.items():
            mine = {left[index] for index in led_by(each.broker)}
            assert deleted_by(stores[broker_id], set(left.values())) == mine
            for index in led_by(each.broker):
                assert await values(each, index) == [b"x"]
