"""Every reader of segments over every kind of damage to one half of a pair: none fails, none returns what is wrong.

The damage is there when the broker starts, or comes while it runs. What a reader must leave behind is a log of which
all that is good can be read, in a bucket from which nothing is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio

from kafscale.formats.segment import decode_footer
from kafscale.log.bucket.deletion import OrphanCollector
from kafscale.log.check.verification import Verifier
from kafscale.log.rewrite.retention import Retention
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import NOW_MS, TOPIC, TOPIC_ID, MemoryLog, memory_log, topic_spec

SEGMENTS_COUNT = 20  # so that those behind the damaged one are merged; record n is alone in its own, of NOW_MS + n
DAMAGED, FOREIGN = 2, 6  # base offsets
RETAINED_FROM = 5
RETENTION_MS = 1000
FAR_MS = 1 << 50

KFS_REBUILT = ["cut off", "without footer"]
KFS_LOST = ["empty", "half", "garbage", "foreign"]
INDEX = ["half", "foreign", "missing"]
DAMAGES = [("kfs", kind) for kind in [*KFS_REBUILT, *KFS_LOST]] + [("index", kind) for kind in INDEX]
STATES = [(half, kind, when) for half, kind in DAMAGES for when in ("at the start", "while it runs")]
STATES.append(("kfs", "missing", "at the start"))  # what is left is an orphan `.index`


def key_of(base_offset: int, half: str, epoch: int = 1) -> SegmentKey:
    return SegmentKey(topic=TOPIC, topic_id=TOPIC_ID, partition=0, base_offset=base_offset, epoch=epoch, kind=half)


@pytest.fixture(scope="module")
def objects() -> Mapping[str, bytes]:
    """A whole bucket; it takes as long to write as all the rest of a case."""
    return trio.run(_write)


async def _write() -> Mapping[str, bytes]:
    store = MemoryStore()
    async with memory_log(store, MemoryDisk()) as log:
        for number in range(SEGMENTS_COUNT):
            await log.append(log.partition(), b"%d" % number, timestamps_ms=[NOW_MS + number], now_ms=FAR_MS)
            await log.log.flusher.flush_all()
    return {name: bytes((await store.get(name)).data) for name in await names_in(store)}


async def damage(store: MemoryStore, half: str, kind: str) -> None:
    key = key_of(DAMAGED, half).key
    content = bytes((await store.get(key)).data)
    foreign = bytes((await store.get(key_of(FOREIGN, half).key)).data)
    body_end = decode_footer(content, key).end_position if half == "kfs" else len(content)
    changed = {
        "empty": b"",
        "half": content[: body_end // 2],
        "cut off": content[:-1],
        "without footer": content[:body_end],
        "garbage": b"garbage" * 100,
        "foreign": foreign,
    }
    if kind == "missing":
        await store.delete([key])
    else:
        await store.put(key, [changed[kind]])


async def names_in(store: MemoryStore) -> set[str]:
    return {info.key async for page in store.list("default/") for info in page}


def good_offsets(half: str, kind: str) -> list[int]:
    is_lost = half == "kfs" and kind not in KFS_REBUILT
    return [offset for offset in range(SEGMENTS_COUNT) if not (is_lost and offset == DAMAGED)]


async def expect(log: MemoryLog, offsets: list[int], *, first: int = 0) -> None:
    """Consumers that begin at `first` read these."""
    records = await log.records(log.partition(), first)
    assert [(record.offset, record.value) for record in records] == [(offset, b"%d" % offset) for offset in offsets]


# ---- the readers: each is given a log, and the offsets that are good ------------------------------------------------


async def fetch(log: MemoryLog, good: list[int]) -> None:
    await expect(log, good)


async def fetch_from_the_damaged_segment(log: MemoryLog, good: list[int]) -> None:
    await expect(log, [offset for offset in good if offset >= DAMAGED], first=DAMAGED)


async def read_ahead(log: MemoryLog, good: list[int]) -> None:
    """A consumer that goes through the log in order, a batch at a time: what comes next is read ahead of it."""
    records = await log.records(log.partition(), max_bytes=1)
    assert [record.offset for record in records] == good


async def look_up_by_time(log: MemoryLog, good: list[int]) -> None:
    for wanted in (0, DAMAGED, DAMAGED + 1, SEGMENTS_COUNT - 1):
        found = await log.log.reader.find_timestamp(log.partition(), NOW_MS + wanted)
        assert found is not None
        assert found.offset == min(offset for offset in good if offset >= wanted)
    assert await log.log.reader.find_timestamp(log.partition(), NOW_MS + SEGMENTS_COUNT) is None


async def look_up_of_the_newest_time(log: MemoryLog, good: list[int]) -> None:
    found = await log.log.reader.find_max_timestamp(log.partition())
    assert found is not None
    assert found.offset == good[-1]


async def merge(log: MemoryLog, good: list[int]) -> None:
    with trio.move_on_after(600):
        await log.log.merger.run(list(log.log.partitions.values()))
    assert log.log.merger.merges_count.value > 0


async def retention(log: MemoryLog, good: list[int]) -> None:
    async def set_log_start_offset(topic_id: bytes, index: int, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        log.partition(index).delete_records(offset)

    retention = Retention(
        store=log.store,
        deleter=log.log.deleter,
        examiner=log.log.reader.examiner,
        partitions=lambda: list(log.log.partitions.values()),
        set_log_start_offset=set_log_start_offset,
        interval_seconds=1,
        now_ms=lambda: NOW_MS + RETENTION_MS + RETAINED_FROM,
    )
    for _ in range(2):  # what is damaged is settled by the first, and passed by the second
        await retention.enforce()
    assert log.partition().log_start_offset == RETAINED_FROM


async def collection_of_orphans(log: MemoryLog, good: list[int]) -> None:
    """None is old enough to be deleted; that they are is shown with the collector."""
    collector = OrphanCollector(
        store=log.store,
        namespace="default",
        find_partition=log.log.partition,
        deleted_topics=list,
        on_gone=_forgotten,
        interval_seconds=1,
        grace_seconds=1e9,
        now_ms=lambda: NOW_MS,
    )
    for _ in range(2):
        await collector.collect()


async def _forgotten(topic_ids: object) -> None:
    await trio.lowlevel.checkpoint()


async def verify(log: MemoryLog, good: list[int]) -> None:
    verifier = Verifier(store=log.store, namespace="default")
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    assert verifier.report.segments >= len(good)


async def checkpoint_and_restore(log: MemoryLog, good: list[int]) -> None:
    """The next start, which begins with what the last one had written down of the manifests."""
    await log.log.manifest_checkpointer.write_if_changed()
    async with memory_log(log.store, MemoryDisk(), leader_epoch=3) as restarted:
        assert restarted.partition().high_watermark == SEGMENTS_COUNT
        await expect(restarted, good)


READERS = [
    fetch,
    fetch_from_the_damaged_segment,
    read_ahead,
    look_up_by_time,
    look_up_of_the_newest_time,
    merge,
    retention,
    collection_of_orphans,
    verify,
    checkpoint_and_restore,
]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@pytest.mark.parametrize(("half", "kind", "when"), [pytest.param(*state, id=" ".join(state)) for state in STATES])
async def test_no_reader_minds_a_damaged_half(autojump_clock, objects, reader, half, kind, when) -> None:
    store = MemoryStore()
    for name, content in objects.items():
        await store.put(name, [content])
    if when == "at the start":
        await damage(store, half, kind)
    topics = [topic_spec(retention_ms=RETENTION_MS, file_delete_delay_ms=1 << 40)]
    async with memory_log(store, MemoryDisk(), topics=topics, leader_epoch=2, segment_merge_bytes=1 << 20) as log:
        if when == "while it runs":
            await damage(store, half, kind)
        before = await names_in(store)
        good = good_offsets(half, kind)
        await reader(log, good)
        first = log.partition().log_start_offset
        await expect(log, [offset for offset in good if offset >= first], first=first)
        assert before <= await names_in(store)
        assert await log.append(log.partition(), b"next") == SEGMENTS_COUNT
