"""What compaction keeps, against a plain model; tombstones, markers and producers over several rounds and the clock."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import CorruptBatch
from kafscale.log.rewrite.compaction_filter import (
    CompactionFilter,
    CompactionRules,
    KeyPass,
    OffsetMap,
    OutcomePass,
    RewritePass,
)
from kafscale.wire import compression
from kafscale.wire.batch_header import CONTROL, TRANSACTIONAL, batches, parse_header
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records

NOW_MS = 1_700_000_000_000
RETENTION_MS = 1000
ABORT, COMMIT = 0, 1
NO_PRODUCER = ProducerStamp()


@attrs.define
class SmallLog:
    """Batches one behind the other, and what a compaction of all of them does with them."""

    data: bytearray = attrs.field(factory=bytearray)
    next_offset: int = 0
    first_dirty_offset: int = 0
    producers_last_offsets: dict[int, int] = attrs.field(factory=dict)
    compacted: CompactionFilter | None = None

    def append(self, *texts: str, producer: ProducerStamp = NO_PRODUCER, codec: int = 0, attributes: int = 0) -> None:
        records = [record_of(text) for text in texts]
        batch = build_batch(
            records, base_offset=self.next_offset, producer=producer, codec=codec, attributes=attributes
        )
        self.data += batch
        self.next_offset += len(records)
        if producer.producer_id >= 0 and not attributes & CONTROL:
            self.producers_last_offsets[producer.producer_id] = self.next_offset - 1

    def transactional(self, producer_id: int, *texts: str) -> None:
        self.append(*texts, producer=ProducerStamp(producer_id, 0, 0), attributes=TRANSACTIONAL)

    def end(self, producer_id: int, kind: int) -> None:
        """A marker, as the transaction coordinator has it written."""
        records = [Record(key=struct.pack(">hh", 0, kind), value=b"\0" * 6, timestamp_ms=NOW_MS)]
        producer = ProducerStamp(producer_id, 0, -1)
        self.data += build_batch(
            records, base_offset=self.next_offset, producer=producer, attributes=TRANSACTIONAL | CONTROL
        )
        self.next_offset += 1

    def compact(self, now_ms: int = NOW_MS, *, end_offset: int | None = None, capacity: int = 1000) -> None:
        """A round up to `end_offset`, or as far as the map goes."""
        view = memoryview(bytes(self.data))
        ended = OutcomePass()
        for batch in batches(view):
            if parse_header(batch).last_offset >= self.first_dirty_offset:
                ended.take(batch)
        end_offset = self.next_offset if end_offset is None else end_offset
        if ended.first_open_offset is not None:
            end_offset = min(end_offset, ended.first_open_offset)
        latest = OffsetMap(capacity)
        keys = KeyPass(
            latest=latest,
            start_offset=self.first_dirty_offset,
            end_offset=end_offset,
            aborted=ended.aborted,
        )
        for batch in batches(view):
            if parse_header(batch).last_offset >= self.first_dirty_offset and not keys.is_over:
                keys.take(batch)
        rules = CompactionRules(
            end_offset=keys.end_offset,
            now_ms=now_ms,
            delete_retention_ms=RETENTION_MS,
            producers_last_offsets=set(self.producers_last_offsets.values()),
            aborted=ended.aborted,
        )
        self.compacted = CompactionFilter(rules, latest)
        left = RewritePass(self.compacted, self.next_offset - 1)
        for batch in batches(view):
            left.take(batch)
        self.data = left.body
        self.first_dirty_offset = max(self.first_dirty_offset, keys.end_offset)

    def records(self) -> dict[int, str]:
        """All that is there but markers, by offset."""
        return {
            record.offset: text_of(record)
            for batch in batches(memoryview(self.data))
            if not parse_header(batch).is_control
            for record in iterate_records(batch)
        }

    def markers(self) -> list[int]:
        """The offsets of markers that are there."""
        return [
            record.offset
            for batch in batches(memoryview(self.data))
            if parse_header(batch).is_control
            for record in iterate_records(batch)
        ]

    def spans(self) -> list[tuple[int, int, int]]:
        """First and last offset and number of records of each batch."""
        headers = [parse_header(batch) for batch in batches(memoryview(self.data))]
        return [(header.base_offset, header.last_offset, header.record_count) for header in headers]


def record_of(text: str) -> Record:
    key, _, value = text.partition("=")
    return Record(key.encode() or None, value.encode() or None, NOW_MS)


def text_of(record: Record) -> str:
    key = "" if record.key is None else record.key.decode()
    return key if record.value is None else f"{key}={record.value.decode()}"


def last_by_key(records: dict[int, str]) -> dict[str, str]:
    """What a table built from the topic holds in the end."""
    table: dict[str, str] = {}
    for _, text in sorted(records.items()):
        key, _, value = text.partition("=")
        table[key] = value
    return {key: value for key, value in table.items() if value}


texts = st.builds(lambda key, value: f"{key}={value}" if value else key, st.sampled_from("abcde"), st.integers(0, 3))
steps = st.lists(
    st.one_of(
        st.lists(texts, min_size=1, max_size=5),
        st.tuples(st.integers(0, 3000), st.integers(1, 6)),  # the clock moves, then a round with a map of so many keys
    ),
    max_size=20,
)


@given(steps, st.sampled_from(sorted(compression.NAMES)))
def test_every_round_leaves_the_same_table_and_nothing_older_of_a_key(steps, codec):
    log, now_ms, appended = SmallLog(), NOW_MS, {}
    for step in steps:
        if isinstance(step, list):
            appended.update(enumerate(step, start=log.next_offset))
            log.append(*step, codec=codec)
        elif log.next_offset:
            now_ms += step[0]
            clean_before = log.first_dirty_offset
            log.compact(now_ms, capacity=step[1])
            assert log.first_dirty_offset > clean_before or clean_before == log.next_offset
        left = log.records()
        assert left.items() <= appended.items()
        assert last_by_key(left) == last_by_key(appended)
        clean = [text.partition("=")[0] for offset, text in left.items() if offset < log.first_dirty_offset]
        assert len(clean) == len(set(clean)), "two records of one key are left where it is clean"
        assert log.next_offset == 0 or log.spans()[-1][1] == log.next_offset - 1


@given(st.lists(texts, min_size=1, max_size=20), st.integers(0, 20))
def test_records_behind_the_end_are_kept(appended, end_offset):
    log = SmallLog()
    for start in range(0, len(appended), 3):
        log.append(*appended[start : start + 3])
    log.compact(end_offset=min(end_offset, log.next_offset))
    behind = {offset: text for offset, text in enumerate(appended) if offset >= end_offset}
    assert behind.items() <= log.records().items()


def test_a_tombstone_stays_for_the_delete_retention_after_its_first_compaction():
    log = SmallLog()
    log.append("a=1", "b=1")
    log.append("a")
    log.append("c=1")
    log.compact(NOW_MS)
    assert log.records() == {1: "b=1", 2: "a", 3: "c=1"}
    log.compact(NOW_MS + RETENTION_MS - 1)
    assert log.records() == {1: "b=1", 2: "a", 3: "c=1"}
    log.compact(NOW_MS + RETENTION_MS)
    assert log.records() == {1: "b=1", 3: "c=1"}


def test_a_tombstone_behind_the_compacted_range_keeps_its_whole_retention():
    log = SmallLog()
    log.append("a=1", "b=1")
    log.append("b")
    log.compact(NOW_MS, end_offset=2)
    log.compact(NOW_MS + 5 * RETENTION_MS)
    assert log.records() == {0: "a=1", 2: "b"}


def test_a_later_value_takes_the_tombstone_away_at_once():
    log = SmallLog()
    log.append("a=1")
    log.append("a")
    log.compact()
    log.append("a=2")
    log.compact()
    assert log.records() == {2: "a=2"}


def test_compaction_removes_records_without_a_key_in_its_range():
    log = SmallLog()
    log.append("=1", "a=1", "=2")
    log.append("=3")
    log.compact(end_offset=3)
    assert log.records() == {1: "a=1", 3: "=3"}


def test_the_last_batch_of_a_producer_stays_and_keeps_its_sequences():
    log = SmallLog()
    log.append("a=1", "b=1", producer=ProducerStamp(7, 0, 0))
    log.append("a=2", "b=2", producer=ProducerStamp(7, 0, 2))
    log.append("a=3", "b=3", "c=1")
    log.compact()
    assert log.spans() == [(2, 3, 0), (4, 6, 3)]
    kept = parse_header(memoryview(log.data))
    assert (kept.producer_id, kept.base_sequence, kept.last_sequence) == (7, 2, 3)
    log.compact()
    assert log.spans() == [(2, 3, 0), (4, 6, 3)]
    log.producers_last_offsets.clear()  # it has expired
    log.compact()
    assert log.spans() == [(4, 6, 3)]


def test_the_last_batch_of_the_log_stays_even_if_empty():
    log = SmallLog()
    log.append("a=1")
    log.append("a")
    log.compact(NOW_MS)
    log.compact(NOW_MS + RETENTION_MS)
    assert log.spans() == [(1, 1, 0)]


def test_aborted_records_go_and_hide_nothing_that_was_committed():
    log = SmallLog()
    log.append("a=1", "b=1")
    log.transactional(7, "a=aborted")
    log.transactional(8, "b=2")
    log.end(7, ABORT)
    log.end(8, COMMIT)
    log.append("c=1")
    log.compact()
    assert log.records() == {0: "a=1", 3: "b=2", 6: "c=1"}


def test_a_producer_can_abort_and_then_commit():
    log = SmallLog()
    log.transactional(7, "a=1")
    log.end(7, COMMIT)
    log.transactional(7, "a=aborted")
    log.end(7, ABORT)
    log.transactional(7, "b=1")
    log.end(7, COMMIT)
    log.compact()
    assert log.records() == {0: "a=1", 4: "b=1"}


def test_records_of_an_open_transaction_are_not_cleaned():
    log = SmallLog()
    log.append("a=1", "b=1")
    log.append("b=2")
    log.transactional(7, "a=2")
    log.append("b=3")
    log.compact()
    assert log.first_dirty_offset == 3
    assert log.records() == {0: "a=1", 2: "b=2", 3: "a=2", 4: "b=3"}
    log.end(7, ABORT)
    log.compact()
    assert log.records() == {0: "a=1", 4: "b=3"}


def test_a_transaction_that_the_map_cuts_in_two_is_aborted_as_a_whole():
    log = SmallLog()
    log.append("a=1", "b=1")
    log.transactional(7, "a=aborted")
    log.append("c=1")
    log.transactional(7, "b=aborted")
    log.end(7, ABORT)
    log.append("d=1")
    log.compact(capacity=2)
    assert log.first_dirty_offset == 3
    log.compact(capacity=2)
    assert log.records() == {0: "a=1", 1: "b=1", 3: "c=1", 6: "d=1"}


def test_a_marker_stays_as_long_as_its_transaction_does_and_then_as_long_as_a_tombstone():
    log = SmallLog()
    log.transactional(7, "a=1")
    log.end(7, COMMIT)
    log.producers_last_offsets.clear()
    log.compact(NOW_MS)
    assert log.markers() == [1]
    log.append("a=2")
    log.compact(NOW_MS)  # the last record of the transaction goes, and was seen in this round
    assert (log.markers(), log.records()) == ([1], {2: "a=2"})
    log.compact(NOW_MS)  # from here on the clock runs
    log.compact(NOW_MS + RETENTION_MS - 1)
    assert log.markers() == [1]
    log.compact(NOW_MS + RETENTION_MS)
    assert (log.markers(), log.spans()) == ([], [(2, 2, 1)])


def test_a_marker_stays_with_the_empty_batch_of_a_producer_that_is_remembered():
    log = SmallLog()
    log.transactional(7, "a=aborted")
    log.end(7, ABORT)
    log.append("b=1")
    for round in range(4):
        log.compact(NOW_MS + round * RETENTION_MS)
    assert log.spans() == [(0, 0, 0), (1, 1, 1), (2, 2, 1)]
    log.producers_last_offsets.clear()
    for round in range(4, 7):
        log.compact(NOW_MS + round * RETENTION_MS)
    assert log.spans() == [(2, 2, 1)]


def test_removed_records_are_counted():
    log = SmallLog()
    log.append("a=1", "b=1")
    log.append("a=2", "b=2")
    log.transactional(7, "c=aborted")
    log.end(7, ABORT)
    log.compact()
    assert log.compacted is not None
    assert log.compacted.removed_records_count == 3


def test_a_batch_that_keeps_all_records_keeps_its_bytes():
    log = SmallLog()
    log.append("a=1", "b=1", codec=compression.ZSTD)
    log.append("c=1")
    before = bytes(log.data)
    log.compact()
    assert bytes(log.data) == before


def headers_of(log: SmallLog) -> Sequence[int | None]:
    return [parse_header(batch).delete_horizon_ms for batch in batches(memoryview(log.data))]


def test_a_delete_horizon_is_set_once_and_only_on_batches_with_tombstones():
    log = SmallLog()
    log.append("a=1")
    log.append("b")
    log.append("c")
    log.compact(NOW_MS, end_offset=2)
    assert headers_of(log) == [None, NOW_MS + RETENTION_MS, None]
    log.compact(NOW_MS + 5)
    assert headers_of(log) == [None, NOW_MS + RETENTION_MS, NOW_MS + 5 + RETENTION_MS]


@pytest.mark.parametrize("take", ["keys", "outcomes"])
def test_a_damaged_batch_supersedes_no_record(take):
    """A pass over the keys took a damaged key for the newest of another one, whose record was then dropped."""
    batch = bytearray(build_batch([Record(key=b"key", value=b"value", timestamp_ms=NOW_MS)]))
    batch[batch.index(b"key")] ^= 1
    latest = OffsetMap(10)
    passes = {"keys": KeyPass(latest=latest, start_offset=0, end_offset=1), "outcomes": OutcomePass()}
    with pytest.raises(CorruptBatch, match="the CRC of the batch at offset 0 is wrong"):
        passes[take].take(memoryview(batch))
