"""Which objects are read, against a model of brokers that take over from one another while the older ones go on.

The model keeps every broker's log record by record. What the newest one has in the bucket must be what readers find,
whatever else is there by now, and however few footers they read. As long as it has written nothing itself, only its
checkpoint of the manifests tells of it: for who does not read that, what a broker before it wrote too late may still
change what is read.
"""

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.formats.manifest import Manifest, Segment
from kafscale.formats.resolution import NOTHING_DECIDED, Decided, assumed_ends, epoch_at, resolve
from kafscale.formats.segment import EpochStart
from kafscale.store.paths import EPOCH_UNKNOWN, OFFSET_MAX, SegmentKey

TOPIC_ID = bytes(range(16))
Record = tuple[int, int]  # epoch, and a number


def key_of(base_offset: int, epoch: int, generation: int = 0) -> SegmentKey:
    return SegmentKey(
        topic="t", topic_id=TOPIC_ID, partition=0, base_offset=base_offset, epoch=epoch, generation=generation
    )


def segment(key: SegmentKey, last_offset: int) -> Segment:
    return Segment(key=key, last_offset=last_offset, size_bytes=1, max_timestamp_ms=0)


@attrs.frozen
class Object:
    """A `.kfs`: its records, and what its footer tells."""

    key: SegmentKey
    records: list[Record]
    history: list[EpochStart]

    @property
    def segment(self) -> Segment:
        return segment(self.key, self.key.base_offset + len(self.records) - 1)


@attrs.define(eq=False)
class Found:
    manifest: Manifest
    records: dict[int, Record]
    history: list[EpochStart]
    read_count: int
    late: set[SegmentKey]


def look(
    bucket: dict[SegmentKey, Object], begun: Sequence[EpochStart] = (), decided: Decided = NOTHING_DECIDED
) -> Found:
    """As a reader does, with a listing, a checkpoint if it has one, and as few footers as it can."""
    ends = {**assumed_ends(bucket), **{key: bucket[key].segment.last_offset for key in decided.keys & bucket.keys()}}
    opened = {key for key in bucket if key.generation}
    while True:
        segments = [
            each.segment if key in opened else segment(key, ends.get(key, OFFSET_MAX)) for key, each in bucket.items()
        ]
        resolution = resolve(segments, {key: bucket[key].history for key in opened}, begun=begun, decided=decided)
        if not resolution.unread:
            break
        assert not opened & set(resolution.unread)
        opened |= set(resolution.unread)
    manifest = Manifest(list(resolution.segments))
    records: dict[int, Record] = {}
    for each in manifest.segments:
        for offset in range(each.base_offset, bucket[each.key].segment.last_offset + 1):
            if manifest.find(offset) is each:
                records[offset] = bucket[each.key].records[offset - each.base_offset]
    last = max(manifest.segments, key=lambda each: each.last_offset, default=None)
    history = [] if last is None else bucket[last.key].history
    return Found(manifest, records, list(history), len(opened), set(resolution.late))


@attrs.define(eq=False)
class Broker:
    """`log` has all of its records, of which the first `flushed` are in objects that it knows."""

    epoch: int
    log: list[Record]
    history: list[EpochStart]
    flushed: int
    segments: list[Segment]
    under_way: Object | None = None
    has_written: bool = False


