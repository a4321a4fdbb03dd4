"""Transactional ids on a real log: what is answered is durable, and whatever a crash leaves is finished."""

from __future__ import annotations

import time

import attrs
import pytest
import trio

from kafscale.cluster.coordinator.entries import RecordsEntry
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.ledger import InitProducerId, ProducerIdentity
from kafscale.cluster.transactions.transaction import LAST_GIVEN_EPOCH, ProducerTransaction
from kafscale.cluster.transactions.values import StateRecord, TransactionState, decode_state, encode_state
from kafscale.config import Durability
from kafscale.errors import KafkaError
from kafscale.log.hand_over import acquire_partition, release_partition
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes as e
from tests.cluster.transactions.coordination import (
    DATA,
    NEWEST,
    STATE,
    TOPICS,
    abort_hanging,
    add,
    coordinating,
    end,
    init,
    states,
    write,
)
from tests.devtools.fakes.memory_log import memory_log
from tests.devtools.fakes.transactions import read_committed, send

S = TransactionState
EVERY_MODE = pytest.mark.parametrize("durability", list(Durability))
ONE_LOG = pytest.mark.parametrize("durability", [Durability.WAL, Durability.S3_WAL])
VERSIONS = pytest.mark.parametrize("version", [0, NEWEST])
NEVER_SECONDS = 1e9


def refused(code: int):
    return pytest.raises(KafkaError, check=lambda exc: exc.code == code)


@EVERY_MODE
@VERSIONS
async def test_a_producer_commits_and_aborts_and_continues_after_a_restart(autojump_clock, durability, version):
    disk, store = MemoryDisk(), MemoryStore()
    async with memory_log(store, disk, topics=TOPICS, durability=durability) as log, coordinating(log) as transactions:
        who = await init(transactions)
        for committed in (True, False):
            for index in (0, 1):
                await write(transactions, log, who, index, b"%d" % committed)
            who = await end(transactions, who, committed=committed, version=version)
            await trio.sleep(1.0)  # that it is complete is written later
        assert who.producer_epoch == (2 if version else 0)
        assert [await read_committed(log, log.partition(index, name=DATA)) for index in (0, 1)] == [[b"1"], [b"1"]]
        disk = disk.crash()
    settings = {"topics": TOPICS, "durability": durability, "leader_epoch": 2}
    async with memory_log(store, disk, **settings) as log, coordinating(log) as transactions:
        await write(transactions, log, who, 2, b"again")
        await end(transactions, who, version=version)
        assert await read_committed(log, log.partition(2, name=DATA)) == [b"again"]
        await trio.sleep(1.0)
        kinds = [S.PREPARE_COMMIT, S.COMPLETE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_ABORT]
        found = [each for each in await states(log) if each is not S.ONGOING]
        assert found == [S.EMPTY, *kinds, *kinds[:2]]


@ONE_LOG
async def test_a_producer_that_proceeds_at_once_skips_the_completion_records(autojump_clock, durability):
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(MemoryStore(), MemoryDisk(), **settings) as log, coordinating(log) as transactions:
        who = await init(transactions)
        for _ in range(3):
            await write(transactions, log, who, 0, b"v")
            who = await end(transactions, who)
        begun_and_decided = [S.ONGOING, S.PREPARE_COMMIT]
        assert await states(log) == [S.EMPTY, *begun_and_decided * 3]
        await trio.sleep(1.0)
        assert await states(log) == [S.EMPTY, *begun_and_decided * 3, S.COMPLETE_COMMIT]


@ONE_LOG
@VERSIONS
async def test_a_decided_transaction_is_completed_by_the_next_coordinator(autojump_clock, durability, version):
    disk, store = MemoryDisk(), MemoryStore()
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(store, disk, **settings) as log, coordinating(log) as transactions:
        who = await init(transactions)
        await write(transactions, log, who, 0, b"v")
        who = await end(transactions, who, version=version)
        disk = disk.crash()
    async with memory_log(store, disk, **settings, leader_epoch=2) as log, coordinating(log) as transactions:
        assert await states(log) == [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.COMPLETE_COMMIT]
        await write(transactions, log, who, 0, b"w")
        await end(transactions, who, version=version)
        assert await read_committed(log, log.partition(0, name=DATA)) == [b"v", b"w"]


