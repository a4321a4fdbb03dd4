"""The state of producers is bounded, a flush costs what has changed of it, and a start still finds all of it."""

from __future__ import annotations

import random
import weakref
from array import array

import attrs
import pytest
import trio

from kafscale.config.limits import Limits
from kafscale.config.option import options_of
from kafscale.errors import KafkaError
from kafscale.formats.footer_reading import read_footer
from kafscale.formats.manifest import segment_of
from kafscale.formats.segment import (
    FOOTER_MAX_BYTES,
    HEADER,
    Footer,
    Identity,
    Index,
    decode_footer,
    encode_footer,
    footer_bytes_needed,
)
from kafscale.formats.transactions import ProducedBatch, Producer
from kafscale.log.partition import producers as producers_module
from kafscale.log.partition.producers import (
    ACTIVE_MS,
    BATCH_BYTES,
    LEFT_ENTRIES_MAX_COUNT,
    PRODUCER_BYTES,
    REMEMBERED_BATCH_COUNT,
    UNCHANGED_MAX_COUNT,
    FooterProducers,
    ProducerBudget,
    ProducerStates,
)
from kafscale.log.rewrite.merger import merged_footer, read_source
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.batch_header import BatchHeader, parse_header
from kafscale.wire.error_codes import INVALID_PRODUCER_ID_MAPPING
from kafscale.wire.records import ProducerStamp, Record, build_batch
from tests.devtools.fakes.memory_log import TOPIC, TOPIC_ID, MemoryLog, memory_log, topic_spec

EVERYTHING_IS_DURABLE = 1 << 62
FOREVER = {"producer_id_expiration_ms": 1 << 50}
_HEADER = parse_header(memoryview(build_batch([Record(value=b"v")], producer=ProducerStamp(0, 0, 0))))


def header(producer_id: int, sequence: int = 0, *, epoch: int = 0) -> BatchHeader:
    return attrs.evolve(_HEADER, producer_id=producer_id, base_sequence=sequence, producer_epoch=epoch)


def write(states: ProducerStates, producer_id: int, offset: int, now_ms: int = 0, *, sequence: int = 0) -> None:
    states.record(header(producer_id, sequence), offset, now_ms, durable_before=EVERYTHING_IS_DURABLE)