@attrs.define(eq=False)
class World:
    bucket: dict[SegmentKey, Object] = attrs.field(factory=dict)
    brokers: list[Broker] = attrs.field(factory=lambda: [Broker(0, [], [], 0, [])])
    decided: Decided = NOTHING_DECIDED
    count: int = 0

    @property
    def leader(self) -> Broker:
        return self.brokers[-1]

    def append(self, broker: Broker, count: int) -> None:
        if not broker.history or broker.history[-1].epoch != broker.epoch:
            broker.history.append(EpochStart(broker.epoch, len(broker.log)))
        for _ in range(count):
            self.count += 1
            broker.log.append((broker.epoch, self.count))

    def begin_flush(self, broker: Broker, count: int) -> None:
        records = broker.log[broker.flushed : broker.flushed + count]
        if broker.under_way is None and records:
            end = broker.flushed + len(records)
            history = [start for start in broker.history if start.start_offset < end]
            broker.under_way = Object(key_of(broker.flushed, broker.epoch), records, history)

    def end_flush(self, broker: Broker) -> None:
        if broker.under_way is not None:
            flushed, broker.under_way = broker.under_way, None
            self.bucket[flushed.key] = flushed
            broker.segments.append(flushed.segment)
            broker.has_written = True
            broker.flushed = flushed.segment.last_offset + 1

    def merge(self, broker: Broker, first: int, count: int, *, deletes: bool) -> None:
        """The sources go only if this broker still leads when the merged object is there."""
        sources = broker.segments[first : first + count]
        if len(sources) < 2:
            return
        base_offset, end = sources[0].base_offset, sources[-1].last_offset + 1
        generation = 1 + max(each.generation for each in sources)
        history = [start for start in broker.history if start.start_offset < end]
        merged = Object(key_of(base_offset, broker.epoch, generation), broker.log[base_offset:end], history)
        if merged.key in self.bucket:
            return
        self.bucket[merged.key] = merged
        broker.segments[first : first + count] = [merged.segment]
        if deletes and broker is self.leader:
            for each in sources:
                self.bucket.pop(each.key, None)

    def take_over(self, *, has_disk: bool) -> None:
        """With the disk of the one before, which ends then; or with an empty one, while that goes on."""
        before, epoch = self.leader, self.leader.epoch + 1
        found = look(self.bucket, decided=self.decided)
        if has_disk:
            begun = [
                EpochStart(record[0], offset)
                for offset, record in enumerate(before.log[before.flushed :], start=before.flushed)
                if offset in found.records and epoch_at(found.history, offset) < record[0]
            ][:1]
            if begun:
                found = look(self.bucket, begun, self.decided)
        assert sorted(found.records) == list(range(len(found.records))), "a hole"
        log = [found.records[offset] for offset in range(len(found.records))]
        broker = Broker(epoch, log, found.history, len(log), list(found.manifest.segments))
        if has_disk:
            self.brokers.pop()
            for offset in range(len(log), len(before.log)):
                record_epoch = before.log[offset][0]
                if broker.history and broker.history[-1].epoch > record_epoch:
                    break  # superseded
                if not broker.history or broker.history[-1].epoch != record_epoch:
                    broker.history.append(EpochStart(record_epoch, offset))
                broker.log.append(before.log[offset])
            if before.under_way is not None:
                self.brokers.insert(0, Broker(-2, [], [], 0, [], before.under_way))  # it arrives some time
        self.brokers.append(broker)
        self.decide()
        self.check()

    def decide(self) -> None:
        """Write a checkpoint of the manifests. That of a superseded broker never counts."""
        self.decided = Decided(self.leader.epoch, {each.key for each in self.leader.segments})

    def check(self) -> None:
        leader = self.leader
        found = look(self.bucket, decided=self.decided)
        assert [found.records.get(offset) for offset in range(leader.flushed)] == leader.log[: leader.flushed]
        found = look(self.bucket)
        for offset, record in enumerate(leader.log[: leader.flushed]):
            if leader.has_written:
                assert found.records.get(offset) == record
            else:
                latest = max(each.epoch for each in found.manifest.segments)
                assert latest > record[0] or found.records.get(offset) == record


def act(world: World, draw) -> None:
    broker = draw(st.sampled_from(world.brokers))
    match draw(st.sampled_from(["append", "begin flush", "end flush", "merge", "decide", "take over"])):
        case "append" if broker.epoch >= 0:
            world.append(broker, draw(st.integers(1, 3)))
        case "begin flush":
            world.begin_flush(broker, draw(st.integers(1, 5)))
        case "end flush":
            world.end_flush(broker)
        case "merge":
            world.merge(broker, draw(st.integers(0, 3)), draw(st.integers(2, 4)), deletes=draw(st.booleans()))
        case "decide":
            world.decide()
        case "take over":
            world.take_over(has_disk=draw(st.booleans()))
    world.check()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_readers_find_the_records_of_the_newest_broker(data):
    world = World()
    for _ in range(data.draw(st.integers(1, 30))):
        act(world, data.draw)