@ONE_LOG
async def test_the_end_of_a_transaction_takes_one_round(autojump_clock, durability):
    disk, store = MemoryDisk(), FaultyStore(MemoryStore())
    async with memory_log(store, disk, topics=TOPICS, durability=durability) as log, coordinating(log) as transactions:
        who = await init(transactions)
        for index in range(3):
            await write(transactions, log, who, index, b"v")
        disk.sync_seconds = 1.0
        store.delay(On("put*"), 1.0)
        began = trio.current_time()
        await end(transactions, who)
        assert 1.0 <= trio.current_time() - began < 1.5
        assert not any(log.partition(index, name=DATA).transactions.open for index in range(3))


@EVERY_MODE
async def test_sequential_transactions_never_get_concurrent_transactions_errors(autojump_clock, durability):
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(MemoryStore(), MemoryDisk(), **settings) as log, coordinating(log) as transactions:
        who = await init(transactions)
        for number in range(5):
            await write(transactions, log, who, number % 3, b"v")
            who = await end(transactions, who, committed=number % 2 == 0)
        await write(transactions, log, who, 0, b"left open")
        again = await init(transactions)
        assert again.producer_epoch > who.producer_epoch
        assert not log.partition(0, name=DATA).transactions.open


@EVERY_MODE
async def test_a_zombie_is_fenced(autojump_clock, durability):
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(MemoryStore(), MemoryDisk(), **settings) as log, coordinating(log) as transactions:
        zombie = await init(transactions)
        await write(transactions, log, zombie, 0, b"of the zombie")
        who = await init(transactions)
        assert await add(transactions, zombie, 1) == e.PRODUCER_FENCED
        reply = await transactions.end(zombie, committed=True, transaction_version=NEWEST)
        assert reply.error_code == e.PRODUCER_FENCED
        await write(transactions, log, who, 0, b"mine")
        await end(transactions, who)
        assert await read_committed(log, log.partition(0, name=DATA)) == [b"mine"]


async def test_a_repeated_end_waits_until_the_first_is_durable(autojump_clock):
    disk = MemoryDisk()
    async with memory_log(MemoryStore(), disk, topics=TOPICS) as log, coordinating(log) as transactions:
        who = await init(transactions)
        assert not await add(transactions, who, 0)
        disk.sync_seconds = 3.0
        began = trio.current_time()
        ended: list[float] = []

        async def commit() -> None:
            assert not (await transactions.end(who, committed=True, transaction_version=0)).error_code
            ended.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            nursery.start_soon(commit)  # finds the transaction complete, which is not durable yet
        assert min(ended) >= 3.0


async def test_a_decision_is_carried_out_after_its_client_disconnects(autojump_clock):
    settings = {"topics": TOPICS, "durability": Durability.SEGMENT}
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), **settings) as log, coordinating(log) as transactions:
        who = await init(transactions)
        await write(transactions, log, who, 0, b"v")
        store.delay(On("put*"), 2.0)
        with trio.move_on_after(0.5) as gone:
            await end(transactions, who)
        assert gone.cancelled_caught
        await trio.sleep(20.0)
        assert not log.partition(0, name=DATA).transactions.open
        assert (await states(log))[-2:] == [S.PREPARE_COMMIT, S.COMPLETE_COMMIT]