def filled(count: int, *, batches: int = 1, budget: ProducerBudget | None = None) -> ProducerStates:
    """Producers 0 to `count` - 1, whose state is in the footer of a segment that begins at offset 0."""
    states = ProducerStates(budget or ProducerBudget())
    for number in range(count * batches):
        write(states, number % count, number, sequence=number // count)
    states.kept(range(count), 0)
    return states


# ---- what a flush costs ---------------------------------------------------------------------------------------------


def test_the_footer_of_a_flush_does_not_grow_with_the_producers_that_wrote_nothing():
    states = filled(10_000)
    write(states, 5000, 10_000)
    held = states.for_footer(10_000, 10_001)
    assert held.producers[-1].producer_id == 5000
    assert len(held.producers) == 1 + UNCHANGED_MAX_COUNT
    assert held.producers_from == 0


def test_a_partition_with_few_producers_has_all_producers_in_its_last_footer():
    states = filled(UNCHANGED_MAX_COUNT)
    write(states, UNCHANGED_MAX_COUNT, 1000)
    held = states.for_footer(1000, 1001)
    assert sorted(each.producer_id for each in held.producers) == list(range(UNCHANGED_MAX_COUNT + 1))
    assert held.producers_from == 1000


def test_after_some_flushes_no_footer_of_before_is_needed():
    states = filled(10_000)
    flushes = 0
    while states.kept_from == 0:
        offset = 10_000 + flushes
        write(states, 1, offset)
        held = states.for_footer(offset, offset + 1)
        states.kept((each.producer_id for each in held.producers), offset)
        flushes += 1
    assert flushes == -(-9_999 // UNCHANGED_MAX_COUNT)


def test_a_footer_ignores_a_producer_epoch_that_begins_after_the_segment():
    states = filled(3)
    states.record(header(0, epoch=1), 3, 0, durable_before=EVERYTHING_IS_DURABLE)
    write(states, 4, 4)
    for end_offset, epoch in ((3, 0), (5, 1)):
        held = states.for_footer(3, end_offset)
        assert [each.epoch for each in held.producers if each.producer_id == 0] == [epoch]
        assert held.producers_from == 3


def test_the_largest_state_that_is_permitted_can_be_written_and_read_back():
    (option,) = [each for each in options_of(Limits) if each.attribute == "max_producer_ids_per_partition_count"]
    batches = [ProducedBatch(number, number, number, number) for number in range(REMEMBERED_BATCH_COUNT)]
    producers = [Producer(producer_id, 1, batches, 0) for producer_id in range(int(option.help.most))]
    encoded = encode_footer(footer_with(producers, producers_from=0))
    assert footer_bytes_needed(encoded, "x") == len(encoded) < FOOTER_MAX_BYTES / 4
    by_default = producers[: Limits().max_producer_ids_per_partition_count]
    assert decode_footer(encode_footer(footer_with(by_default)), "x").producers == by_default


def test_a_footer_that_could_not_be_read_again_is_not_written(monkeypatch):
    monkeypatch.setattr("kafscale.formats.segment.FOOTER_MAX_BYTES", 1000)
    encode_footer(footer_with([]))
    with pytest.raises(AssertionError, match="can't be read again"):
        encode_footer(footer_with([Producer(each, 0, [], 0) for each in range(100)]))


def footer_with(producers: list[Producer], **changes: int) -> Footer:
    identity = Identity(
        topic_id=TOPIC_ID,
        partition=0,
        base_offset=100,
        generation=0,
        leader_epoch=1,
        created_ms=0,
        batch_count=1,
        body_bytes=100,
        max_timestamp_ms=0,
        body_crc=0,
    )
    index = Index(array("q", [100]), array("q", [HEADER.size]), array("q", [0]))
    return Footer(
        identity=identity, last_offset=100, record_count=1, index=index, producers=producers, epochs=[], **changes
    )


# ---- how many there may be ------------------------------------------------------------------------------------------


def test_in_a_full_partition_the_producer_that_was_idle_for_longest_is_forgotten():
    states = ProducerStates(ProducerBudget(partition_max_count=3))
    for offset, producer_id in enumerate([1, 2, 3, 1, 4]):
        write(states, producer_id, offset, now_ms=offset, sequence=offset)
    assert set(states.producers) == {3, 1, 4}
    assert states.budget.count == 3


def test_a_full_budget_evicts_the_longest_idle_producers_of_all_partitions():
    budget = ProducerBudget(max_count=16)
    one, other = ProducerStates(budget), ProducerStates(budget)
    for number in range(16):
        write((one, other)[number % 2], number, number, now_ms=number)
    write(one, 0, 16, now_ms=16, sequence=1)
    write(other, 99, 17, now_ms=ACTIVE_MS + 1)
    assert (set(one.producers), set(other.producers)) == ({0, 2, 4, 6, 8, 10, 12, 14}, {3, 5, 7, 9, 11, 13, 15, 99})
    assert (budget.evicted_idle_count.value, budget.evicted_active_count.value) == (1, 0)
    for number in range(100, 116):
        write(other, number, number, now_ms=ACTIVE_MS + number)
    assert (set(one.producers), set(other.producers)) == (set(), set(range(100, 116)))


def test_memory_is_bounded_too_and_comes_back():
    most = 10 * (PRODUCER_BYTES + BATCH_BYTES)
    budget = ProducerBudget(max_bytes=most)
    states = ProducerStates(budget)
    for number in range(100):
        write(states, number, number, now_ms=number)
        assert budget.used_bytes <= most
    assert 8 <= budget.count == len(states.producers) <= 10
    for number in range(100, 120):  # more batches of one producer than are remembered
        write(states, 99, number, sequence=number - 99)
    assert budget.used_bytes == budget.count * (PRODUCER_BYTES + BATCH_BYTES) + 4 * BATCH_BYTES
    states.restore(list(states.producers.values()))
    states.clear()
    assert (budget.used_bytes, budget.count) == (0, 0)


def test_partitions_that_were_closed_are_not_held_on_to():
    budget = ProducerBudget()
    closed = []
    for _ in range(5000):
        states = ProducerStates(budget)
        write(states, 1, 0)
        states.clear()
        closed.append(weakref.ref(states))
    del states
    assert sum(each() is not None for each in closed) <= LEFT_ENTRIES_MAX_COUNT + 1


def test_forgotten_active_producers_are_counted_and_logged_once_a_minute(caplog):
    budget = ProducerBudget(partition_max_count=1)
    states = ProducerStates(budget)
    for number in range(10):
        write(states, number, number, now_ms=10_000 * number)
    assert (budget.evicted_idle_count.value, budget.evicted_active_count.value) == (0, 9)
    assert caplog.text.count("--max-producer-ids-per-partition") == 2


def test_an_old_state_with_too_many_producers_is_cut_down_to_the_latest():
    states = ProducerStates(ProducerBudget(partition_max_count=10))
    old = [Producer(number, 0, [ProducedBatch(0, 0, number, number)], 1000 - number) for number in range(1000)]
    states.restore(old, dict.fromkeys(range(1000), 0))
    assert set(states.producers) == set(states.kept_in) == set(range(10))


def test_ids_that_are_yet_to_be_given_out_are_refused_and_not_remembered():
    states = ProducerStates(ProducerBudget(is_withheld=lambda producer_id: producer_id >= 5))
    states.refuse(header(7), 0)
    with pytest.raises(KafkaError) as refused:
        states.check(header(7))
    assert refused.value.code == INVALID_PRODUCER_ID_MAPPING
    assert states.check(header(4)) is None
    assert not states.producers


# ---- what a start finds ---------------------------------------------------------------------------------------------


@attrs.define
class Segment:
    first: int
    last: int
    held: FooterProducers


@pytest.mark.parametrize("seed", range(100))
def test_a_start_restores_all_producers_after_random_operations(monkeypatch, seed):
    """Writes, flushes, merges, retention, expiry and starts in any order; a footer holds two of the others."""
    monkeypatch.setattr(producers_module, "UNCHANGED_MAX_COUNT", 2)
    chance = random.Random(seed)
    budget = ProducerBudget(partition_max_count=12)
    states = ProducerStates(budget)
    segments: list[Segment] = []
    offset = flushed = 0
    for now_ms in range(400):
        step = chance.choice(["write"] * 6 + ["flush"] * 3 + ["merge", "retention", "start", "expire"])
        if step == "write":
            producer = chance.randrange(20)
            known = states.producers.get(producer)
            sequence = known.batches[-1].last_sequence + 1 if known and known.batches else 0
            write(states, producer, offset, now_ms, sequence=sequence)
            offset += 1
        elif step == "flush" and offset > flushed:
            end = chance.randrange(flushed + 1, offset + 1)
            held = states.for_footer(flushed, end)
            if chance.random() < 0.9:
                states.kept((each.producer_id for each in held.producers), flushed)
                segments.append(Segment(flushed, end - 1, held))
                flushed = end
        elif step == "merge" and len(segments) >= 2:
            start = chance.randrange(len(segments) - 1)
            sources = segments[start : start + chance.randrange(2, 5)]
            latest = {each.producer_id: each for source in sources for each in source.held.producers}
            left = states.still_needed(latest.values(), sources[0].first, sources[-1].last)
            producers_from = min(sources[-1].held.producers_from, sources[0].first)
            merged = Segment(sources[0].first, sources[-1].last, FooterProducers(left, producers_from))
            segments[start : start + len(sources)] = [merged]
        elif step == "retention":
            below = chance.randrange(offset + 1)
            kept_from = below if states.kept_from is None else min(below, states.kept_from)
            segments = [each for each in segments if each.last >= kept_from or each is segments[-1]]
        elif step == "expire":
            states.expire(now_ms - 60)
        elif step == "start":
            kept = {each.producer_id: each.batches[-1] for each in states.snapshot(flushed)}
            found = started(segments, ProducerBudget()).producers
            assert {each: found[each].batches[-1] for each in kept} == kept
            states, offset = started(segments, budget), flushed


def started(segments: list[Segment], budget: ProducerBudget) -> ProducerStates:
    states = ProducerStates(budget)
    needed = [each for each in segments if each.last >= segments[-1].held.producers_from] if segments else []
    latest = {each.producer_id: (each, segment.first) for segment in needed for each in segment.held.producers}
    kept_in = {producer_id: first for producer_id, (_, first) in latest.items()}
    states.restore([each for each, _ in latest.values()], kept_in)
    return states


def key_at(base_offset: int, generation: int = 0) -> SegmentKey:
    return SegmentKey(topic=TOPIC, topic_id=TOPIC_ID, partition=0, base_offset=base_offset, generation=generation)


async def flushed(log: MemoryLog, *producer_ids: int, sequence: int = 0) -> None:
    for producer_id in producer_ids:
        stamp = ProducerStamp(producer_id, 0, sequence)
        await log.append(log.partition(), b"v", producer=stamp)
    await log.log.flusher.flush_all()


def state_of(log: MemoryLog) -> dict[int, tuple[int, list[ProducedBatch]]]:
    return {each.producer_id: (each.epoch, each.batches) for each in log.partition().producers.producers.values()}


async def test_a_start_from_the_bucket_alone_finds_producers_that_the_last_footer_has_not(autojump_clock, monkeypatch):
    monkeypatch.setattr(producers_module, "UNCHANGED_MAX_COUNT", 2)
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**FOREVER)]) as log:
        await flushed(log, *range(12))
        for number in range(4):
            await flushed(log, 11, sequence=number + 1)
        last = log.partition().manifest.segments[-1]
        footer = await read_footer(store, last.key)
        assert (len(footer.producers), footer.producers_from, footer.has_all_producers) == (3, 0, False)
        before = state_of(log)
        await log.log.manifest_checkpointer.write_if_changed()
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**FOREVER)], leader_epoch=2) as log:
        assert state_of(log) == before
        assert log.log.restored.footer_read_count == 5
        await flushed(log, 12)
        before = state_of(log)
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**FOREVER)], leader_epoch=3) as log:
        assert state_of(log) == before


