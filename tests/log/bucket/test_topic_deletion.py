"""The objects of a deleted topic stay for `file.delete.delay.ms`, also over a crash, and then go."""

from __future__ import annotations

import attrs
import trio
import trio.testing

from kafscale.cluster.registries.topics import NewTopic
from kafscale.log.bucket.deletion import BuriedTopic, TopicDeleter
from kafscale.store.base import ObjectStore
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings
from tests.devtools.fakes.memory_log import append_nowait

DELAY_SECONDS = 300.0  # --segment-delete-delay by default
NO_ORPHANS = memory_settings(orphan_check_interval_seconds=1e9)


async def create_and_delete(running: MemoryBroker, name: str, **overrides: str) -> None:
    """A topic with one segment in the bucket, deleted."""
    services = running.broker.services
    await services.topics.create([NewTopic(name=name, partition_count=1, overrides=overrides)])
    _, round = append_nowait(services.log.by_name[name][0], b"x")
    await round.wait()
    await services.log.flusher.flush_all()
    await services.topics.delete([name])


async def topics_in(store: ObjectStore) -> set[str]:
    return {info.key.split("/")[1] async for page in store.list("default/") for info in page}


async def test_objects_of_a_deleted_topic_stay_for_the_delay(autojump_clock: trio.testing.MockClock) -> None:
    """They used to go at once, under the Spark jobs that had planned to read them."""
    parts = memory_parts()
    async with memory_broker(parts, NO_ORPHANS) as running:
        await create_and_delete(running, "a")
        await create_and_delete(running, "b", **{"file.delete.delay.ms": "1000"})
        await trio.sleep(0.9)
        assert await topics_in(parts.store) == {"a", "b"}
        await trio.sleep(0.2)
        assert await topics_in(parts.store) == {"a"}
        await trio.sleep(DELAY_SECONDS - 2)
        assert await topics_in(parts.store) == {"a"}
        await trio.sleep(2)
        assert await topics_in(parts.store) == set()


async def test_a_crash_within_the_delay_neither_hurries_nor_forgets_the_deletion(
    autojump_clock: trio.testing.MockClock,
) -> None:
    parts = memory_parts()
    with trio.CancelScope() as crash:
        async with memory_broker(parts, NO_ORPHANS) as running:
            await create_and_delete(running, "a")
            crash.cancel()
            await trio.lowlevel.checkpoint()
    assert isinstance(parts.disk, MemoryDisk)
    async with memory_broker(attrs.evolve(parts, disk=parts.disk.crash()), NO_ORPHANS) as running:
        await trio.sleep(DELAY_SECONDS - 10)
        assert await topics_in(parts.store) == {"a"}
        await trio.sleep(11)
        assert await topics_in(parts.store) == set()


async def test_orphans_of_a_deleted_topic_are_not_collected_before_its_delay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    settings = memory_settings(orphan_check_interval_seconds=10.0, orphan_grace_seconds=0.0)
    parts = memory_parts()
    async with memory_broker(parts, settings) as running:
        await create_and_delete(running, "a", **{"file.delete.delay.ms": "100000"})
        await trio.sleep(99)
        assert await topics_in(parts.store) == {"a"}
        await trio.sleep(2)
        assert await topics_in(parts.store) == set()


async def test_deleted_topics_go_in_order_of_their_deadlines_and_recreated_topics_stay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    deleted: list[tuple[str, float]] = []

    async def delete_objects(topic: BuriedTopic) -> None:
        await trio.sleep(1)
        deleted.append((topic.name, trio.current_time()))

    deleter = TopicDeleter(delete_objects=delete_objects, is_deleted=lambda topic_id: topic_id != b"again")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deleter.run)
        await trio.testing.wait_all_tasks_blocked()
        for name, delay_ms in (("late", 5000), ("again", 2000), ("early", 3000), ("overdue", -1)):
            deleter.bury(BuriedTopic(name=name, topic_id=name.encode()), delay_ms)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert deleted == [("overdue", 1.0), ("early", 4.0), ("late", 6.0)]