# ---- by hand --------------------------------------------------------------------------------------------------------


def objects(*given: tuple[int, int, int, list[tuple[int, int]]]) -> dict[SegmentKey, Object]:
    """Each as base offset, last offset, epoch of its key, and history; a record is its epoch and offset."""
    made = {}
    for base_offset, last_offset, epoch, history in given:
        starts = [EpochStart(*start) for start in history]
        records = [(epoch_at(starts, offset), offset) for offset in range(base_offset, last_offset + 1)]
        made[key_of(base_offset, epoch)] = Object(key_of(base_offset, epoch), records, starts)
    return made


def test_a_listing_and_one_footer_are_enough_as_a_rule():
    bucket = objects(*((base, base + 9, base // 300, [(0, 0)]) for base in range(0, 1000, 10)))
    assert look(bucket).read_count == 1


def test_one_footer_more_is_read_where_objects_of_two_epochs_overlap():
    bucket = objects((0, 2, 1, [(1, 0)]), (3, 4, 1, [(1, 0)]), (3, 5, 2, [(1, 0), (2, 3)]), (6, 6, 2, [(1, 0), (2, 3)]))
    found = look(bucket)
    assert found.read_count == 1
    assert found.late == {key_of(3, 1)}
    assert len(found.records) == 7


@pytest.mark.parametrize("epoch", [6, 7])
def test_objects_of_before_there_were_epochs_in_keys_are_as_good_as_others_until_a_newer_broker_has_written(epoch):
    history = [(0, 0), (3, 10), (5, 20)]
    old = [
        (0, 9, EPOCH_UNKNOWN, history[:1]),
        (10, 19, EPOCH_UNKNOWN, history[:2]),
        (20, 29, EPOCH_UNKNOWN, history),
    ]
    assert sorted(look(objects(*old)).records) == list(range(30))
    newer = (30, 35, epoch, [*history, (epoch, 30)])
    late = (30, 50, EPOCH_UNKNOWN, history)
    found = look(objects(*old, newer, late))
    assert found.late == {key_of(30, EPOCH_UNKNOWN)}
    assert found.records[30] == (epoch, 30)
    assert sorted(found.records) == list(range(36))


def test_an_epoch_start_found_only_in_the_wal_makes_an_older_segment_late():
    bucket = objects((0, 2, 1, [(1, 0)]), (3, 4, 1, [(1, 0)]))
    found = look(bucket, [EpochStart(2, 3)])
    assert found.late == {key_of(3, 1)}
    assert sorted(found.records) == [0, 1, 2]


def test_a_segment_a_broker_has_served_is_not_displaced_by_a_late_object():
    found = (57, 68, 1, [(1, 0)])
    late = (57, 62, 3, [(1, 0), (3, 57)])
    earlier = (0, 56, 1, [(1, 0)])
    decided = Decided(4, {key_of(0, 1), key_of(57, 1)})
    seen = look(objects(earlier, found, late), decided=decided)
    assert seen.late == {key_of(57, 3)}
    assert sorted(seen.records) == list(range(69))
    assert look(objects(earlier, found, late)).late == {key_of(57, 1)}  # for who does not know of the decision


def test_a_segment_that_begins_after_all_decided_segments_is_not_late():
    bucket = objects((0, 9, 1, [(1, 0)]), (10, 12, 2, [(1, 0), (2, 10)]))
    seen = look(bucket, decided=Decided(3, {key_of(0, 1)}))
    assert not seen.late
    assert sorted(seen.records) == list(range(13))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(-1, 4)), unique=True, max_size=12))
def test_a_flush_ends_before_the_next_one_of_its_epoch_or_a_later_one(pairs):
    keys = [key_of(base_offset, epoch) for base_offset, epoch in pairs]
    expected = {}
    for key in keys:
        behind = [each.base_offset for each in keys if each.base_offset > key.base_offset and each.epoch >= key.epoch]
        if behind:
            expected[key] = min(behind) - 1
    assert assumed_ends(keys) == expected