async def test_deleted_segments_stay_while_their_footers_have_producers_that_no_later_one_has(
    autojump_clock, monkeypatch
):
    monkeypatch.setattr(producers_module, "UNCHANGED_MAX_COUNT", 2)
    store, topic = MemoryStore(), topic_spec(**FOREVER)
    async with memory_log(store, MemoryDisk(), topics=[topic]) as log:
        await flushed(log, *range(6))
        await flushed(log, 6)
        partition = log.partition()
        partition.delete_records(partition.high_watermark)
        assert partition.drop_deleted() == []
        for number in range(2):
            await flushed(log, 6, sequence=number + 1)
        assert [each.base_offset for each in partition.drop_deleted()] == [0]
        await store.delete([key_at(0).key, key_at(0).of_kind("index").key])
        before = state_of(log)
    topic = attrs.evolve(topic, log_start_offsets={0: 7})
    async with memory_log(store, MemoryDisk(), topics=[topic], leader_epoch=2) as log:
        assert state_of(log) == before
        assert len(before) == 7


async def test_the_producers_of_a_deleted_topic_are_forgotten(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**FOREVER)]) as log:
        await flushed(log, *range(6))
        assert log.log.producer_budget.count == 6
        log.log.close_topic(TOPIC)
        assert log.log.producer_budget.count == 0
        await trio.lowlevel.checkpoint()


