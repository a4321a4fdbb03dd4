"""What Spark's readers make of transactions: the records that a Fetch at read_committed gives, and no others."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from kafscale.config import StoreUrl
from kafscale.formats.transactions import AbortedTransaction
from kafscale.log.check.verification import Verifier
from kafscale.log.partition.partition import Partition
from kafscale.log.repair.verify_segment import FindingKind
from kafscale.log.rewrite.retention import Retention
from kafscale.spark.bucket.aborted import AbortedBatches, shared_out
from kafscale.spark.bucket.batches import BatchHeaders
from kafscale.spark.bucket.bucket import Bucket, BucketOptions
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.reading import SplitReader
from kafscale.spark.bucket.splits import Extent, Split, holes, outcomes, plan
from kafscale.spark.bucket.totals import told_by_footers
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.batch_header import TRANSACTIONAL
from kafscale.wire.records import ProducerStamp, Record, build_batch
from tests.devtools.fakes.memory_log import MemoryLog, memory_log, merge, topic_spec, write_files
from tests.devtools.fakes.transactions import NOW_MS, abort, commit, enrolled_nowait, fetch_all, send
from tests.devtools.world.determinism import seeds

SETTINGS: dict[str, Any] = {"flush_interval_seconds": 1e9, "segment_merge_bytes": 0, "segment_bytes": 1024}
PLAIN = topic_spec(retention_ms=-1, file_delete_delay_ms=0)
COMPACTED = topic_spec(
    cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, delete_retention_ms=0, file_delete_delay_ms=0
)
PRODUCERS_COUNT = 4
STEPS_COUNT = 50
COLUMNS = ("key", "value", "offset", "timestamp")


async def directory_of(store: MemoryStore, path: Path) -> Bucket:
    """The objects that a store has now, as files."""
    await write_files(store, path)
    return BucketOptions(url=StoreUrl.parse(f"file:{path}")).open()


@attrs.define
class SparkRead:
    """A partition as Spark reads it from a bucket."""

    bucket: Bucket
    committed_only: bool = True
    log_start_offset: int = 0

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.bucket, committed_only=self.committed_only)

    def log(self, catalog: Catalog) -> PartitionLog:
        logs = catalog.partitions("t")
        found = logs.get(0) or PartitionLog(topic="t", partition=0, segments=())
        return attrs.evolve(found, log_start_offset=self.log_start_offset)

    @property
    def end_offset(self) -> int:
        return self.log(self.catalog).end_offset

    def rows(self, start: int | None = None, end: int | None = None, **options: Any) -> list[dict[str, Any]]:
        """What tasks read, of splits that are as many as the options say."""
        catalog = self.catalog
        log = self.log(catalog)
        extent = Extent(
            log=log,
            start_offset=log.start_offset if start is None else start,
            end_offset=log.end_offset if end is None else end,
        )
        assert not holes(catalog, extent)
        assert not outcomes(catalog, extent).unknown
        return self.read(plan(catalog, [extent], **options))

    def read(self, splits: Sequence[Split]) -> list[dict[str, Any]]:
        reader = SplitReader(
            bucket=self.bucket,
            namespace="default",
            columns=COLUMNS,
            fail_on_data_loss=True,
            committed_only=self.committed_only,
        )
        return [row for split in splits for records in reader.read(split) for row in records.to_pylist()]

    def totals(self) -> tuple[int, int | None, int | None]:
        """How many records there are, the first and the latest time, of footers as far as these tell."""
        catalog = self.catalog
        log = self.log(catalog)
        extent = Extent(log=log, start_offset=log.start_offset, end_offset=log.end_offset)
        told = told_by_footers(catalog, plan(catalog, [extent]), with_first_time=True)
        left = [round(row["timestamp"].timestamp() * 1000) for row in self.read(told.left)]
        first = [*left, *(each.first_ms for each in told.totals if each.first_ms is not None)]
        last = [*left, *(each.last_ms for each in told.totals if each.last_ms is not None)]
        count = len(left) + sum(each.count for each in told.totals)
        return count, min(first, default=None), max(last, default=None)

    def values(self) -> list[bytes]:
        return [row["value"] for row in self.rows()]


def as_rows(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    return [(each.offset, each.key, each.value, each.timestamp_ms) for each in records]


def of_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["offset"], row["key"], row["value"], round(row["timestamp"].timestamp() * 1000)) for row in rows]


@attrs.define
class Writer:
    """Random steps of producers, the coordinator and housekeeping."""

    log: MemoryLog
    chance: random.Random
    sequences: dict[int, int] = attrs.field(factory=lambda: defaultdict(int))

    @property
    def partition(self) -> Partition:
        return self.log.partition()

    async def step(self) -> None:
        producer_id, what = self.chance.randrange(PRODUCERS_COUNT), self.chance.random()
        if what < 0.5:
            await self.write(producer_id)
        elif what < 0.6:
            await self.log.append(self.partition, b"plain %d" % self.partition.next_offset)
        elif what < 0.8:
            await self.chance.choice([commit, abort])(self.partition, producer_id=producer_id)
        elif what < 0.9:
            await self.log.log.flusher.flush_all()
        else:
            await self.keep_house()

    async def write(self, producer_id: int) -> None:
        stamp = ProducerStamp(producer_id, 0, self.sequences[producer_id])
        count = self.chance.choice([1, 1, 3])
        records = [
            Record(
                key=b"k%d" % self.chance.randrange(5),
                value=b"%d %d" % (self.partition.next_offset, number) + bytes(self.chance.choice([0, 200])),
                timestamp_ms=NOW_MS + self.chance.randrange(1000),
            )
            for number in range(count)
        ]
        batch = build_batch(records, attributes=TRANSACTIONAL, producer=stamp)
        enrolled = enrolled_nowait(self.partition, memoryview(batch))
        self.sequences[producer_id] += count
        if enrolled.round is not None:
            await enrolled.round.wait()

    async def keep_house(self) -> None:
        segments, what = self.partition.manifest.segments, self.chance.random()
        if what < 0.3 and len(segments) > 1:
            newest = max(each.generation for each in segments)
            count = self.chance.randint(2, len(segments))
            if not newest or not any(each.generation for each in segments[:count]):
                await merge(self.log, count=count)
        elif what < 0.6:
            await self.log.log.compactor.compact_all(lambda: [self.partition])
        elif what < 0.75:
            most = min(self.partition.log_start_offset + 5, self.partition.high_watermark)
            self.partition.delete_records(self.chance.randint(self.partition.log_start_offset, most))
        elif what < 0.85:
            await self.retire()
        elif segments:
            await self.log.store.delete([self.chance.choice(segments).index_key])

    async def retire(self) -> None:
        async def set_start(topic_id: bytes, partition: int, offset: int) -> None:
            self.partition.delete_records(offset)

        retention = Retention(
            store=self.log.store,
            deleter=self.log.log.deleter,
            examiner=self.log.log.reader.examiner,
            partitions=lambda: [self.partition],
            set_log_start_offset=set_start,
            interval_seconds=300.0,
            now_ms=lambda: NOW_MS,
        )
        await retention.enforce()


@pytest.mark.parametrize("spec", [PLAIN, COMPACTED], ids=["kept", "compacted"])
@pytest.mark.parametrize("seed", seeds(2, more=3))
async def test_the_records_of_a_read_committed_fetch(autojump_clock, tmp_path, seed, spec):
    chance = random.Random(seed)
    disk, store = MemoryDisk(), MemoryStore()
    sequences: dict[int, int] = defaultdict(int)
    looks = 0
    for epoch in (1, 2):
        async with memory_log(store, disk, topics=[spec], leader_epoch=epoch, **SETTINGS) as log:
            writer = Writer(log, chance, sequences)
            for _ in range(STEPS_COUNT):
                await writer.step()
                if chance.random() < 0.15:
                    looks += 1
                    await compare(log, tmp_path / "bucket", chance)
            disk = disk.crash()
        verifier = Verifier(store=store, namespace="default")
        await verifier.list_bucket()
        await verifier.read_bucket(lambda _: None)
        assert [
            str(each) for each in verifier.report.findings if each.damage and each.kind is not FindingKind.INDEX
        ] == []
    assert looks


async def compare(log: MemoryLog, path: Path, chance: random.Random) -> None:
    """Hold what Spark reads, all of it and a part, against what the broker gives."""
    partition = log.partition()
    spark = SparkRead(await directory_of(log.store, path), log_start_offset=partition.log_start_offset)
    end_offset = spark.end_offset
    assert end_offset <= max(partition.last_stable_offset, partition.log_start_offset)
    if chance.random() < 0.5:
        await log.log.flusher.flush_all()
        spark.bucket = await directory_of(log.store, path)
        end_offset = spark.end_offset
        assert end_offset == partition.last_stable_offset
    expected = [each for each in await fetch_all(log, partition) if each.offset < end_offset]
    options = {"max_records": chance.choice([None, 1, 5]), "min_splits": chance.choice([0, 4])}
    assert of_rows(spark.rows(**options)) == as_rows(expected)
    times = [each.timestamp_ms for each in expected]
    assert spark.totals() == (len(expected), min(times, default=None), max(times, default=None))
    if end_offset > partition.log_start_offset:
        start = chance.randint(partition.log_start_offset, end_offset)
        end = chance.randint(start, end_offset)
        part = [each for each in expected if start <= each.offset < end]
        assert of_rows(spark.rows(start, end, **options)) == as_rows(part)
    everything = await fetch_all(log, partition, committed=False)
    uncommitted = attrs.evolve(spark, committed_only=False)
    assert of_rows(uncommitted.rows()) == as_rows([each for each in everything if each.offset < uncommitted.end_offset])


# ---- which transactions ---------------------------------------------------------------------------------------------


async def flush(log: MemoryLog) -> None:
    await log.log.flusher.flush_all()


@pytest.fixture
async def log(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[PLAIN], **SETTINGS) as log:
        yield log


async def test_a_log_ends_where_the_first_transaction_begins_that_is_open(log, tmp_path):
    partition = log.partition()
    for producer_id, value in ((1, b"a"), (2, b"b"), (3, b"c")):
        await send(partition, value, producer_id=producer_id)
    await commit(partition, producer_id=1)
    await flush(log)
    spark = SparkRead(await directory_of(log.store, tmp_path / "bucket"))
    assert (spark.end_offset, spark.values()) == (1, [b"a"])
    assert spark.log(spark.catalog).written_end_offset == 4
    assert attrs.evolve(spark, committed_only=False).values() == [b"a", b"b", b"c"]
    await abort(partition, producer_id=2)
    spark = SparkRead(await directory_of(log.store, tmp_path / "bucket"))
    assert spark.end_offset == 1, "what is not in the bucket has no effect"
    await flush(log)
    spark = SparkRead(await directory_of(log.store, tmp_path / "bucket"))
    assert (spark.end_offset, spark.values()) == (2, [b"a"])


async def test_a_log_starting_within_an_open_transaction_is_empty(log, tmp_path):
    partition = log.partition()
    await send(partition, b"open")
    await log.append(partition, b"plain")
    await flush(log)
    partition.delete_records(1)
    spark = SparkRead(await directory_of(log.store, tmp_path / "bucket"), log_start_offset=1)
    assert spark.end_offset == partition.last_stable_offset == 1
    assert spark.rows() == []


class Counting:
    """A bucket that counts what is read of each `.index`."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket, self.count = bucket, 0

    def get(self, key: str):
        self.count += key.endswith(".index")
        return self.bucket.get(key)

    def __getattr__(self, name: str):
        return getattr(self.bucket, name)


