"""Transactions in the whole log: what is open and what was aborted is known, whatever happened to the partition."""

from __future__ import annotations

import attrs
import pytest

from kafscale.config import Durability
from kafscale.config.limits import Limits
from kafscale.errors import KafkaError
from kafscale.formats.footer_reading import read_footer, read_index
from kafscale.formats.segment import HEADER
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction
from kafscale.log.hand_over import acquire_partition, release_partition
from kafscale.log.partition.partition import Partition
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tests.devtools.fakes.memory_log import MemoryLog, append_nowait, memory_log, topic_spec
from tests.devtools.fakes.transactions import NOW_MS, abort, commit, enrolled_nowait, send, transactional

EVERY_MODE = pytest.mark.parametrize("durability", list(Durability))
NEVER_SECONDS = 1e9


def refused(code: int):
    return pytest.raises(KafkaError, check=lambda exc: exc.code == code)


async def four_transactions(partition: Partition) -> None:
    """One aborted, one committed, one aborted whose producer has a new epoch then, and two that stay open.

    offset 0  1  2  3  4  5  6  7  8   9
    id     1  2  3  1A 2C 4  3A 5  -   5
    """
    for producer_id in (1, 2, 3):
        await send(partition, b"of %d" % producer_id, producer_id=producer_id)
    await abort(partition, producer_id=1)
    await commit(partition, producer_id=2)
    await send(partition, b"of 4", producer_id=4)
    await abort(partition, producer_id=3, epoch=1, coordinator_epoch=2)
    await send(partition, b"of 5", producer_id=5)
    _, round = append_nowait(partition, b"plain", now_ms=NOW_MS)
    await round.wait()
    await send(partition, b"more of 5", producer_id=5, sequence=1)


OPEN = (OpenTransaction(4, 0, 5), OpenTransaction(5, 0, 7))
ABORTED = (AbortedTransaction(1, 0, 3, 1), AbortedTransaction(3, 2, 6, 5))


def assert_as_after_four(partition: Partition) -> None:
    assert tuple(partition.transactions.open.values()) == OPEN
    assert (partition.last_stable_offset, partition.high_watermark) == (5, 10)
    zombie = transactional(b"late", producer_id=3, sequence=1)
    with refused(INVALID_PRODUCER_EPOCH):
        enrolled_nowait(partition, zombie)


async def everything_aborted(log: MemoryLog) -> tuple[AbortedTransaction, ...]:
    """What the footers tell, and then the tail."""
    partition, found = log.partition(), []
    for segment in partition.manifest.segments:
        found += (await read_footer(log.store, segment.key)).aborted
    return (*found, *partition.transactions.aborted_by_markers(0, partition.next_offset))


@EVERY_MODE
@pytest.mark.parametrize("flushes", [False, True])
async def test_a_restart_restores_open_and_aborted_transactions(autojump_clock, durability, flushes):
    disk, store = MemoryDisk(), MemoryStore()
    settings = {"durability": durability, "flush_interval_seconds": NEVER_SECONDS}
    async with memory_log(store, disk, **settings) as log:
        await four_transactions(log.partition())
        assert_as_after_four(log.partition())
        assert await everything_aborted(log) == ABORTED
        if flushes:
            await log.log.flusher.flush_all()
        disk = disk.crash()
    async with memory_log(store, disk, leader_epoch=2, **settings) as log:
        partition = log.partition()
        assert_as_after_four(partition)
        assert await everything_aborted(log) == ABORTED
        with refused(TRANSACTION_COORDINATOR_FENCED):
            await abort(partition, producer_id=3, epoch=2, coordinator_epoch=1)
        await send(partition, b"again", producer_id=3, epoch=1)
        await commit(partition, producer_id=4)
        assert partition.last_stable_offset == 7
        await abort(partition, producer_id=5)
        assert partition.last_stable_offset == 10
        await commit(partition, producer_id=3, epoch=1, coordinator_epoch=2)
        assert partition.last_stable_offset == partition.high_watermark == 14


