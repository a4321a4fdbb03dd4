"""Batches, streams and tails over topics with transactions: where they begin and end, and what is no loss."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from kafscale.errors import ConfigError
from kafscale.spark.bucket.position import measure
from kafscale.spark.bucket.reading import DataLoss
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions, StreamOptions
from kafscale.spark.source.planning import Planner, QueryBounds
from kafscale.spark.source.progress import StreamProgress
from kafscale.spark.sql.topics import _has_transactions, tail_offsets
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.batch_header import TRANSACTIONAL
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import MemoryLog, batch_of, memory_log, topic_spec, write_files
from tests.devtools.fakes.transactions import NOW_MS, abort, commit, enrolled_nowait, send

SETTINGS = {"flush_interval_seconds": 1e9, "segment_merge_bytes": 0}


class Topic:
    """A topic that a log writes and Spark reads; one of one partition."""

    def __init__(self, log: MemoryLog, directory: Path) -> None:
        self.log, self.directory = log, directory

    @property
    def partition(self):
        return self.log.partition()

    async def flush(self) -> None:
        """Have it all in the bucket."""
        await self.log.log.flusher.flush_all()
        await write_files(self.log.store, self.directory)

    async def at(self, timestamp_ms: int, *, producer_id: int = 7, sequence: int = 0) -> None:
        """A record of a transaction that is as late."""
        stamp = ProducerStamp(producer_id, 0, sequence)
        batch = batch_of(b"x", timestamps_ms=[timestamp_ms], producer=stamp, attributes=TRANSACTIONAL)
        enrolled = enrolled_nowait(self.partition, batch)
        assert enrolled.round is not None
        await enrolled.round.wait()

    def given(self, **options: str) -> Given:
        return Given({"store": f"file:{self.directory}", "subscribe": "t", **options})

    def query(self, **options: str) -> list[int]:
        """The offsets that a batch query reads."""
        given = self.given(**options)
        with closing(Planner.of(ReadOptions.of(given))) as planner:
            return offsets_of(planner, planner.batch(BatchOptions.of(given), QueryBounds()))

    def stream(self, **options: str) -> StreamProgress:
        given = self.given(**options)
        return StreamProgress(planner=Planner.of(ReadOptions.of(given)), options=StreamOptions.of(given))


def offsets_of(planner: Planner, splits: Sequence) -> list[int]:
    reader = planner.reader(["offset"])
    return [offset for split in splits for part in reader.read(split) for offset in part["offset"].to_pylist()]


class Run:
    """A run of a stream, as Spark drives it."""

    def __init__(self, progress: StreamProgress) -> None:
        self.progress, self.position = progress, progress.initial()

    def step(self) -> tuple[int, list[int]]:
        """Go to the end of the next batch. Gives it, and the offsets that were read."""
        start, self.position = self.position, self.progress.latest(self.position)
        splits = self.progress.splits(start, self.position)
        return self.position.offsets["t", 0], offsets_of(self.progress.planner, splits)


@pytest.fixture
async def topic(autojump_clock, tmp_path):
    """Its checkpoint of the metadata is not there, so it begins at 0."""
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(retention_ms=-1)], **SETTINGS) as log:
        yield Topic(log, tmp_path / "bucket")


async def test_a_batch_reads_committed_records_by_default(topic):
    await send(topic.partition, b"a", b"b")
    await send(topic.partition, b"c", producer_id=8)
    await commit(topic.partition)
    await abort(topic.partition, producer_id=8)
    await send(topic.partition, b"open", sequence=2)
    await topic.flush()
    assert topic.query() == [0, 1]
    assert topic.query(isolationLevel="read_uncommitted") == [0, 1, 2, 5]
    assert topic.query(**{"kafka.isolation.level": "read_uncommitted"}) == [0, 1, 2, 5]
    assert topic.query(endingOffsets='{"t":{"0":5}}') == [0, 1]


async def test_offsets_beyond_an_open_transaction_are_reported_with_the_reason(topic):
    await send(topic.partition, b"open")
    await topic.log.append(topic.partition, b"plain")
    await topic.flush()
    with pytest.raises(
        DataLoss, match=r"offsets 0 to 1 .*: a transaction is open from 0 on, and only .*isolationLevel"
    ):
        topic.query(endingOffsets='{"t":{"0":2}}')
    with pytest.raises(ConfigError, match=r"begin at 1 .* and end at 0 .*; a transaction is open from 0 on"):
        topic.query(startingOffsets='{"t":{"0":1}}')
    assert topic.query(isolationLevel="read_uncommitted", endingOffsets='{"t":{"0":2}}') == [0, 1]


async def test_a_stream_passes_markers_and_aborted_records(topic):
    await send(topic.partition, b"aborted", b"too")
    await topic.flush()
    run = Run(topic.stream(startingOffsets="earliest", failOnDataLoss="true"))
    assert run.step() == (0, [])
    await abort(topic.partition)
    await topic.flush()
    assert run.step() == (3, [])
    await send(topic.partition, b"c", sequence=2)
    await commit(topic.partition)
    await topic.flush()
    assert run.step() == (5, [3])
    assert run.step() == (5, [])


async def test_a_stream_begins_and_ends_inside_of_transactions(topic):
    for number in range(4):
        await send(topic.partition, b"a", producer_id=1, sequence=number)
        await send(topic.partition, b"c", producer_id=2, sequence=number)
    await abort(topic.partition, producer_id=1)
    await commit(topic.partition, producer_id=2)
    await topic.flush()
    run = Run(topic.stream(startingOffsets='{"t":{"0":3}}', maxOffsetsPerTrigger="2"))
    assert [run.step() for _ in range(4)] == [(5, [3]), (7, [5]), (9, [7]), (10, [])]


async def test_a_stream_that_has_read_uncommitted_records_waits_at_read_committed_until_they_are_decided(topic):
    await send(topic.partition, b"a", b"b")
    await topic.flush()
    position = topic.stream(startingOffsets="latest", isolationLevel="read_uncommitted").initial()
    assert position.offsets == {("t", 0): 2}
    stream = topic.stream()
    assert stream.latest(position).offsets == {("t", 0): 2}
    assert stream.splits(position, position) == []
    await commit(topic.partition)
    await send(topic.partition, b"c", sequence=2)
    await commit(topic.partition)
    await topic.flush()
    end = stream.latest(position)
    assert end.offsets == {("t", 0): 5}
    assert offsets_of(stream.planner, stream.splits(position, end)) == [3]


async def test_a_transaction_that_no_segment_tells_the_end_of_is_a_loss(topic, caplog):
    await send(topic.partition, b"a", producer_id=1)
    await send(topic.partition, b"b", producer_id=2)
    await topic.flush()
    await abort(topic.partition, producer_id=1)
    await topic.flush()
    damaged = topic.partition.manifest.segments[-1]
    await commit(topic.partition, producer_id=2)
    await topic.flush()
    for name in (damaged.kfs_key, damaged.index_key):
        (topic.directory / name).write_bytes(b"damaged")
    ending = '{"t":{"0":2}}'  # before what is damaged
    with pytest.raises(DataLoss, match=r"whether the transaction of producer 1 from offset 0 on was aborted"):
        topic.query(endingOffsets=ending)
    assert topic.query(endingOffsets=ending, failOnDataLoss="false") == []
    assert "producer 2 from offset 1 on" in caplog.text
    assert topic.query(endingOffsets=ending, isolationLevel="read_uncommitted") == [0, 1]


async def test_a_damaged_segment_beyond_the_last_stable_offset_is_ignored(topic):
    await topic.log.append(topic.partition, b"plain")
    await topic.flush()
    await send(topic.partition, b"open")
    await topic.flush()
    key = topic.partition.manifest.segments[-1].key
    await topic.log.append(topic.partition, b"plain")
    await topic.flush()
    (topic.directory / attrs.evolve(key, generation=1).key).write_bytes(b"damaged")
    assert topic.query() == [0]


@pytest.mark.parametrize(("time", "begins"), [(0, 0), (1, 1), (10, 1), (20, 3), (30, 4)])
async def test_a_timestamp_finds_the_first_record_even_if_aborted_or_a_marker(topic, time, begins):
    """As Kafka's brokers look it up: also an aborted record, or a marker, is found, and what follows is read."""
    await topic.at(NOW_MS - 100 + 0, producer_id=1)
    await topic.at(NOW_MS - 100 + 15, producer_id=2)
    await topic.at(NOW_MS - 100 + 5, producer_id=1, sequence=1)
    await topic.at(NOW_MS - 100 + 20, producer_id=1, sequence=2)
    await abort(topic.partition, producer_id=2)  # NOW_MS
    await commit(topic.partition, producer_id=1)
    await topic.flush()
    committed = [offset for offset in (0, 2, 3) if offset >= begins]
    assert topic.query(startingTimestamp=str(NOW_MS - 100 + time)) == committed
    ended = topic.query(endingTimestamp=str(NOW_MS - 100 + time))
    assert ended == [offset for offset in (0, 2, 3) if offset < begins]