@EVERY_MODE
async def test_a_transaction_interrupted_by_a_crash_ends_alike_in_all_partitions(autojump_clock, durability):
    """Kill at many moments of a transaction's end; afterwards it is committed in all partitions, or in none."""
    outcomes = set()
    for moment in range(24):
        disk, store = MemoryDisk(), FaultyStore(MemoryStore())
        settings = {"topics": TOPICS, "durability": durability, "flush_interval_seconds": NEVER_SECONDS}
        told = False
        async with memory_log(store, disk, **settings) as log, coordinating(log) as transactions:
            who = await init(transactions)
            for index in range(3):
                await write(transactions, log, who, index, b"v")
            disk.sync_seconds = 0.5
            store.delay(On("put*"), 0.5, after_effect=moment % 2 == 1)
            with trio.move_on_after(moment * 0.1 + 0.05):
                await end(transactions, who)
                told = True
            snapshot, torn = await _copy(store), disk.crash(torn_bytes=moment * 60)
        settings["leader_epoch"] = 2
        async with memory_log(snapshot, torn, **settings) as log, coordinating(log) as transactions:
            await trio.sleep(5.0)
            found = [await read_committed(log, log.partition(index, name=DATA)) for index in range(3)]
            is_open = [bool(log.partition(index, name=DATA).transactions.open) for index in range(3)]
            assert found in ([[b"v"]] * 3, [[]] * 3)
            assert is_open == [found == [[]] * 3] * 3  # the producer may yet commit it
            assert found == [[b"v"]] * 3 or not told
            outcomes.add(found == [[b"v"]] * 3)
            assert (await states(log))[-1] is (S.COMPLETE_COMMIT if found[0] else S.ONGOING)
    assert outcomes == {True, False}


async def _copy(store: FaultyStore) -> MemoryStore:
    copy = MemoryStore()
    async for page in store.store.list(""):
        for info in page:
            await copy.put(info.key, [bytes((await store.store.get(info.key)).data)])
    return copy


@EVERY_MODE
async def test_a_transaction_that_takes_too_long_is_aborted(autojump_clock, durability, monkeypatch):
    _use_trio_time(monkeypatch)
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(MemoryStore(), MemoryDisk(), **settings) as log, coordinating(log) as transactions:
        who = await init(transactions, timeout_ms=30_000)
        await write(transactions, log, who, 0, b"v")
        await trio.sleep(29.0)
        assert log.partition(0, name=DATA).transactions.open
        await trio.sleep(12.0)
        assert not log.partition(0, name=DATA).transactions.open
        assert (await states(log))[-1] is S.COMPLETE_ABORT
        assert await add(transactions, who, 0) == e.PRODUCER_FENCED
        assert transactions.ended["abort"].value == 1


async def test_a_transaction_that_began_while_the_clock_was_ahead_is_aborted_all_the_same(autojump_clock, monkeypatch):
    """It stayed open for as long as the clock had been ahead, and nobody read anything behind it."""
    clock = _use_trio_time(monkeypatch)
    clock.ahead_ms = 3_000_000
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log, coordinating(log) as transactions:
        who = await init(transactions, timeout_ms=30_000)
        await write(transactions, log, who, 0, b"v")
        await trio.sleep(1.0)
        clock.ahead_ms = 0
        await trio.sleep(29.0)
        assert log.partition(0, name=DATA).transactions.open
        await trio.sleep(22.0)
        assert not log.partition(0, name=DATA).transactions.open


async def test_an_unused_transactional_id_expires(autojump_clock, monkeypatch):
    _use_trio_time(monkeypatch)
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log:
        async with coordinating(log, transactional_id_expiration_ms=100_000) as transactions:
            who = await init(transactions)
            await trio.sleep(120.0)
            assert await states(log) == [S.EMPTY, S.DEAD]
            assert await add(transactions, who, 0) == e.INVALID_PRODUCER_ID_MAPPING
            assert transactions.places.count == 0