@EVERY_MODE
async def test_a_crash_after_each_batch_leaves_a_legal_state(autojump_clock, durability):
    """With a flush before, and what came after it in the journal."""
    for flushed_count in range(3):
        disk, store = MemoryDisk(), MemoryStore()
        settings = {"durability": durability, "flush_interval_seconds": NEVER_SECONDS}
        async with memory_log(store, disk, **settings) as log:
            partition = log.partition()
            for number in range(3):
                if number == flushed_count:
                    await log.log.flusher.flush_all()
                await (abort(partition) if number == 1 else send(partition, b"x", sequence=number // 2))
            disk = disk.crash()
        async with memory_log(store, disk, leader_epoch=2, **settings) as log:
            assert await everything_aborted(log) == (AbortedTransaction(7, 0, 1, 2),)
            assert list(log.partition().transactions.open.values()) == [OpenTransaction(7, 0, 2, 1)]
            assert log.partition().last_stable_offset == 2


async def test_a_start_from_the_bucket_alone_restores_open_transactions(autojump_clock):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk()) as log:
        await four_transactions(log.partition())
        await log.log.flusher.flush_all()
    for with_checkpoint in (False, True):
        async with memory_log(store, MemoryDisk(), leader_epoch=2 + with_checkpoint) as log:
            assert (log.log.restored.footer_read_count == 0) == with_checkpoint
            assert_as_after_four(log.partition())
            await log.log.manifest_checkpointer.write_if_changed()


async def test_a_segment_that_ends_before_a_marker_tells_the_transaction_as_open(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), segment_bytes=1024, flush_interval_seconds=NEVER_SECONDS) as log:
        partition = log.partition()
        first = enrolled_nowait(partition, transactional(bytes(900)))
        second = enrolled_nowait(partition, transactional(bytes(1000), sequence=1))
        await abort(partition)
        assert first.round is second.round is not None
        await log.log.flusher.flush_all()
        footers = [await read_footer(log.store, each.key) for each in partition.manifest.segments]
        assert [footer.open_transactions for footer in footers] == [(OpenTransaction(7, 0, 0),)] * 2 + [()]
        assert [footer.aborted for footer in footers] == [(), (), (AbortedTransaction(7, 0, 2, 3),)]
        assert [(each.stable_end, each.aborted_count) for each in partition.manifest.segments] == [
            (0, 0),
            (0, 0),
            (3, 1),
        ]
        assert [footer.version for footer in footers] == [3, 3, 3]


async def test_an_index_that_is_lost_is_rebuilt_with_its_transactions(autojump_clock):
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk) as log:
        await four_transactions(log.partition())
        await log.log.flusher.flush_all()
        key = log.partition().manifest.segments[-1].key
        await store.delete([key.of_kind("index").key])
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        assert_as_after_four(log.partition())
        footer = await read_index(store, key)
        assert footer is not None
        assert footer.open_transactions == OPEN


@pytest.mark.parametrize("is_index_there", [True, False])
async def test_a_footer_that_is_lost_is_made_again_with_its_transactions(autojump_clock, is_index_there):
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk) as log:
        await send(log.partition(), b"begun before", producer_id=9)
        await log.log.flusher.flush_all()
        await four_transactions_behind(log)
        key = log.partition().manifest.segments[-1].key
    before = await read_footer(store, key)
    content = bytearray((await store.get(key.key)).data)
    content[-10:] = bytes(10)
    await store.put(key.key, [content])
    if not is_index_there:
        await store.delete([key.of_kind("index").key])
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        assert not log.partition().quarantined
        found = await read_footer(store, key)
        assert (found.aborted, found.open_transactions) == (before.aborted, before.open_transactions)
        assert [each.producer_id for each in found.open_transactions] == [4, 5]
        assert [each.first_offset for each in found.aborted] == [0, 1]
        assert found.version == 3
        assert (await store.get(key.key)).data[: HEADER.size][5] == 3


