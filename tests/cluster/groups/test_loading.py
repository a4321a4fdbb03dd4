"""The state of groups from the batches of a partition of `__consumer_offsets`, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import attrs
from hypothesis import given
from hypothesis import strategies as st

from kafscale.cluster.coordinator.loading import InternalBatch, SkippedRecords, apply_batch
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.context import LoggedOffset
from kafscale.cluster.groups.common.log_records import CoordinatorRecord
from kafscale.cluster.groups.common.log_records import offset_record as offset_change
from kafscale.cluster.groups.loading import LoadedGroups
from kafscale.wire.batch_header import TRANSACTIONAL, parse_header
from kafscale.wire.control_records import EndMarker, encode_marker, parse_marker
from kafscale.wire.internal_topics.consumer_offsets import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitValue,
)
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records

GROUPS, PRODUCERS = ("g", "h"), (1, 2)
PLACES = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0))


@attrs.frozen
class Write:
    """Some records of one batch; of a transaction if there is a producer."""

    records: tuple[Record, ...]
    producer_id: int | None = None


@attrs.frozen
class End:
    """The marker that ends a producer's transaction."""

    producer_id: int
    is_commit: bool


Step = Write | End


def at(offset: int) -> OffsetCommitValue:
    return OffsetCommitValue(offset=offset, commit_timestamp_ms=offset)


def offset_record(group_id: str, place: TopicPartition, offset: OffsetCommitValue | None) -> Record:
    return offset_change(group_id, place, offset).encode()


def group_record(group_id: str, group: GroupMetadataValue | None) -> Record:
    return CoordinatorRecord(GroupMetadataKey(group_id), group).encode()


def consumer_group_records(records: Sequence[CoordinatorRecord]) -> list[Record]:
    return [record.encode() for record in records]


def batches(steps: Sequence[Step]) -> Iterator[InternalBatch]:
    """Yield the log that these steps write."""
    base_offset = 0
    for step in steps:
        if isinstance(step, End):
            marker = EndMarker(
                producer_id=step.producer_id, producer_epoch=0, coordinator_epoch=0, is_commit=step.is_commit
            )
            batch = encode_marker(marker, 0)
            batch[:8] = base_offset.to_bytes(8)
            base_offset += 1
        elif step.producer_id is None:
            batch = build_batch(step.records, base_offset=base_offset)
            base_offset += len(step.records)
        else:
            stamp = ProducerStamp(step.producer_id, 0, 0)
            batch = build_batch(step.records, base_offset=base_offset, attributes=TRANSACTIONAL, producer=stamp)
            base_offset += len(step.records)
        view = memoryview(batch)
        header = parse_header(view)
        if header.is_control:
            yield InternalBatch(header, marker=parse_marker(view, header))
        else:
            yield InternalBatch(header, list(iterate_records(view)))


def load(steps: Sequence[Step], skipped: SkippedRecords | None = None) -> LoadedGroups:
    loading = LoadedGroups(0)
    for batch in batches(steps):
        apply_batch(loading, batch, SkippedRecords() if skipped is None else skipped)
    return loading


def offsets_of(loading: LoadedGroups) -> dict[tuple[str, TopicPartition], int]:
    return {
        (group_id, place): logged.offset.offset
        for group_id, group in loading.groups.items()
        for place, logged in group.offsets.items()
    }


GROUP = GroupMetadataValue(
    generation_id=1, protocol_type="consumer", protocol_name=None, leader_id=None, state_timestamp_ms=5
)
OFFSET_RECORDS = st.builds(
    lambda group_id, place, offset: offset_record(group_id, place, None if offset is None else at(offset)),
    st.sampled_from(GROUPS),
    st.sampled_from(PLACES),
    st.none() | st.integers(0, 99),
)
COMMIT_RECORDS = OFFSET_RECORDS.filter(lambda record: record.value is not None)  # what transactions write
GROUP_RECORDS = st.builds(
    lambda group_id, generation: group_record(
        group_id, None if generation is None else attrs.evolve(GROUP, generation_id=generation)
    ),
    st.sampled_from(GROUPS),
    st.none() | st.integers(0, 9),
)
STEPS = st.lists(
    st.one_of(
        st.builds(Write, st.lists(OFFSET_RECORDS | GROUP_RECORDS, min_size=1, max_size=4).map(tuple)),
        st.builds(Write, st.lists(COMMIT_RECORDS, min_size=1, max_size=3).map(tuple), st.sampled_from(PRODUCERS)),
        st.builds(End, st.sampled_from(PRODUCERS), st.booleans()),
    ),
    max_size=20,
)