async def test_a_read_committed_lag_counts_to_the_last_stable_offset(topic):
    await topic.log.append(topic.partition, b"plain")
    await send(topic.partition, b"open")
    await topic.flush()
    for level, behind in (("read_committed", 1), ("read_uncommitted", 2)):
        with closing(Planner.of(ReadOptions.of(topic.given(isolationLevel=level)))) as planner:
            assert measure(planner.catalog, {("t", 0): 0})["t", 0].offsets_behind == behind


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("flushes", [1, 5])
async def test_a_tail_has_the_requested_number_of_committed_records(topic, count, flushes):
    committed: list[int] = []
    for number in range(20):
        offset = await send(topic.partition, b"x", sequence=number)
        if number % 3:
            await abort(topic.partition)
        else:
            committed.append(offset)
            await commit(topic.partition)
        if not number % flushes:
            await topic.flush()
    await send(topic.partition, b"open", sequence=20)
    await topic.flush()
    with closing(Planner.of(ReadOptions.of(topic.given()))) as planner:
        start = tail_offsets(planner.catalog, "t", count)[0]
        log = planner.catalog.partitions("t")[0]
    assert [offset for offset in committed if offset >= start] == committed[-count:]
    assert log.end_offset == topic.partition.last_stable_offset
    assert topic.query(startingOffsets=f'{{"t":{{"0":{start}}}}}') == committed[-count:]


async def test_a_tail_detects_transactions_by_producers_or_aborted_ones_of_a_footer(topic):
    await send(topic.partition, b"aborted")
    await abort(topic.partition)
    await topic.flush()
    with closing(Planner.of(ReadOptions.of(topic.given()))) as planner:
        planner.logs()
        (footer,) = planner.catalog.footers([topic.partition.manifest.segments[0].key]).values()
    for producers, aborted, expected in ((footer.producers, (), True), ((), footer.aborted, True), ((), (), False)):
        assert _has_transactions(attrs.evolve(footer, producers=producers, aborted=aborted)) == expected


async def test_a_tail_of_a_topic_without_transactions_reads_no_record(topic, monkeypatch):
    for number in range(9):
        await topic.log.append(topic.partition, b"%d" % number)
    await topic.flush()
    with closing(Planner.of(ReadOptions.of(topic.given()))) as planner:
        monkeypatch.setattr("kafscale.spark.bucket.bucket.DirectoryBucket.get_range", None)
        assert tail_offsets(planner.catalog, "t", 4) == {0: 5}
