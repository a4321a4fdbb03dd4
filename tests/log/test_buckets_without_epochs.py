"""A bucket and a write-ahead log of the version before, whose segments' keys have no epochs.

Made by that version's code: three lives of one broker, flushes of two records each, one merge, a checkpoint of the
manifests, and a last record that is in the write-ahead log only. Record n has the value n.
"""

import tarfile
from pathlib import Path

from kafscale.store.memory import MemoryStore
from kafscale.store.paths import EPOCH_UNKNOWN, parse_segment_key
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import memory_log, merge, topic_spec
from tests.devtools.history.bucket import read_bucket
from tests.log.keyed_log import append_segments, fetched

BUCKET = Path(__file__).with_name("bucket-without-epochs.tar.gz")
COUNT = 21
VALUES = [b"%d" % number for number in range(COUNT)]


async def opened() -> tuple[MemoryStore, MemoryDisk]:
    store, disk = MemoryStore(), MemoryDisk()
    with tarfile.open(BUCKET) as archive:
        for member in archive:
            place, _, name = member.name.partition("/")
            data = archive.extractfile(member).read()
            if place == "bucket":
                await store.put(name, [data])
            else:
                await disk.create(name, len(data), b"")
                await disk.write_and_sync(name, [data], 0)
    return store, disk


async def test_a_bucket_without_epochs_opens_and_is_read_appended_to_and_merged(autojump_clock, caplog):
    store, disk = await opened()
    async with memory_log(store, disk, leader_epoch=3) as log:
        assert "version 1 of a checkpoint of manifests is not known" in caplog.text  # it costs only time
        assert {each.epoch for each in log.partition().manifest.segments} == {EPOCH_UNKNOWN}
        assert await log.values(log.partition()) == VALUES
        assert log.partition().producers.producers[1].batches[-1].last_sequence == COUNT - 1
        await log.append(log.partition(), b"next")
        await log.log.flusher.flush_all()
        assert await merge(log)
        assert await log.values(log.partition()) == [*VALUES, b"next"]
        await log.log.manifest_checkpointer.write_if_changed()
    assert [read.value.encode() for read in (await read_bucket(store, "default"))["t-0"].reads] == [*VALUES, b"next"]
    async with memory_log(store, MemoryDisk(), leader_epoch=4) as log:
        assert [each.rank for each in log.partition().manifest.segments] == [(3, 2)]
        assert log.log.restored.vouched_segment_count == 1
        assert log.log.late_count() == 0
        assert await log.values(log.partition()) == [*VALUES, b"next"]


async def test_a_segment_written_late_by_a_broker_of_the_previous_version_is_ignored(autojump_clock):
    store, _ = await opened()
    keys = [parse_segment_key(info.key) async for page in store.list("default/") for info in page]
    last = max((key for key in keys if key.kind == "kfs"), key=lambda key: key.base_offset)
    content = (await store.get(last.key)).data
    checkpoints = [info.key async for page in store.list("_kafscale/") for info in page]
    await store.delete([last.key, last.of_kind("index").key, *checkpoints])  # it is still on its way
    async with memory_log(store, MemoryDisk(), leader_epoch=3) as log:
        end = log.partition().next_offset
        assert end == last.base_offset
        await log.append(log.partition(), b"new")
        await log.log.flusher.flush_all()
        await store.put(last.key, [content])
    expected = [*VALUES[:end], b"new"]
    assert [read.value.encode() for read in (await read_bucket(store, "default"))["t-0"].reads] == expected
    async with memory_log(store, MemoryDisk(), leader_epoch=4) as log:
        assert await log.values(log.partition()) == expected
        assert log.log.late_count() == 1


async def test_a_bucket_without_epochs_reads_the_same_after_compaction_and_merges(autojump_clock):
    """Its own records have no keys, so that a topic that becomes compacted loses them; what came since stays.

    The last one of the log stays, too, as that of the last batch of what is compacted. A restart reads the same.
    """
    store, disk = await opened()
    spec = topic_spec(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    async with memory_log(store, disk, leader_epoch=3, topics=[spec]) as log:
        await log.log.flusher.flush_all()
        assert await merge(log, count=2)
        assert await log.values(log.partition()) == VALUES
        await append_segments(log, ["a=1", "b=1"], ["a=2"], ["b=2"])
        await log.log.compactor.compact_all(lambda: [log.partition()])
        assert log.log.compactor.rounds_count.value == 1
        kept = await fetched(log)
        assert kept == {COUNT + 2: "a=2", COUNT + 3: "b=2"}
        assert await merge(log)
        assert await fetched(log) == kept
        assert log.partition().next_offset == COUNT + 4
        assert log.partition().producers.producers[1].batches[-1].last_sequence == COUNT - 1
    assert [read.offset for read in (await read_bucket(store, "default"))["t-0"].reads] == list(kept)
    for restarted in (disk, MemoryDisk()):
        async with memory_log(store, restarted, leader_epoch=4, topics=[spec]) as log:
            assert await fetched(log) == kept
            assert (log.partition().next_offset, log.log.late_count()) == (COUNT + 4, 0)