@attrs.define
class Clock:
    """A wall clock that goes on as trio's does."""

    began_ms: int = attrs.field(factory=lambda: time.time_ns() // 1_000_000)
    ahead_ms: int = 0

    def now_ms(self) -> int:
        return self.began_ms + self.ahead_ms + round(trio.current_time() * 1000)


def _use_trio_time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("service", "marker_sender"):
        monkeypatch.setattr(f"kafscale.cluster.transactions.{module}.now_ms", clock.now_ms)
    return clock


async def test_a_topic_that_was_deleted_holds_up_no_transaction(autojump_clock):
    for durability in Durability:
        settings = {"topics": TOPICS, "durability": durability}
        async with memory_log(MemoryStore(), MemoryDisk(), **settings) as log, coordinating(log) as transactions:
            who = await init(transactions)
            await write(transactions, log, who, 0, b"v")
            log.log.close_topic(DATA)
            await end(transactions, who)
            await trio.sleep(1.0)  # a reply waits for the decision that it is complete, not for its flush
            assert (await states(log))[-1] is S.COMPLETE_COMMIT


async def test_a_partition_that_is_on_its_way_gets_its_marker_later(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log, coordinating(log) as transactions:
        who = await init(transactions)
        for index in (0, 1):
            await write(transactions, log, who, index, b"v")
        await release_partition(log.log, log.partition(1, name=DATA))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end, transactions, who)
            await trio.sleep(3.0)
            assert (await states(log))[-1] is S.PREPARE_COMMIT
            assert not log.partition(0, name=DATA).transactions.open
            await acquire_partition(log.log, attrs.evolve(TOPICS[1], leader_epochs={1: 4}), 1)
        await trio.sleep(1.0)  # the reply waits for the decision that it is complete, not for its sync
        assert (await states(log))[-1] is S.COMPLETE_COMMIT
        assert await read_committed(log, log.partition(1, name=DATA)) == [b"v"]


async def test_a_new_leader_of_the_state_partition_coordinates_its_ids(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log, coordinating(log) as transactions:
        who = await init(transactions)
        await write(transactions, log, who, 0, b"v")
        index = transactions.led.partition_of("x")
        await release_partition(log.log, log.partition(index, name=STATE))
        with refused(e.NOT_COORDINATOR):
            await add(transactions, who, 1)
        assert transactions.places.count == 0
        await acquire_partition(log.log, attrs.evolve(TOPICS[0], leader_epochs={index: 9}), index)
        await trio.sleep(1.0)
        await write(transactions, log, who, 1, b"w")
        await end(transactions, who)
        assert await read_committed(log, log.partition(1, name=DATA)) == [b"w"]


async def test_a_request_during_loading_gets_coordinator_load_in_progress(autojump_clock):
    settings = {"topics": TOPICS}
    async with memory_log(MemoryStore(), MemoryDisk(), **settings) as log:
        async with coordinating(log, is_loaded=False) as transactions:
            with refused(e.COORDINATOR_LOAD_IN_PROGRESS):
                await add(transactions, ProducerIdentity("x", 1, 0), 0)


async def test_a_decision_waits_for_memory_before_any_record_is_written(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS, chunk_pool_bytes=2 << 20) as log:
        async with coordinating(log) as transactions:
            who = await init(transactions)
            await write(transactions, log, who, 0, b"v")
            await log.log.flusher.flush_all()
            pool = log.log.pool
            lease = await pool.acquire(pool.size_bytes - (16 << 10))
            who_now: list[ProducerIdentity] = []

            async def commit() -> None:
                who_now.append(await end(transactions, who))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit)
                await trio.sleep(2.0)
                assert not who_now
                nowait = transactions.enrol_nowait(who, frozenset({TopicPartition(DATA, 1)}), transaction_version=2)
                assert nowait == {TopicPartition(DATA, 1): e.NOT_ENOUGH_REPLICAS}
                assert await states(log) == [S.EMPTY, S.ONGOING]
                lease.release()
            assert await states(log) == [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT]
            await trio.sleep(1.0)
            assert await states(log) == [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.COMPLETE_COMMIT]


@EVERY_MODE
async def test_partitions_are_enrolled_in_front_of_their_batch(autojump_clock, durability):
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(MemoryStore(), MemoryDisk(), **settings) as log, coordinating(log) as transactions:
        who, at = await init(transactions), TopicPartition(DATA, 0)
        nowait = transactions.enrol_nowait(who, frozenset({at}), transaction_version=NEWEST)
        if durability is Durability.SEGMENT:  # the batch could be durable before
            assert nowait == {at: e.NOT_ENOUGH_REPLICAS}
            assert await transactions.enrol(who, frozenset({at}), transaction_version=NEWEST) == {at: e.NONE}
            nowait = transactions.enrol_nowait(who, frozenset({at}), transaction_version=NEWEST)
        assert nowait == {at: e.NONE}
        elsewhere = TopicPartition(DATA, 1)
        verified = transactions.enrol_nowait(who, frozenset({at, elsewhere}), transaction_version=0)
        if durability is not Durability.SEGMENT or verified[at] == e.NONE:
            assert verified == {at: e.NONE, elsewhere: e.TRANSACTION_ABORTABLE}
        zombie = attrs.evolve(who, producer_epoch=-1)
        fenced = transactions.enrol_nowait(zombie, frozenset({at}), transaction_version=NEWEST)
        assert fenced == {at: e.PRODUCER_FENCED}


@EVERY_MODE
async def test_epochs_that_are_used_up_go_over_to_a_new_id_over_a_crash(autojump_clock, durability):
    disk, store = MemoryDisk(), MemoryStore()
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(store, disk, **settings) as log, coordinating(log) as transactions:
        who = await init(transactions)
        last = attrs.evolve(who, producer_epoch=LAST_GIVEN_EPOCH)
        coordinator = transactions.led.find("x")
        held = coordinator.get("x")
        assert held is not None
        index = coordinator.partition
        record = encode_state(attrs.evolve(held.transaction, producer_epoch=LAST_GIVEN_EPOCH).record(), 0)
        await log.append(log.partition(index, name=STATE), record.value or b"")  # without a key: it is left out
        entry = RecordsEntry(log.partition(index, name=STATE), [record])
        await (await transactions.internal.append([entry], 0)).wait()
        disk = disk.crash()
    settings["leader_epoch"] = 2
    async with memory_log(store, disk, **settings) as log, coordinating(log) as transactions:
        await write(transactions, log, last, 0, b"v")
        following = await end(transactions, last)
        assert following.producer_id != last.producer_id
        assert following.producer_epoch == 0
        disk = disk.crash()
    settings["leader_epoch"] = 3
    async with memory_log(store, disk, **settings) as log, coordinating(log) as transactions:
        assert await end(transactions, last) == following  # which got no reply


async def test_an_end_without_a_producer_id_reveals_no_producer_id(autojump_clock):
    disk, store = MemoryDisk(), MemoryStore()
    async with memory_log(store, disk, topics=TOPICS) as log, coordinating(log) as transactions:
        who = await init(transactions)
        await write(transactions, log, who, 0, b"v")
        await end(transactions, who)
        disk = disk.crash()
    async with memory_log(store, disk, topics=TOPICS, leader_epoch=2) as log, coordinating(log) as transactions:
        nobody = ProducerIdentity("x", -1, LAST_GIVEN_EPOCH)
        reply = await transactions.end(nobody, committed=True, transaction_version=NEWEST)
        assert (reply.error_code, reply.producer_id) == (e.INVALID_PRODUCER_ID_MAPPING, -1)
        negative = InitProducerId(transactional_id="y", transaction_timeout_ms=-1)
        assert (await transactions.init_producer_id(negative)).error_code == e.INVALID_TRANSACTION_TIMEOUT


@EVERY_MODE
async def test_a_transaction_without_a_coordinator_is_aborted(autojump_clock, durability, caplog):
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(MemoryStore(), MemoryDisk(), **settings) as log, coordinating(log) as transactions:
        who = await init(transactions)
        await write(transactions, log, who, 0, b"known")
        await send(log.partition(0, name=DATA), b"unknown", producer_id=5)
        await send(log.partition(1, name=DATA), b"unknown", producer_id=who.producer_id)
        partitions = list(log.log.partitions.values())
        await abort_hanging(log, transactions, partitions)
        await abort_hanging(log, transactions, partitions)
        assert [list(log.partition(index, name=DATA).transactions.open) for index in (0, 1)] == [[who.producer_id], []]
        assert caplog.text.count("no coordinator knows of it") == transactions.hanging.value == 2
        await end(transactions, who)
        assert await read_committed(log, log.partition(0, name=DATA)) == [b"known"]


async def test_no_abort_is_logged_for_a_partition_that_has_moved_away(autojump_clock, caplog):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log, coordinating(log) as transactions:
        partition = log.partition(0, name=DATA)
        await send(partition, b"unknown", producer_id=5)
        log.log.close_partition(partition, e.NOT_LEADER_OR_FOLLOWER)
        await abort_hanging(log, transactions, [partition])
        assert "no coordinator knows of it" not in caplog.text


@EVERY_MODE
async def test_a_transaction_newer_than_its_coordinators_epoch_is_aborted(autojump_clock, durability):
    settings = {"topics": TOPICS, "durability": durability}
    async with memory_log(MemoryStore(), MemoryDisk(), **settings) as log, coordinating(log) as transactions:
        who = await init(transactions, timeout_ms=1_000)
        partition = log.partition(0, name=DATA)
        assert not await add(transactions, who, 0)  # all that is left of its coordinator's records
        later = attrs.evolve(who, producer_epoch=who.producer_epoch + 5)
        await send(partition, b"later", producer_id=later.producer_id, epoch=later.producer_epoch)
        await abort_hanging(log, transactions, [partition])
        await trio.sleep(60.0)  # the one that is known times out, and its marker is of no use there
        assert not partition.transactions.open
        assert partition.last_stable_offset == partition.next_offset
        assert await read_committed(log, partition) == []


async def test_nothing_is_taken_to_hang_while_a_coordinator_is_missing(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log, coordinating(log) as transactions:
        await send(log.partition(0, name=DATA), b"unknown", producer_id=5)
        transactions.led.resign(1)
        await abort_hanging(log, transactions, list(log.log.partitions.values()))
        assert list(log.partition(0, name=DATA).transactions.open) == [5]


async def test_loading_finished_after_a_cancellation_writes_nothing(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log:
        async with coordinating(log) as transactions:
            who = await init(transactions)
            await write(transactions, log, who, 0, b"left open")
        appended_to = [partition.next_offset for partition in log.log.partitions.values()]
        for index in range(transactions.partition_count()):  # a load's last step takes no notice of a cancellation
            coordinator = transactions.led.begin_loading(index, log.partition(index, name=STATE).leader_epoch)
            assert transactions.led.finish_loading(coordinator)
        assert [partition.next_offset for partition in log.log.partitions.values()] == appended_to


def test_a_state_record_round_trips_in_the_format_of_kafka() -> None:
    transaction = ProducerTransaction(
        transactional_id="x",
        producer_id=7,
        previous_producer_id=7,
        producer_epoch=3,
        timeout_ms=60_000,
        state=S.ONGOING,
        partitions=frozenset({TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("b", 0)}),
        start_timestamp_ms=5,
        last_update_timestamp_ms=6,
        client_transaction_version=2,
    )
    for state in (transaction, attrs.evolve(transaction, previous_producer_id=5, next_producer_id=9)):
        assert decode_state(encode_state(state.record(), 1)) == state.record()
    encoded = encode_state(transaction.record(), 1).value or b""
    assert encoded.endswith(b"\x01\x02\x02\x00\x02")  # one tagged field: the client's version, as Kafka 4.1 writes it
    tombstone = StateRecord("x", None)
    assert decode_state(encode_state(tombstone, 1)) == tombstone