async def test_a_marker_far_behind_is_found_and_no_footer_is_read_twice_or_in_vain(log, tmp_path):
    partition = log.partition()
    await send(partition, b"aborted")
    await flush(log)
    for number in range(9):
        await log.append(partition, b"%d" % number)
        await flush(log)
    await abort(partition)
    await flush(log)
    await log.append(partition, b"last")
    await flush(log)
    counting = Counting(await directory_of(log.store, tmp_path / "bucket"))
    spark = SparkRead(counting)
    assert spark.rows(0, 1) == []
    assert counting.count == len(partition.manifest.segments) == 12
    counting.count = 0
    assert [row["value"] for row in spark.rows(11, 12)] == [b"last"]
    assert counting.count == 1, "what is stable up to the end needs no other footer"
    counting.count = 0
    await log.append(partition, b"later")
    await flush(log)
    counting.bucket = await directory_of(log.store, tmp_path / "bucket")
    assert [row["value"] for row in spark.rows(11, 12)] == [b"last"]
    assert counting.count == 2, "that of the end of the log, and the one of what is read"


async def test_splits_have_the_transactions_that_they_meet_and_no_others(log, tmp_path):
    partition = log.partition()
    for number in range(3):
        await send(partition, b"aborted", sequence=number)
        await log.append(partition, b"plain")
        await abort(partition)
        await flush(log)
    spark = SparkRead(await directory_of(log.store, tmp_path / "bucket"))
    catalog = spark.catalog
    splits = plan(catalog, [Extent(log=spark.log(catalog), start_offset=0, end_offset=9)], max_records=3)
    assert [[each.first_offset for each in split.aborted] for split in splits] == [[0], [3], [6]]
    (split,) = plan(catalog, [Extent(log=spark.log(catalog), start_offset=4, end_offset=6)])
    assert [each.first_offset for each in split.aborted] == [3]
    assert [row["value"] for row in spark.read(splits)] == [b"plain"] * 3


