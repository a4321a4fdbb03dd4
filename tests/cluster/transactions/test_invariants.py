"""What holds of transactions at any moment, and whatever is lost: a test for each sentence of the design."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio

from kafscale.cluster.coordinator.entries import EndEntry
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.ledger import ProducerIdentity
from kafscale.cluster.transactions.service import TransactionService
from kafscale.cluster.transactions.values import TransactionState, decode_state, now_ms
from kafscale.config import Durability
from kafscale.errors import KafkaError
from kafscale.log.partition.partition import Partition
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes as e
from tests.cluster.transactions.coordination import (
    DATA,
    NEWEST,
    STATE,
    STATE_COUNT,
    TOPICS,
    coordinating,
    end,
    init,
    states,
    write,
)
from tests.devtools.fakes.memory_log import MemoryLog, memory_log
from tests.devtools.fakes.transactions import marker_of, read_committed, send

S = TransactionState
EVERY_MODE = pytest.mark.parametrize("durability", list(Durability))
IN_THE_BUCKET = pytest.mark.parametrize("durability", [Durability.S3_WAL, Durability.SEGMENT])
MOMENTS_COUNT = 16
NEVER_SECONDS = 1e9
Act = Callable[[TransactionService, MemoryLog, ProducerIdentity], Awaitable[None]]


def data_partitions(log: MemoryLog) -> list[Partition]:
    return [log.partition(index, name=DATA) for index in range(3)]


async def enrolled(log: MemoryLog) -> dict[int, frozenset[TopicPartition]]:
    """Return what the log says of each producer id: the partitions that were ever enrolled since its last COMPLETE."""
    found: dict[int, frozenset[TopicPartition]] = {}
    for index in range(STATE_COUNT):
        for record in await log.records(log.partition(index, name=STATE)):
            state = decode_state(record)
            assert state is not None
            assert state.value is not None
            named = state.value.transaction_partitions or ()
            found[state.value.producer_id] = frozenset(
                TopicPartition(each.topic, partition) for each in named for partition in each.partition_ids
            )
    return found


async def copied(store: FaultyStore) -> MemoryStore:
    copy = MemoryStore()
    async for page in store.store.list(""):
        for info in page:
            await copy.put(info.key, [bytes((await store.store.get(info.key)).data)])
    return copy


@attrs.frozen
class Crashed:
    """What is left, and which last stable offsets anybody may have been shown before."""

    store: MemoryStore
    disk: MemoryDisk
    settings: dict[str, object]
    shown: list[int]


async def crash(durability: Durability, moment: int, act: Act) -> Crashed:
    """Kill at a moment of what `act` does, when a write takes half a second."""
    disk, store = MemoryDisk(), FaultyStore(MemoryStore())
    settings = {"topics": TOPICS, "durability": durability, "flush_interval_seconds": NEVER_SECONDS}
    async with memory_log(store, disk, **settings) as log, coordinating(log) as transactions:
        who = await init(transactions)
        disk.sync_seconds = 0.5
        store.delay(On("put*"), 0.5, after_effect=moment % 2 == 1)
        step_seconds = 0.45 if durability is Durability.SEGMENT else 0.15  # a flush after the other, or one round
        with trio.move_on_after(moment * step_seconds + 0.05):
            await act(transactions, log, who)
        shown = [each.last_stable_offset for each in data_partitions(log)]
        return Crashed(await copied(store), disk.crash(torn_bytes=moment * 60), settings | {"leader_epoch": 2}, shown)


async def produce(transactions: TransactionService, log: MemoryLog, who: ProducerIdentity) -> None:
    """Write to partitions as Produce 12 does: enrolment and batch without an await between, where that may be."""
    for partition in data_partitions(log):
        at = frozenset({TopicPartition(DATA, partition.index)})
        if not transactions.internal.is_one_log:
            assert set((await transactions.enrol(who, at, transaction_version=NEWEST)).values()) == {e.NONE}
        assert set(transactions.enrol_nowait(who, at, transaction_version=NEWEST).values()) == {e.NONE}
        await send(partition, b"v", producer_id=who.producer_id, epoch=who.producer_epoch)


async def produce_and_end(transactions: TransactionService, log: MemoryLog, who: ProducerIdentity) -> None:
    await produce(transactions, log, who)
    await end(transactions, who)


async def produce_and_end_beside_others(
    transactions: TransactionService, log: MemoryLog, who: ProducerIdentity
) -> None:
    """What others have written becomes durable while the markers are not."""
    await produce(transactions, log, who)
    for partition in data_partitions(log):
        log.append_nowait(partition, b"of somebody else")
    await trio.sleep(0.1)
    await end(transactions, who)


@EVERY_MODE
async def test_where_data_is_durable_its_enrolment_is(autojump_clock, durability):
    have_data = set()
    for moment in range(MOMENTS_COUNT):
        left = await crash(durability, moment, produce)
        async with memory_log(left.store, left.disk, **left.settings) as log:
            known = await enrolled(log)
            for partition in data_partitions(log):
                for producer_id in partition.transactions.open:
                    assert TopicPartition(DATA, partition.index) in known[producer_id]
                    have_data.add((moment, partition.index))
    assert have_data, "no crash left any data"


@EVERY_MODE
async def test_a_decision_is_durable_before_its_markers(autojump_clock, durability):
    marked = set()
    for moment in range(MOMENTS_COUNT):
        left = await crash(durability, moment + 6, produce_and_end)
        async with memory_log(left.store, left.disk, **left.settings) as log:
            found = await states(log)
            for partition in data_partitions(log):
                if partition.next_offset > 1:  # a batch of one record, and the marker
                    assert S.PREPARE_COMMIT in found
                    marked.add(moment)
            if S.COMPLETE_COMMIT in found:
                assert [each.next_offset for each in data_partitions(log)] == [2, 2, 2]
    assert marked, "no crash left a marker"


@EVERY_MODE
async def test_the_last_stable_offset_never_goes_back(autojump_clock, durability):
    for moment in range(MOMENTS_COUNT):
        left = await crash(durability, moment + 6, produce_and_end_beside_others)
        async with memory_log(left.store, left.disk, **left.settings) as log:
            reopened = [each.last_stable_offset for each in data_partitions(log)]
            assert all(now >= before for now, before in zip(reopened, left.shown, strict=True))
            async with coordinating(log) as transactions:
                who = await init(transactions)
                for _ in range(3):
                    for partition in data_partitions(log):
                        await write(transactions, log, who, partition.index, b"v")
                    before, reopened = reopened, [each.last_stable_offset for each in data_partitions(log)]
                    assert all(now >= then for now, then in zip(reopened, before, strict=True))
                    who = await end(transactions, who, committed=False)
                    before, reopened = reopened, [each.last_stable_offset for each in data_partitions(log)]
                    assert all(now > then for now, then in zip(reopened, before, strict=True))


@EVERY_MODE
async def test_markers_are_idempotent_by_their_epochs(autojump_clock, durability):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS, durability=durability) as log:
        async with coordinating(log) as transactions:
            who = await init(transactions)
            await write(transactions, log, who, 0, b"v")
            partition = log.partition(0, name=DATA)
            marker = marker_of(True, producer_id=who.producer_id, epoch=who.producer_epoch + 1, coordinator_epoch=4)
            for _ in range(3):
                await (await transactions.internal.append([EndEntry(partition, marker)], now_ms())).wait()
            assert (partition.next_offset, partition.last_stable_offset) == (2, 2)
            older = attrs.evolve(marker, producer_epoch=marker.producer_epoch - 1)
            former = attrs.evolve(marker, coordinator_epoch=3, is_commit=False)
            for refused, code in ((older, e.INVALID_PRODUCER_EPOCH), (former, e.TRANSACTION_COORDINATOR_FENCED)):
                with pytest.raises(KafkaError, check=lambda exc, code=code: exc.code == code):
                    await transactions.internal.append([EndEntry(partition, refused)], now_ms())
            assert partition.next_offset == 2


@EVERY_MODE
async def test_an_end_that_is_repeated_is_recognised(autojump_clock, durability):
    """The producer has lost the answer; it asks with the epoch that it knows, of the same broker and of the next."""
    disk, store = MemoryDisk(), MemoryStore()
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(store, disk, **settings) as log, coordinating(log) as transactions:
        who = await init(transactions)
        await write(transactions, log, who, 0, b"v")
        told = await end(transactions, who)
        assert await end(transactions, who) == told
        reply = await transactions.end(who, committed=False, transaction_version=NEWEST)
        assert reply.error_code == e.INVALID_TXN_STATE
        await trio.sleep(1.0)  # that it is complete is written by then, and no marker again
    async with memory_log(store, disk, **settings, leader_epoch=2) as log, coordinating(log) as transactions:
        assert await end(transactions, who) == told
        reply = await transactions.end(who, committed=False, transaction_version=NEWEST)
        assert reply.error_code == e.INVALID_TXN_STATE
        assert log.partition(0, name=DATA).next_offset == 2
        zombie = attrs.evolve(who, producer_epoch=who.producer_epoch - 1)
        reply = await transactions.end(zombie, committed=False, transaction_version=NEWEST)
        assert reply.error_code == e.PRODUCER_FENCED


@IN_THE_BUCKET
async def test_a_lost_data_directory_loses_nothing_of_transactions(autojump_clock, durability):
    store = MemoryStore()
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(store, MemoryDisk(), **settings) as log, coordinating(log) as transactions:
        who = await init(transactions)
        for committed in (True, False):
            for index in range(3):
                await write(transactions, log, who, index, b"%d" % committed)
            who = await end(transactions, who, committed=committed)
        await write(transactions, log, who, 0, b"open")
    async with memory_log(store, MemoryDisk(), **settings, leader_epoch=2) as log, coordinating(log) as transactions:
        found = [await read_committed(log, partition) for partition in data_partitions(log)]
        assert found == [[b"1"]] * 3
        await write(transactions, log, who, 1, b"goes on")
        await end(transactions, who)
        found = [await read_committed(log, partition) for partition in data_partitions(log)]
        assert found == [[b"1", b"open"], [b"1", b"goes on"], [b"1"]]


@EVERY_MODE
async def test_a_lost_index_loses_nothing_of_transactions(autojump_clock, durability):
    """The footers with what was aborted and what is open are in the segments too."""
    store, disk = MemoryStore(), MemoryDisk()
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(store, disk, **settings) as log, coordinating(log) as transactions:
        who = await init(transactions)
        for committed in (True, False):
            await write(transactions, log, who, 0, b"%d" % committed)
            who = await end(transactions, who, committed=committed)
        await write(transactions, log, who, 0, b"open")
        for partition in log.log.partitions.values():
            await log.log.flusher.settle(partition)
    lost = [info.key async for page in store.list("") for info in page if info.key.endswith(".index")]
    assert lost
    for key in lost:
        await store.delete([key])
    async with memory_log(store, MemoryDisk(), **settings, leader_epoch=2) as log, coordinating(log) as transactions:
        partition = log.partition(0, name=DATA)
        assert await read_committed(log, partition) == [b"1"]
        assert partition.last_stable_offset < partition.high_watermark
        await end(transactions, who)
        assert await read_committed(log, partition) == [b"1", b"open"]