async def four_transactions_behind(log: MemoryLog) -> None:
    """As `four_transactions`, with the end of one that began before, and flushed."""
    partition = log.partition()
    for producer_id in (1, 4, 5):
        await send(partition, b"x", producer_id=producer_id)
    await abort(partition, producer_id=9)
    await abort(partition, producer_id=1)
    await log.log.flusher.flush_all()


@EVERY_MODE
async def test_a_partition_that_is_handed_over_takes_its_transactions_along(autojump_clock, durability):
    spec = topic_spec(2)
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[spec], durability=durability) as log:
        await four_transactions(log.partition())
        await release_partition(log.log, log.partition())
        partition = await acquire_partition(log.log, attrs.evolve(spec, leader_epochs={0: 5, 1: 5}), 0)
        assert_as_after_four(partition)
        await commit(partition, producer_id=4)
        assert partition.last_stable_offset == 7


@pytest.mark.parametrize("durability", [Durability.S3_WAL, Durability.SEGMENT])
async def test_a_broker_taking_over_with_an_empty_disk_restores_open_transactions(autojump_clock, durability):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), durability=durability) as log:
        await four_transactions(log.partition())
    async with memory_log(store, MemoryDisk(), leader_epoch=2, durability=durability) as log:
        assert_as_after_four(log.partition())
        assert await everything_aborted(log) == ABORTED


# ---- appends --------------------------------------------------------------------------------------------------------


async def test_batches_to_unenrolled_partitions_are_refused_without_effect(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        partition = log.partition()
        with refused(INVALID_TXN_STATE):
            enrolled_nowait(partition, transactional(b"x"), is_enrolled=False)
        assert (partition.next_offset, partition.transactions.open) == (0, {})
        assert log.log.pool.used_bytes == 0
        enrolled_nowait(partition, transactional(b"x"))
        enrolled_nowait(partition, transactional(b"y", sequence=1), is_enrolled=False)
        repeated = enrolled_nowait(partition, transactional(b"x"), is_enrolled=False)
        assert (repeated.base_offset, partition.next_offset) == (0, 2)


async def test_sequences_continue_after_a_marker_and_restart_in_a_later_epoch(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        partition = log.partition()
        await send(partition, b"a", b"b")
        await commit(partition)
        with refused(OUT_OF_ORDER_SEQUENCE_NUMBER):
            await send(partition, b"c", sequence=0)
        await send(partition, b"c", sequence=2)
        await commit(partition, epoch=1)
        with refused(OUT_OF_ORDER_SEQUENCE_NUMBER):
            await send(partition, b"d", epoch=1, sequence=1)
        assert await send(partition, b"d", epoch=1) == 5


async def test_a_marker_that_is_repeated_is_not_written_again(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        partition = log.partition()
        await send(partition, b"a")
        for _ in range(3):
            await abort(partition)
        assert partition.next_offset == 2


async def test_a_marker_to_a_partition_that_was_closed_is_refused_as_a_produce_is(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        partition = log.partition()
        await send(partition, b"a")
        log.log.close_topic("t")
        with refused(UNKNOWN_TOPIC_OR_PARTITION):
            await commit(partition)


async def test_producers_with_an_open_transaction_are_forgotten_last(autojump_clock):
    limits = Limits(max_producer_ids_per_partition_count=2)
    async with memory_log(MemoryStore(), MemoryDisk(), limits=limits) as log:
        partition = log.partition()
        await send(partition, b"a", producer_id=1)
        for producer_id in (2, 3, 4):
            await send(partition, b"b", producer_id=producer_id)
            await commit(partition, producer_id=producer_id)
        assert list(partition.producers.producers) == [1, 4]
        partition.producers.expire(1 << 60)
        assert list(partition.producers.producers) == [1]