def model(steps: Sequence[Step]) -> tuple[dict[bytes, bytes], set[int]]:
    """Return the latest value of each key, in the order of the log, and whose transactions are open."""
    ends: list[tuple[int, int, bool]] = []
    for number, step in enumerate(steps):
        if isinstance(step, End):
            ends.append((number, step.producer_id, step.is_commit))
    latest: dict[bytes, tuple[int, bytes | None]] = {}
    opened: set[int] = set()
    place = 0
    for number, step in enumerate(steps):
        if isinstance(step, End):
            place += 1
            continue
        counts = step.producer_id is None
        if step.producer_id is not None:
            end = next((each for each in ends if each[0] > number and each[1] == step.producer_id), None)
            counts = end is not None and end[2]
            if end is None:
                opened.add(step.producer_id)
        for record in step.records:
            assert record.key is not None
            if counts:
                latest[record.key] = (place, record.value)
            place += 1
    return {key: value for key, (_, value) in latest.items() if value is not None}, opened


@given(STEPS)
def test_of_each_key_the_last_record_that_counts_counts(steps: list[Step]) -> None:
    loading = load(steps)
    expected, opened = model(steps)
    found: dict[bytes, bytes] = {}
    for group_id, group in loading.groups.items():
        assert not group.is_gone
        records = [] if group.record is None else [group_record(group_id, group.record)]
        records += [offset_record(group_id, place, logged.offset) for place, logged in group.offsets.items()]
        for record in records:
            assert record.key is not None
            assert record.value is not None
            found[record.key] = record.value
    assert found == expected
    assert set(loading.pending) <= opened


@given(STEPS, st.randoms(use_true_random=False))
def test_a_compacted_log_loads_the_same_state(steps: list[Step], random: Random) -> None:
    """Of what no transaction has written, compaction may drop all but the last record of each key."""
    plain = [step for step in steps if isinstance(step, Write) and step.producer_id is None]
    last = {record.key: record for step in plain for record in step.records}
    compacted: list[Step] = []
    for step in plain:
        kept = tuple(each for each in step.records if last[each.key] is each or random.random() < 0.5)
        if kept:
            compacted.append(Write(kept))
    before, after = load(plain), load(compacted)
    assert offsets_of(before) == offsets_of(after)
    assert {each: group.record for each, group in before.groups.items()} == {
        each: group.record for each, group in after.groups.items()
    }


def test_a_transaction_counts_from_its_commit_on() -> None:
    write = Write((offset_record("g", PLACES[0], at(5)), offset_record("h", PLACES[1], at(6))), producer_id=1)
    before = load([write])
    assert before.groups == {}
    g, h = LoggedOffset(at(5), 0), LoggedOffset(at(6), 1)
    assert before.pending == {1: {"g": {PLACES[0]: g}, "h": {PLACES[1]: h}}}
    assert offsets_of(load([write, End(1, is_commit=True)])) == {("g", PLACES[0]): 5, ("h", PLACES[1]): 6}
    aborted = load([write, End(2, is_commit=True), End(1, is_commit=False)])
    assert (aborted.groups, aborted.pending) == ({}, {})


def test_a_transaction_that_is_committed_late_does_not_undo_a_later_commit() -> None:
    steps = [
        Write((offset_record("g", PLACES[0], at(5)), offset_record("g", PLACES[1], at(5))), producer_id=1),
        Write((offset_record("g", PLACES[0], at(9)),)),
        End(1, is_commit=True),
    ]
    assert offsets_of(load(steps)) == {("g", PLACES[0]): 9, ("g", PLACES[1]): 5}