async def test_an_adopted_flush_keeps_the_producers_of_the_footer_in_the_bucket(autojump_clock, monkeypatch):
    """A kill came between the upload and its commit; the next broker has chosen other producers beside the writers."""
    monkeypatch.setattr(producers_module, "UNCHANGED_MAX_COUNT", 2)
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**FOREVER)]) as log:
        await flushed(log, *range(6))
        partition = log.partition()
        await log.append(partition, b"v", producer=ProducerStamp(5, 0, 1))
        plan = partition.prepare_flush()
        assert plan is not None
        assert [each.producer_id for each in plan.producers] == [0, 1, 5]
        footer = attrs.evolve(
            footer_with([each for each in plan.producers if each.producer_id == 5], producers_from=0), last_offset=6
        )
        segment = segment_of(key_at(6), footer)
        partition.commit_flush(plan, segment, footer)
        assert dict(partition.producers.kept_in) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 6}
        assert partition.encoded_end == b""


async def test_a_merged_segment_keeps_the_producers_missing_in_later_footers(autojump_clock, monkeypatch):
    monkeypatch.setattr(producers_module, "UNCHANGED_MAX_COUNT", 2)
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**FOREVER)]) as log:
        await flushed(log, *range(6))
        await flushed(log, 5, sequence=1)  # with 0 and 1
        await flushed(log, 5, sequence=2)  # with 2 and 3
        partition = log.partition()
        sources = [await read_source(store, each) for each in partition.manifest.segments]
        merged = await merged_footer(partition, sources[:2])
        assert sorted(each.producer_id for each in merged.producers) == [0, 1, 4]
        assert (merged.producers_from, sources[2].footer.producers_from) == (0, 0)
        last = await merged_footer(partition, sources[1:])
        assert sorted(each.producer_id for each in last.producers) == [0, 1, 2, 3, 5]
        assert (last.has_all_producers, last.producers_from) == (False, 0)