async def test_a_segment_merged_between_plan_and_read_yields_no_aborted_records(log, tmp_path):
    partition = log.partition()
    await send(partition, b"aborted")
    await flush(log)
    await log.append(partition, b"plain")
    await abort(partition)
    await flush(log)
    path = tmp_path / "bucket"
    spark = SparkRead(await directory_of(log.store, path))
    catalog = spark.catalog
    splits = plan(catalog, [Extent(log=spark.log(catalog), start_offset=0, end_offset=3)])
    sources = list(partition.manifest.segments)
    assert await merge(log)
    await log.store.delete([name for each in sources for name in (each.kfs_key, each.index_key)])
    await directory_of(log.store, path)
    assert [row["value"] for row in spark.read(splits)] == [b"plain"]


@pytest.mark.parametrize("is_last", [False, True])
async def test_outcomes_lost_with_a_damaged_segment_count_as_aborted_and_as_a_loss(log, tmp_path, is_last):
    """The marker of producer 1 was in the damaged segment, and those of 2 and 3 are not."""
    partition = log.partition()
    for producer_id in (1, 2, 3):
        await send(partition, b"of %d" % producer_id, producer_id=producer_id)
    await flush(log)
    await abort(partition, producer_id=1)
    await flush(log)
    damaged = partition.manifest.segments[-1]
    if not is_last:
        await abort(partition, producer_id=2)
        await flush(log)
        await commit(partition, producer_id=3)
        await flush(log)
    path = tmp_path / "bucket"
    spark = SparkRead(await directory_of(log.store, path))
    for name in (damaged.kfs_key, damaged.index_key):
        (path / name).write_bytes(b"damaged")
    catalog = spark.catalog
    assert spark.log(catalog).end_offset == (0 if is_last else 6)
    extent = Extent(log=spark.log(catalog), start_offset=0, end_offset=3)
    found = outcomes(catalog, extent)
    if is_last:  # and was there when the read was planned
        assert [each.producer_id for each in found.unknown] == [1, 2, 3]
        assert spark.read(plan(catalog, [extent])) == []
        return
    assert [each.producer_id for each in found.unknown] == [1]
    assert sorted(each.producer_id for each in found.aborted) == [1, 2]
    assert [row["value"] for row in spark.read(plan(catalog, [extent]))] == [b"of 3"]