def test_an_offset_tombstone_also_removes_a_pending_offset() -> None:
    steps = [
        Write((offset_record("g", PLACES[0], at(5)), offset_record("g", PLACES[1], at(6))), producer_id=1),
        Write((offset_record("g", PLACES[0], None),)),
    ]
    assert load(steps).pending == {1: {"g": {PLACES[1]: LoggedOffset(at(6), 1)}}}
    assert offsets_of(load([*steps, End(1, is_commit=True)])) == {("g", PLACES[1]): 6}


def test_records_of_other_kinds_are_passed_over_and_counted() -> None:
    unknown = Record(bytes.fromhex("00630001"), b"x")
    loading = load([Write((unknown, offset_record("g", PLACES[0], at(1)), unknown))])
    assert loading.unknown_count == 2
    assert offsets_of(loading) == {("g", PLACES[0]): 1}


def test_the_last_record_of_each_consumer_group_key_is_kept_until_a_tombstone() -> None:
    epoch, member = ConsumerGroupMetadataKey("g"), ConsumerGroupMemberMetadataKey("g", "m")
    first = CoordinatorRecord(epoch, ConsumerGroupMetadataValue(epoch=1))
    second = CoordinatorRecord(epoch, ConsumerGroupMetadataValue(epoch=2, metadata_hash=-5))
    joined = CoordinatorRecord(member, ConsumerGroupMemberMetadataValue(client_id="c", client_host="h"))
    steps = [Write(tuple(consumer_group_records([first, joined, second])))]
    assert [*load(steps).groups["g"].consumer.values()] == [joined, second]

    gone = [CoordinatorRecord(key, None) for key in (member, epoch)]
    assert [*load([*steps, Write(tuple(consumer_group_records(gone[:1])))]).groups["g"].consumer.values()] == [second]
    assert load([*steps, Write(tuple(consumer_group_records(gone)))]).groups == {}


def test_an_unreadable_record_is_skipped_without_losing_others() -> None:
    """It kept all groups of its partition without a coordinator. What is under its key before it holds."""
    newer = attrs.evolve(offset_record("g", PLACES[0], at(2)), value=bytes.fromhex("0063"))
    no_group = Record(bytes.fromhex("0002000567726f7570"), bytes.fromhex("0003"))
    no_key = Record(bytes.fromhex("0001ffff"), b"")
    first, other = offset_record("g", PLACES[0], at(1)), offset_record("h", PLACES[1], at(3))
    skipped = SkippedRecords()
    loading = load([Write((first, newer)), Write((no_group, no_key, Record(None, b""), other))], skipped)
    assert offsets_of(loading) == {("g", PLACES[0]): 1, ("h", PLACES[1]): 3}
    assert skipped.count == 4
    assert skipped.first == "offset 1: group 'g': OffsetCommitValue of version 99; known are 0 to 4"
    later = offset_record("g", PLACES[0], at(4))
    assert offsets_of(load([Write((first, newer, later))])) == {("g", PLACES[0]): 4}


EVERY_KIND = [
    offset_record("g", PLACES[0], at(1)),
    group_record("h", GROUP),
    *consumer_group_records(
        [
            CoordinatorRecord(ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(epoch=1)),
            CoordinatorRecord(
                ConsumerGroupMemberMetadataKey("g", "m"),
                ConsumerGroupMemberMetadataValue(client_id="c", client_host="h", subscribed_topic_names=["t"]),
            ),
        ]
    ),
]


@given(st.data())
def test_damaged_records_do_not_keep_others_from_loading(data: st.DataObject) -> None:
    record = data.draw(st.sampled_from(EVERY_KIND))
    key, value = bytearray(record.key or b""), bytearray(record.value or b"")
    for part in (key, value):
        for _ in range(data.draw(st.integers(0, 3))):
            part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
        del part[data.draw(st.integers(0, len(part))) :]
    other = offset_record("other", PLACES[2], at(3))
    loading = load([Write((Record(bytes(key), bytes(value)), other))])
    assert offsets_of(loading)["other", PLACES[2]] == 3