# ---- which batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_batches_and_reads_of_transactions_are_found_as_one_by_one(seed):
    chance = random.Random(seed)
    transactions: list[AbortedTransaction] = []
    for producer_id in (0, 5, 6, 1 << 40):
        first = 0
        while (first := first + chance.randint(1, 9)) < 40 and producer_id != 5:
            marker = first + chance.randint(1, 9)
            transactions.append(AbortedTransaction(producer_id, first, marker, 0))
            first = marker
    chance.shuffle(transactions)
    rows = [(chance.choice([-1, 0, 4, 5, 6, 7, 1 << 40, 1 << 41]), chance.random() < 0.8) for _ in range(60)]
    data = b"".join(
        build_batch(
            [Record(value=b"v")],
            base_offset=offset,
            attributes=TRANSACTIONAL * is_transactional,
            producer=ProducerStamp(producer_id, 0, 0),
        )
        for offset, (producer_id, is_transactional) in enumerate(rows)
    )
    batches = AbortedBatches.of(transactions)
    assert batches is not None
    expected = [
        is_transactional
        and any(
            each.producer_id == producer_id and each.first_offset <= offset < each.marker_offset
            for each in transactions
        )
        for offset, (producer_id, is_transactional) in enumerate(rows)
    ]
    assert batches.among(BatchHeaders.of(memoryview(data))).tolist() == expected
    starts = sorted(chance.sample(range(50), 7))
    ends = [*starts[1:], 50]
    for share, start, end in zip(shared_out(transactions, starts), starts, ends, strict=True):
        meeting = [each for each in transactions if each.first_offset < end and each.marker_offset > start]
        assert [each for each in meeting if each not in share] == []
        assert all(each.first_offset < end for each in share)


def test_nothing_aborted_costs_nothing():
    assert AbortedBatches.of([]) is None
    assert shared_out([], [0, 5]) == [[], []]
